"""A run as the answer to an intent: what it answers, what speaks against it, what was before.

Whatever the template `writeup.md` prints is escaped, and absolute paths are cut to their last part,
for a write-up is published; `_Markdown` is the one text that is printed as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from hashlib import sha256
from itertools import filterfalse
from typing import Any, cast

from jinja2 import Environment, PackageLoader, StrictUndefined

from pytest_ane.gates.hazards.judge import KNOWN
from pytest_ane.gates.placement.rules import Rule, find
from pytest_ane.gates.registry import GATES
from pytest_ane.gates.verdict import CAUSE, Finding, Verdict, some
from pytest_ane.manifest import Manifest, Shard, parse
from pytest_ane.manifest.base import loads
from pytest_ane.manifest.compression import setting_keys
from pytest_ane.manifest.ids import select, without_function
from pytest_ane.manifest.problems import toml_text, toml_value
from pytest_ane.mlprogram.errors import AneError, ReportError
from pytest_ane.mlprogram.groups import grouped
from pytest_ane.mlprogram.text import printable
from pytest_ane.project.entries import expanded
from pytest_ane.records.verify import differences
from pytest_ane.report import markdown
from pytest_ane.report.html.subjects import changes_of, subjects
from pytest_ane.report.run import Row, Run, against, ranked, read_run, verdict_of
from pytest_ane.report.table import amount, limit_of
from pytest_ane.report.terminal import brief
from pytest_ane.report.writeups import SECTIONS, WRITTEN, WriteUp, paths

_SEVERITIES = ("failed", "unproven", "warned", "note")
_MOST = 60
"""Lines of a list, or rows of a table; a run's file has all of them."""
_SHORT = 300
"""Characters of a verdict in a table."""
_NAMED = 12
"""Shards that a command or a sentence names; of more, the whole model."""
_TITLE = 80
"""Characters of a page's title."""
_LOCAL = ("cache ", "store ", "cluster ")
"""Parts of a run's header that only its machine knows."""
_few = partial(some, most=_NAMED)


@dataclass(frozen=True)
class Answer:
    """A write-up and all that is known of its run.

    Attributes:
        before: the manifest's bytes when the intent was recorded; None where they are gone.
        last: stem and run of the last write-up of the same shards.
        charts: title, file's name and description of each picture.
    """

    writeup: WriteUp
    run: Run
    before: bytes | None = None
    last: tuple[str, Run] | None = None
    charts: tuple[tuple[str, str, str], ...] = ()

    @cached_property
    def due(self) -> tuple[str, ...] | None:
        """Qualified ids of the selection that was recorded; None where nobody can tell."""
        if (manifest := self._manifest(_text(self.before))) is None:
            return None
        try:
            return tuple(s.qualified for s in select(manifest, self.writeup.head.shards))
        except AneError:
            return None

    @cached_property
    def shards(self) -> tuple[Shard, ...]:
        """Those of the manifest that the run read."""
        manifest = self._manifest("\n".join(self.run.facts.manifest_text))
        return manifest.shards if manifest else ()

    def _manifest(self, text: str) -> Manifest | None:
        try:
            file = self.writeup.path.parent / self.writeup.head.manifest
            return expanded(parse(text, file)) if text else None
        except AneError:
            return None

    @property
    def changed(self) -> bool:
        """Whether the run read another manifest than was recorded."""
        return self.before is None or self.run.facts.digest != sha256(self.before).hexdigest()

    @cached_property
    def gated(self) -> set[str]:
        """Subjects with a verdict, without the functions of their packages."""
        return {_base(row.subject) for row in self.run.rows if row.gate}

    def about(self, subject: str) -> bool:
        """Whether the intent is about a shard or a model, as far as anybody can tell."""
        if self.due is None:
            return True
        models = {id.partition(":")[0] for id in self.due}
        return _base(subject) in {*map(_base, self.due), *models}

    @property
    def missing(self) -> list[str]:
        """Shards that the intent is about, and that have no verdict."""
        return [id for id in self.due or () if _base(id) not in self.gated]

    @property
    def ungated(self) -> dict[str, list[str]]:
        """Shards without a verdict, by model, of models of which some have one."""
        gated = {row.subject for row in self.run.rows if row.gate}
        begun = {shard.model for shard in self.shards if shard.qualified in gated}
        left = (shard for shard in self.shards if shard.qualified not in gated)
        return grouped((s.model, s.qualified) for s in left if s.model in begun)


def _text(manifest: bytes | None) -> str:
    return (manifest or b"").decode("utf-8-sig", errors="replace")


def outcome(answer: Answer) -> tuple[str, str]:
    """Whether an intent is met: `Met`, `Not met` or `Open`, and why.

    It is met where every gate of its shards passed; without evidence it is open.
    """
    rows = [row for row in ranked(answer.run.rows) if row.gate and answer.about(row.subject)]
    left = [(f"{row.subject} {row.gate}", row.status) for row in rows if row.status != "passed"]
    told = f"{len(rows) - len(left)} of {amount(len(rows), 'verdicts')} passed"
    if failed := [name for name, status in left if status == "failed"]:
        return "Not met", f"{told}; {_few(failed)} failed."
    reasons = {
        "came to no answer": [name for name, _ in left],
        "have no verdict": answer.missing,
        "broke down": [row.subject for row in answer.run.rows if not row.gate],
    }
    why = [f"; {_few(names)} {what}" for what, names in reasons.items() if names]
    return "Met" if rows and not why else "Open", f"{told}{''.join(why)}."


