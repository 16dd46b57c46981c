"""The text of a write-up's sections: the intent, then what a run's verdicts come to, as Markdown.

Every part is made of structured verdicts. Texts of others are escaped, so that they render as
themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, cast

from pytest_ane.gates import GATES
from pytest_ane.gates.hazards.judge import KNOWN
from pytest_ane.gates.placement.rules import Rule, find
from pytest_ane.gates.verdict import Figure, Finding, Verdict
from pytest_ane.mlprogram.errors import ReportError
from pytest_ane.mlprogram.text import printable
from pytest_ane.report.figures import amount, figure_text
from pytest_ane.report.markdown import code, fenced, prose, table
from pytest_ane.report.rows import Row, count, ranked
from pytest_ane.report.run import Run, verdict_of
from pytest_ane.tools._blame_words import CAUSE
from pytest_ane.tools._writeup.answer import Answer, caveats, few, suggestions
from pytest_ane.tools._writeup_data import INTENT, SECTIONS, part

_GATES = "https://github.com/pytest-ane/pytest-ane/blob/main/docs/explanations/gates.md"
"""Where the docs explain the gates' questions and figures."""
_SEVERITIES = ("failed", "unproven", "warned", "note")
_MOST = 60
"""Lines of a list, or rows of a table; a run's file has all of them."""
_SHORT = 300
"""Characters of a verdict in a table."""
_NAMED = 12
"""Shards that a command names; of more, the whole model."""
_TIMED = ("s", "tok/s")
"""Units of figures that only the same machine can repeat."""
LONGEST_INTENT = 4000
_TITLE = 80
"""Characters of a page's title, of a longer intent the first words."""
_WILL_STAND = {
    "Setup": "manifest, machine, versions, digests and the command",
    "Result": "the verdicts, with figures against their limits",
    "Surprise": "what is red, warned, unproven, or changed since the last write-up",
    "Next": "what the findings, the canary and the searches suggest",
    "References": "sources of the rules that spoke",
}
_LESSON = "What you learned: write it here in place of this line."


def intent_of(text: str) -> str:
    """An intent as it stands on the page: one paragraph, whose punctuation means nothing.

    Raises:
        ReportError: it says nothing, or too much.
    """
    text = " ".join(text.split())
    if not any(character.isalnum() for character in text):
        raise ReportError("The intent is empty; say in a sentence what you want to find out.")
    if len(text) > LONGEST_INTENT:
        raise ReportError(
            f"The intent has {len(text):,} characters; say it in at most {LONGEST_INTENT:,}, and "
            "the rest below it on the page."
        )
    return prose(text)


def blank(number: int, intent: str) -> str:
    """The body of a page whose intent is recorded: what `finish` and a person fill has a line."""
    cut = intent[:_TITLE].rpartition(" ")[0] or intent[:_TITLE]
    title = intent if len(intent) <= _TITLE else f"{cut} ..."
    lines = ["", f"# {number:03d}: {title}", ""]
    for section in SECTIONS:
        name = section.lower()
        if name == INTENT:
            text = part(name, intent)
        elif (what := _WILL_STAND.get(section)) is not None:
            text = part(name, f"*Not run yet. `pytest-ane writeup finish` writes here: {what}.*")
        else:
            text = f"*{_LESSON}*"
        lines += [f"## {section}", "", text, ""]
    return "\n".join(lines)