def caveats(answer: Answer) -> Iterator[str]:
    """What speaks against taking the result for an answer to the intent, a sentence each."""
    head, facts = answer.writeup.head, answer.run.facts
    intent = answer.writeup.sections.get("Intent", "")
    if not f"{intent}\n".startswith(f"{head.intent}\n"):
        yield "The intent was changed after it was recorded."
    if not facts.started:
        yield "The run does not say when it began, so the intent may be younger than the result."
    elif facts.begun < head.recorded:
        yield "The intent was written after the result."
    if answer.changed:
        yield f"The manifest was changed after the intent was recorded{_changed_keys(answer)}."
    if facts.stopped:
        yield f"The run ended early ({facts.stopped.rstrip('.')})."
    if answer.due is None and facts.selection != head.shards:
        yield f"The intent is about {head.shards}, and the run gated {facts.selection}."
    if answer.missing:
        yield f"The run has no verdict of {_few(answer.missing)}."
    if others := sorted(filterfalse(answer.about, answer.gated)):
        yield f"The run also gated {_few(others)}, which the intent is not about."
    if facts.commit != head.commit:
        before, after = (commit[:12] or "no commit" for commit in (head.commit, facts.commit))
        yield f"The run is of another commit than the intent: {before}, then {after}."


def _changed_keys(answer: Answer) -> str:
    try:
        old, new = loads(_text(answer.before)), loads("\n".join(answer.run.facts.manifest_text))
    except ValueError:
        return ""
    changes = [
        f"{key} {' -> '.join('absent' if v is None else toml_value(v) for v in values)}"
        for key, *values in differences(old, new)
    ]
    return f": {'; '.join(changes)}" if changes else ", in no key"


def last_of(writeup: WriteUp, run: Run) -> tuple[str, Run] | None:
    """Stem and run of the newest earlier write-up with a verdict of one of a run's shards."""
    asked = {(row.gate, row.subject) for row in run.rows if row.gate}
    for path in reversed([p for p in paths(writeup.path.parent) if p.name < writeup.path.name]):
        try:
            other = read_run(path.with_suffix(".jsonl"))
        except ReportError:
            continue
        if any((row.gate, row.subject) in asked for row in other.rows):
            return path.stem, other
    return None


def _base(subject: str) -> str:
    return without_function(subject)[0]


def intent_of(text: str) -> str:
    """An intent as it stands on the page: one paragraph, whose punctuation means nothing."""
    if not any(character.isalnum() for character in text):
        raise ReportError("The intent is empty; say in a sentence what you want to find out.")
    return markdown.prose(" ".join(text.split()))


def blank(number: int, intent: str) -> str:
    """The body of a page whose intent is recorded; of a long one the title has the first words."""
    cut = intent[:_TITLE].rpartition(" ")[0] or intent[:_TITLE]
    title = intent if len(intent) <= _TITLE else f"{cut} ..."
    texts = dict.fromkeys(SECTIONS, "*What you learned: write it here in place of this line.*")
    texts |= dict.fromkeys(WRITTEN, "*Not run yet: `pytest-ane report --writeup` writes this.*")
    texts["Intent"] = intent
    sections = "".join(f"\n## {title}\n\n{text}\n" for title, text in texts.items())
    return f"\n# {number:03d}: {title}\n{sections}"


def sections(answer: Answer) -> dict[str, str]:
    """The text of each section that a run fills, by its title; `ReportError` for a damaged run."""
    run, facts, rows = answer.run, answer.run.facts, ranked(answer.run.rows)
    verdicts = [(row, made) for row in rows if (made := verdict_of(row.data)) is not None]
    findings = [(row, finding) for row, verdict in verdicts for finding in verdict.findings]
    warned = (
        (f"{row.gate} warns: {finding.kind or finding.reason}", row.subject)
        for row, finding in findings
        if finding.severity == "warned"
    )
    digests = {(row.subject, str(v.provenance.get("artifact") or "")) for row, v in verdicts}
    advised = sorted(findings, key=lambda pair: _SEVERITIES.index(pair[1].severity))
    hazards = {met.get("hazard") for _, verdict in verdicts for met in verdict.records("hazards")}
    header = run.header.removeprefix("ane: ").split(" · ")
    text = _template().render(
        answer=answer, writeup=answer.writeup, head=answer.writeup.head, run=run, facts=facts,
        file=answer.writeup.beside(".jsonl").name,
        most=_MOST, named=_NAMED,
        compression=grouped(
            (toml_text(setting_keys(s.compression)) if s.compression else "none was asked for",
             s.qualified)
            for s in answer.shards if _base(s.qualified) in answer.gated
        ),
        configuration=" · ".join(part for part in header if not part.startswith(_LOCAL)),
        machine={k: v for k, v in facts.machine.items() if k not in facts.versions},
        packages=sorted(pair for pair in digests if pair[1]),
        outcome=outcome(answer),
        caveats=list(caveats(answer)),
        rows=[(row.name, row.gate, row.word, printable(row.summary, _SHORT)) for row in rows],
        figures=list(_spread(verdicts)),
        wrong=[(r, "; ".join(r.reasons) or r.summary) for r in rows if r.status != "passed"],
        causes=[(row.subject, finding) for row, finding in findings if finding.kind == CAUSE],
        warnings=grouped(dict.fromkeys(warned)),
        changes=list(_changes(answer)),
        remedies=grouped(dict.fromkeys((_advice(f), r.subject) for r, f in advised if f.remedy)),
        waiting=[row.name for row in rows if row.status == "not run"],
        red=list(dict.fromkeys(row.subject for row in rows if row.red and row.gate))[:_MOST],
        forecast=any(verdict.basis == "forecast" for _, verdict in verdicts),
        rules=_rules(verdicts),
        hazards=[known for known in KNOWN.values() if known.title in hazards],
        gates=sorted({row.gate for row in rows} & GATES.keys()),
    )  # fmt: skip
    text = re.sub(r"\n{3,}", "\n\n", text)
    return WriteUp(answer.writeup.path, answer.writeup.head, text).sections


_Verdicts = Sequence[tuple[Row, Verdict]]


def _spread(verdicts: _Verdicts) -> Iterator[tuple[str, ...]]:
    """Figures with a limit, extremes that are shown, and their means; over shards the spread."""
    values: dict[tuple[str, str, str, str], list[float]] = {}
    for row, verdict in verdicts:
        names = {
            f.name for f in verdict.figures
            if f.limit is not None or (f.shown and f.name.endswith((".min", ".max")))
        }  # fmt: skip
        names |= {f"{name.removesuffix('.min')}.mean" for name in names}
        for figure in verdict.figures:
            if figure.name in names and not isinstance(figure.value, str):
                sign, limit = "least" if figure.good == "above" else "most", figure.limit
                asks = "" if limit is None else f"at {sign} {limit_of(limit, figure.unit)}"
                place = (row.gate, figure.label or figure.name, asks, figure.unit)
                values.setdefault(place, []).append(figure.value)
    for (*key, unit), numbers in values.items():
        numbers.sort()
        spread = [amount(numbers[at], unit) for at in (0, len(numbers) // 2, -1)]
        yield (*key, *(("", *spread) if len(numbers) > 1 else (spread[0], "", "", "")))


def _changes(answer: Answer) -> Iterator[str]:
    if answer.last is None:
        return
    run = against(answer.run, before := answer.last[1])
    if before.facts.digest != run.facts.digest:
        yield "the manifest changed"
    old, new = ({**r.facts.versions, **r.facts.machine} for r in (before, run))
    yield from (f"{name} {then} -> {now}" for name, then, now in differences(old, new))
    changes = changes_of(run, subjects(run))
    for turn in changes["turns"]:
        yield "{subject} {gate}: {before} -> {after}".format_map(turn)
    yield from changes["asked"]
    for each in changes["figures"]:
        yield f"{each.subject} {each.gate}: {each.figure} {each.before} -> {each.after}"


def _advice(finding: Finding) -> str:
    remedy = finding.remedy
    return _code(remedy) if finding.kind == CAUSE else f"{remedy[:1].upper()}{remedy[1:]}"


def _rules(verdicts: _Verdicts) -> list[Rule]:
    matches = (match for _, verdict in verdicts for match in verdict.records("matches"))
    found = (find(str(m.get("rule")), cast(Any, m.get("outcome"))) for m in matches)
    rules = {rule.id: rule for rule in found if rule is not None}
    return [rules[id] for id in sorted(rules)]


class _Markdown(str):
    """A text that is Markdown, printed as it is."""

    __slots__ = ()


def _printed(value: object) -> str:
    return value if isinstance(value, _Markdown) else markdown.prose(brief(str(value)))


def _code(text: object) -> _Markdown:
    return _Markdown(markdown.code(brief(str(text))))


def _table(rows: Sequence[Sequence[str]] | Mapping[str, str], *head: str) -> _Markdown:
    cells = [tuple(map(_printed, row)) for row in rows]
    return _Markdown("\n".join(markdown.table(head, cells)) if cells else "")


def _link(file: str, text: str = "") -> _Markdown:
    return _Markdown(f"[{markdown.prose(text or file)}]({file})")


@cache
def _template() -> Any:
    environment = Environment(
        loader=PackageLoader("pytest_ane.report"), autoescape=False, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=_printed,
    )  # fmt: skip
    environment.filters |= {
        "amount": amount, "code": _code, "few": _few, "link": _link, "table": _table,
        "pairs": lambda words: ", ".join(f"{k} {v}" for k, v in words.items()) or "unknown",
        "fenced": lambda text: _Markdown(markdown.fenced(brief(str(text)))),
        "picture": lambda file, title: _Markdown(f"!{_link(file, title)}"),
    }  # fmt: skip
    return environment.get_template("writeup.md")