class Sections:
    """The parts of a page that an answer fills."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._run = answer.run
        self._rows = ranked(answer.run.rows)

    def parts(self) -> dict[str, str]:
        """The text of each part by its name.

        Raises:
            ReportError: a verdict of the run's file is damaged.
        """
        made = {
            "setup": self._setup(),
            "result": self._result(),
            "surprise": self._surprise(),
            "next": self._next(),
            "references": self._references(),
        }
        return {name: "\n".join(lines).strip("\n") for name, lines in made.items()}

    @cached_property
    def _verdicts(self) -> list[tuple[Row, Verdict]]:
        """Rows with a verdict, the worst first."""
        pairs = ((row, verdict_of(row.data)) for row in self._rows)
        return [(row, verdict) for row, verdict in pairs if verdict is not None]

    def _setup(self) -> Iterator[str]:
        head, facts = self._answer.writeup.head, self._run.facts
        changed = self._answer.manifest_changed
        then = "changed after" if changed else "as it was when"
        manifest = f"{code(head.manifest)}, {then} the intent was recorded"
        commit = code(facts.commit[:12]) if facts.commit else "none"
        dirty = ", with changes that are not in it" if facts.commit and not facts.clean else ""
        machine = {k: v for k, v in facts.machine.items() if k not in facts.versions}
        yield f"- Manifest: {manifest}; SHA-256 {code(facts.digest[:12] or 'none')}"
        yield f"- Intent: recorded {prose(head.recorded)}"
        yield f"- Run: begun {prose(facts.started or 'unknown')}, {amount(facts.seconds, 's')}"
        yield f"- Commit: {commit}{dirty}"
        yield f"- Configuration: {prose(self._run.header.removeprefix('ane: '))}"
        yield f"- Machine: {_pairs(machine)}"
        yield f"- Versions: {_pairs(facts.versions)}"
        yield from ("", "```text", fenced(self._run.command()), "```")
        digests = {
            row.subject: digest
            for row, verdict in self._verdicts
            if isinstance(digest := verdict.provenance.get("artifact"), str) and digest
        }
        if digests:
            rows = [(prose(name), code(digest)) for name, digest in sorted(digests.items())]
            yield from ("", *table(("shard", "SHA-256 of its package"), rows))

    def _result(self) -> Iterator[str]:
        for sentence in caveats(self._answer):
            yield from (f"**{prose(sentence)}**", "")
        if not self._rows:
            yield "No gate came to a verdict."
            return
        yield from (f"{prose(count(self._rows))}.", "")
        cells = [
            tuple(map(prose, (row.name, row.gate, row.word, _short(row.summary))))
            for row in self._rows[:_MOST]
        ]
        yield from table(("shard", "gate", "status", "figures"), cells)
        if (more := len(self._rows) - _MOST) > 0:
            yield from ("", f"{more} more are in {_link(self._answer.file)}.")
        if spread := list(self._spread()):
            heads = ("gate", "figure", "shards", "least", "median", "most", "sum")
            yield from ("", *table(heads, spread))
        for title, name, description in self._answer.charts:
            yield from ("", f"![{prose(title)}]({name})", "", prose(description))

    def _spread(self) -> Iterator[tuple[str, ...]]:
        """Over shards: the least, the median and the most of each figure that has a limit."""
        values: dict[tuple[str, str], list[Figure]] = {}
        for row, verdict in self._verdicts:
            for figure in verdict.figures:
                if figure.limit is not None and not isinstance(figure.value, str):
                    values.setdefault((row.gate, figure.name), []).append(figure)
        for (gate, name), figures in values.items():
            if len(figures) > 1:
                numbers = sorted(float(figure.value) for figure in figures)
                unit, size = figures[0].unit, len(numbers)
                texts = [amount(numbers[i], unit) for i in (0, size // 2, size - 1)]
                total = amount(sum(numbers), unit) if unit == "bytes" else ""
                yield prose(gate), prose(figures[0].label or name), f"{size}", *texts, total

    def _surprise(self) -> Iterator[str]:
        yield from self._wrong()
        yield ""
        if self._answer.last is None:
            yield "No earlier write-up has these shards."
            return
        stem, before = self._answer.last
        yield from (f"Since [{stem}]({stem}.md):", "")
        lines = [*_settings(before, self._run), *self._changes(before)]
        yield from (f"- {line}" for line in lines[:_MOST] or ["no figure and no status changed"])
        if (more := len(lines) - _MOST) > 0:
            yield f"- and {more} more"

    def _wrong(self) -> Iterator[str]:
        """What is red, unproven or warned."""
        wrong = [row for row in self._rows if row.status != "passed"]
        for row in wrong[:_MOST]:
            words = f"{row.gate} {row.status}{', which the policy allows' if row.allowed else ''}"
            why = "; ".join(row.reasons) or row.summary
            yield f"- **{prose(row.name)}** {prose(f'{words}: {why}')}"
        if (more := len(wrong) - _MOST) > 0:
            yield f"- {more} more are in {_link(self._answer.file)}"
        for row, verdict in self._verdicts:
            for finding in verdict.findings:
                if finding.kind == CAUSE:
                    at = (
                        f" ({finding.where.noun} {finding.where.name})"
                        if finding.where.noun
                        else ""
                    )
                    yield f"- {prose(f'cause of the error of {row.subject}: {finding.reason}{at}')}"
        warnings = self._subjects("warned", lambda finding: finding.kind or finding.reason)
        for (gate, what), subjects in warnings.items():
            yield f"- {prose(f'{gate} warns: {what} ({few(subjects)})')}"
        if not wrong and not warnings:
            yield (
                "Nothing is red, warned or unproven." if self._rows
                else "No gate came to a verdict."
            )  # fmt: skip

    def _subjects(
        self, severity: str, text: Callable[[Finding], str]
    ) -> dict[tuple[str, str], list[str]]:
        """Subjects by gate and text of their findings."""
        made: dict[tuple[str, str], dict[str, None]] = {}
        for row, verdict in self._verdicts:
            for finding in verdict.findings:
                if finding.severity == severity and (words := text(finding)):
                    made.setdefault((row.gate, words), {})[row.subject] = None
        return {key: list(subjects) for key, subjects in made.items()}

    def _changes(self, before: Run) -> Iterator[str]:
        """Statuses and figures that differ, of what was measured alike."""
        old = {(row.gate, row.subject, row.test): row for row in before.rows}
        alike = before.facts.machine == self._run.facts.machine
        for row in self._rows:
            if (earlier := old.get((row.gate, row.subject, row.test))) is None:
                continue
            who = f"{prose(f'{row.subject} {row.gate}')}:"
            if earlier.status != row.status:
                yield f"{who} {prose(earlier.status)} -> **{prose(row.status)}**"
            then, now = verdict_of(earlier.data), verdict_of(row.data)
            if then is None or now is None:
                continue
            if (means := _means(then)) == _means(now):
                yield from (f"{who} {line}" for line in _figures(then, now, alike))
            else:
                words = prose(f"measured by {means}, then by {_means(now)}")
                yield f"{who} {words}, so no figure is compared"

    def _next(self) -> Iterator[str]:
        lines = [*self._remedies()]
        for document in self._answer.documents:
            lines += map(prose, suggestions(document))
        if waiting := [row.name for row in self._rows if row.status == "not run"]:
            verdicts = "1 verdict waits" if len(waiting) == 1 else f"{len(waiting)} verdicts wait"
            lines.append(f"{verdicts} for the canary: {prose(few(waiting))}")
        red = list(dict.fromkeys(row.subject for row in self._rows if row.red and row.gate))
        if red:
            lines.append(f"Then run again: {code(self._run.command(*red[:_MOST]))}")
        elif self._rows:
            lines += self._ungated()
        if any(verdict.basis == "forecast" for _, verdict in self._verdicts):
            command = code(f"{self._run.command(marker='placement')} --ane-record")
            lines.append(f"Placement is a forecast; only a plan of a Mac can say: {command}")
        lines = list(dict.fromkeys(lines))
        yield from (f"- {line}" for line in lines[:_MOST])
        if not lines:
            yield "This run suggests nothing."

    def _remedies(self) -> Iterator[str]:
        """What findings advise, those that decide first, with the shards it is for."""
        made: dict[str, dict[str, None]] = {}
        for severity in _SEVERITIES:
            for (_, advice), subjects in self._subjects(severity, _advice).items():
                made.setdefault(advice, {}).update(dict.fromkeys(subjects))
        for advice, names in made.items():
            yield f"{advice} {prose(f'({few(list(names))})')}"

    def _ungated(self) -> Iterator[str]:
        for model, left in self._answer.ungated.items():
            shards = "shard" if len(left) == 1 else f"{len(left)} shards"
            what = f"{shards} of {prose(model)}"
            if len(left) <= _NAMED:
                yield f"Gate the other {what}: {code(self._run.command(*left))}"
            else:
                command = code(self._run.command(model))
                yield f"{what} have no verdict; gate the whole model: {command}"

    def _references(self) -> Iterator[str]:
        rules: dict[str, Rule] = {}
        hazards: dict[str, str] = {}
        for _, verdict in self._verdicts:
            for match in verdict.records("matches"):
                outcome = cast(Any, match.get("outcome"))
                if (rule := find(str(match.get("rule")), outcome)) is not None:
                    rules[rule.id] = rule
            titles = {met.get("hazard") for met in verdict.records("hazards")}
            met = [known for known in KNOWN.values() if known.title in titles]
            hazards |= {known.title: f"{known.source} ({known.grade})" for known in met}
        for id, rule in sorted(rules.items()):
            title = rule.title.rstrip(".")
            yield f"- {prose(f'{id}, {title}: {rule.source} ({rule.grade})')}"
        yield from (f"- {prose(f'hazard {what}: {source}')}" for what, source in hazards.items())
        if gates := sorted({row.gate for row in self._rows} & GATES.keys()):
            yield f"- [What the gates check]({_GATES}): {', '.join(gates)}"
        kept = self._answer.writeup.beside(".toml")
        if kept.is_file():
            yield f"- [The manifest as it was when the intent was recorded]({kept.name})"
        yield f"- [The run with all figures]({self._answer.file})"


def _advice(finding: Finding) -> str:
    """A remedy as Markdown; keys of a manifest, which stand after a cause, as code."""
    remedy = finding.remedy
    return code(remedy) if finding.kind == CAUSE else prose(f"{remedy[:1].upper()}{remedy[1:]}")


def _settings(before: Run, after: Run) -> Iterator[str]:
    """What is different besides the code."""
    if before.facts.digest != after.facts.digest:
        yield "the manifest changed"
    old, new = (dict(run.facts.versions) | dict(run.facts.machine) for run in (before, after))
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) != new.get(name):
            yield prose(f"{name} {old.get(name, 'none')} -> {new.get(name, 'none')}")


def _figures(then: Verdict, now: Verdict, alike: bool) -> Iterator[str]:
    """Figures that are shown or have a limit, and differ as people read them."""
    for figure in now.figures:
        old = then.figure(figure.name)
        decides = figure.shown or figure.limit is not None
        timed = figure.unit in _TIMED and not alike
        if old is not None and decides and not timed and figure_text(old) != figure_text(figure):
            yield prose(f"{amount(old.value, old.unit)} -> {figure_text(figure)}")


def _means(verdict: Verdict) -> str:
    """What measured: backend, arithmetic and basis."""
    words = (str(verdict.provenance.get(key, "")) for key in ("backend", "arithmetic"))
    return " ".join(filter(None, (*words, verdict.basis))) or "reading the package"


def _pairs(words: Mapping[str, str]) -> str:
    return prose(", ".join(f"{name} {value}" for name, value in words.items())) or "unknown"


def _link(name: str) -> str:
    return f"[{name}]({name})"


def _short(text: str) -> str:
    return printable(text, _SHORT)
