"""The sections of a write-up: literal examples of small runs."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from markdown_it import MarkdownIt

from pytest_ane.gates.verdict import Column, Figure, Finding, Table, Verdict, Where
from pytest_ane.mlprogram.errors import ReportError
from pytest_ane.records.run import Facts
from pytest_ane.report.run import Row, Run
from pytest_ane.report.verdict import reasons, row, to_json
from pytest_ane.report.writeups import SECTIONS, WRITTEN, Head, WriteUp
from pytest_ane.tools._writeup import Answer, blank, caveats, intent_of, last_of, outcome, sections
from pytest_ane.tools.blame import CAUSE
from tests.hostile import HOSTILE
from tests.records.runs import reread, save_run

INTENT = intent_of("4-bit palettes on L01")
HEAD = Head(INTENT, "2026-11-24T16:00:00Z", "../shards.toml", "L01,L03", "c" * 40)
MANIFEST = """[models.m]
builder = "json:dumps"
shards = "L01, L03"
compression = { method = "palettize", nbits = 4 }
"""
SHA = sha256(MANIFEST.encode()).hexdigest()
FACTS = Facts(
    started="2026-11-24T16:00:09Z",
    seconds=3.5,
    arguments=("--ane-shards=L01,L03", "-m", "gate", "--ane-report=experiments/002-x.jsonl"),
    selection="L01,L03",
    manifest="shards.toml",
    digest=SHA,
    manifest_text=tuple(MANIFEST.splitlines()),
    commit="c" * 40,
    clean=True,
    versions={"pytest-ane": "0.1.0", "coremltools": "9.0"},
    machine={"backend": "cpu", "pytest-ane": "0.1.0", "machine": "Linux x86_64"},
)
COSINE = Figure("cosine.min", 0.9412, label="cosine", limit=0.97, good="above")
FIDELITY = Verdict(
    "fidelity",
    "m:L01",
    (COSINE,),
    (
        Finding(
            "failed", "cosine is 0.9412", Where(probe="gaussian"), "keep `fc1` in fp16",
            figure="cosine.min",
        ),
        Finding("warned", "probe is near zero", Where(probe="ragged"), "leave it out"),
    ),
    provenance={"backend": "cpu", "artifact": "5f" * 32},
)  # fmt: skip
COMPRESSION = Verdict(
    "compression",
    "m:L01",
    (Figure("size_bytes", 1_020_000, "bytes", limit=2_000_000, good="below", shown=True),),
)
UNPROVEN = Verdict("placement", "m:L01", findings=(Finding("unproven", "No evidence"),))
PLACEMENT = Verdict(
    "placement",
    "m:L01",
    (Figure("likely_ane_ops", 3, "ops for the ANE", of=4, shown=True),),
    (Finding("failed", "gather `g` is ineligible (R009)", Where(op="g"), "gather on the host"),),
    (
        Table(
            "operations that a rule applies to",
            tuple(map(Column, ("rule", "outcome", "op", "name", "function", "reason"))),
            (("R009", "ineligible", "gather", "g", "", "why"),),
            "matches",
        ),
    ),
    basis="forecast",
)


def as_row(verdict: Verdict, **more: object) -> Row:
    why = tuple(reasons(verdict))
    made = Row(verdict.gate, verdict.subject, verdict.status, row(verdict), reasons=why)
    return replace(made, data=to_json(verdict), **more)


def run_of(*verdicts: Verdict, **facts: object) -> Run:
    """A run as it is read back from its file."""
    run = Run("ane: L01 · seed 7", tuple(map(as_row, verdicts)), replace(FACTS, **facts))
    return reread(run)


OTHER = replace(COMPRESSION, subject="m:L03", figures=(
    replace(COMPRESSION.figures[0], value=1_500_000),
))  # fmt: skip


def answer_of(run: Run, shards: str = "L01", **more: object) -> Answer:
    head = replace(HEAD, shards=shards)
    writeup = WriteUp(Path("none/002-x.md"), head, blank(2, INTENT))
    if shards == "L01":
        run = replace(run, facts=replace(run.facts, selection=run.facts.selection or "L01"))
    return Answer(writeup, run, **{"before": MANIFEST.encode(), **more})  # type: ignore[arg-type]


def sections_of(run: Run, shards: str = "L01", **more: object) -> dict[str, str]:
    return sections(answer_of(run, shards, **more))


def test_setup_says_what_was_asked_and_publishes_no_path() -> None:
    run = run_of(
        FIDELITY, UNPROVEN, arguments=("--ane-manifest=/home/me/p/shards.toml", "-m", "gate")
    )
    run = replace(run, header="ane: L01 · seed 7 · cache /home/me/cache · store /mnt/x")
    assert sections_of(run)["Setup"] == (
        "- Manifest: `../shards.toml`, as it was when the intent was recorded\n"
        "- Intent: recorded 2026-11-24T16:00:00Z\n"
        "- Run: begun 2026-11-24T16:00:09Z, 3.50 s\n"
        "- Commit: `cccccccccccc`\n"
        '- Compression: `{ method = "palettize", mode = "kmeans", nbits = 4, group_size = 32 }`\n'
        "- Configuration: L01 · seed 7\n"
        "- Machine: backend cpu, machine Linux x86_64\n"
        "- Versions: pytest-ane 0.1.0, coremltools 9.0\n"
        "\n```text\npytest --ane-shards=L01,L03 --ane-manifest=shards.toml -m gate\n```\n\n"
        f"| shard | SHA-256 of its package |\n| --- | --- |\n| m:L01 | {'5f' * 32} |"
    )


@pytest.mark.parametrize(
    ("rows", "shards", "word", "reason"),
    [
        ((COMPRESSION,), "L01", "Met", "1 of 1 verdict passed."),
        ((FIDELITY, COMPRESSION), "L01", "Not met",
         "1 of 2 verdicts passed; m:L01 fidelity failed."),
        ((COMPRESSION,), "L01,L03", "Open", "1 of 1 verdict passed; m:L03 have no verdict."),
        ((COMPRESSION, UNPROVEN), "L01", "Open",
         "1 of 2 verdicts passed; m:L01 placement came to no answer."),
        ((), "L01", "Open", "0 of 0 verdicts passed; m:L01 have no verdict."),
    ],
)  # fmt: skip
def test_an_intent_is_met_not_met_or_open(
    rows: tuple[Verdict, ...], shards: str, word: str, reason: str
) -> None:
    answer = answer_of(run_of(*rows), shards)
    found = outcome(answer)
    assert found == (word, reason)
    assert sections(answer)["Result"].startswith(f"**{word}**: {reason}")


def test_what_the_policy_lets_be_and_what_broke_down_leaves_an_intent_open() -> None:
    run = run_of(COMPRESSION)
    rows = as_row(UNPROVEN, allowed=True), Row("", "test_a.py", "error", "no such file")
    word, reason = outcome(answer_of(replace(run, rows=(*run.rows, *rows))))
    assert (word, reason) == (
        "Open",
        "1 of 2 verdicts passed; m:L01 placement came to no answer; test_a.py broke down.",
    )


def test_result_names_minimum_and_mean_beside_the_limit() -> None:
    mean = Figure("cosine.mean", 0.98, label="mean cosine")
    verdict = replace(FIDELITY, figures=(COSINE, mean))
    text = sections_of(
        run_of(verdict, COMPRESSION), charts=(("KL [a]", "002-x.kl.svg", "It _grows_."),)
    )["Result"]
    assert text == (
        "**Not met**: 1 of 2 verdicts passed; m:L01 fidelity failed.\n"
        "\n"
        "| shard | gate | status | figures |\n"
        "| --- | --- | --- | --- |\n"
        "| m:L01 | fidelity | FAILED | cosine 0.9412 &#60; 0.97 · probe is near zero |\n"
        "| m:L01 | compression | passed | 1.02 MB (at most 2 MB) |\n"
        "\n"
        "| gate | figure | limit | value |\n"
        "| --- | --- | --- | --- |\n"
        "| fidelity | cosine | at least 0.97 | 0.9412 |\n"
        "| fidelity | mean cosine |  | 0.9800 |\n"
        "| compression | size_bytes | at most 2 MB | 1.02 MB |\n"
        "\n"
        "![KL \\[a\\]](002-x.kl.svg)\n"
        "\n"
        r"It \_grows\_."
    )


def test_result_of_several_shards_has_what_they_come_to() -> None:
    assert sections_of(run_of(COMPRESSION, OTHER), "L01,L03")["Result"].endswith(
        "| gate | figure | limit | least | median | most |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        "| compression | size_bytes | at most 2 MB | 1.02 MB | 1.50 MB | 1.50 MB |"
    )


def test_surprise() -> None:
    run = run_of(FIDELITY, COMPRESSION)
    run = replace(run, rows=(*run.rows, as_row(UNPROVEN, allowed=True)))
    assert sections_of(run)["Surprise"] == (
        "- **m:L01** fidelity failed: cosine is 0.9412; keep \\`fc1\\` in fp16\n"
        "- **m:L01** placement unproven, which the policy allows: No evidence\n"
        "- fidelity warns: probe is near zero (m:L01)\n"
        "\n"
        "No earlier write-up has these shards."
    )
    assert sections_of(run_of(COMPRESSION))["Surprise"].startswith("Nothing is red")


def test_a_cause_and_its_override() -> None:
    keys = 'weights = "fc1", nbits = 6'
    cause = Finding("note", "fc1 makes the error", Where(weight="fc1"), keys, kind=CAUSE)
    made = sections_of(run_of(replace(FIDELITY, findings=(*FIDELITY.findings, cause))))
    line = "- cause of the error of m:L01: fc1 makes the error (weight fc1)\n- fidelity warns"
    assert line in made["Surprise"]
    assert f"- `{keys}` (m:L01)" in made["Next"]


def test_what_changed_since_the_last_one() -> None:
    better = replace(FIDELITY, figures=(replace(COSINE, value=0.9801),), findings=())
    device, cpu = (
        replace(COMPRESSION, provenance={"backend": backend}) for backend in ("coreml", "cpu")
    )
    versions = {"pytest-ane": "0.1.0", "coremltools": "8.3"}
    before = run_of(better, device, versions=versions)
    text = sections_of(run_of(FIDELITY, cpu), last=("001-w", before))["Surprise"]
    assert text.endswith(
        "Since [001-w](001-w.md):\n"
        "\n"
        "- coremltools 8.3 -> 9.0\n"
        "- m:L01 fidelity: passed -> failed\n"
        "- figures of 1 verdict are not compared: another backend or machine measured them before\n"
        "- m:L01 fidelity: cosine 0.9801 -> 0.9412"
    )
    same = sections_of(run_of(FIDELITY), last=("001-w", run_of(FIDELITY)))["Surprise"]
    assert same.endswith("- no figure and no status changed")


def test_next_of_a_red_run() -> None:
    waiting = Row("fidelity", "m:L03", "not run", "waits for L01", reasons=("waits for L01",))
    run = run_of(FIDELITY, PLACEMENT)
    run = replace(run, rows=(*run.rows, waiting))
    assert sections_of(run)["Next"] == (
        "- Keep \\`fc1\\` in fp16 (m:L01)\n"
        "- Gather on the host (m:L01)\n"
        "- Leave it out (m:L01)\n"
        "- 1 verdict waits for the canary: m:L03\n"
        "- Then run again: `pytest --ane-shards=m:L01,m:L03 -m gate`\n"
        "- Placement is a forecast; only a plan of a Mac can say: "
        "`pytest --ane-shards=L01,L03 -m placement --ane-record`"
    )


def test_next_of_a_green_run() -> None:
    assert sections_of(run_of(COMPRESSION, OTHER))["Next"] == "This run suggests nothing."
    assert sections_of(run_of(COMPRESSION))["Next"] == (
        "- 1 of the shards of m has no verdict; gate them: `pytest --ane-shards=m:L03 -m gate`"
    )
    many = MANIFEST.replace("L01, L03", "L00-L15").splitlines()
    run = run_of(COMPRESSION, manifest_text=tuple(many))
    assert sections_of(run)["Next"] == (
        "- 15 of the shards of m have no verdict; gate the whole model: "
        "`pytest '--ane-shards=m:*' -m gate`"
    )


def test_references_name_the_sources_of_rules_that_spoke() -> None:
    peaks = Table(
        "hazards",
        tuple(map(Column, ("operation", "kind", "hazard", "probe", "value", "limit", "rule"))),
        (("a", "conv", "largest |sum|", "gaussian", 4e4, 32768.0, "recorded"),),
        "hazards",
    )
    hazards = Verdict("hazards", "m:L01", tables=(peaks,))
    lines = sections_of(run_of(PLACEMENT, hazards), before=None)["References"].splitlines()
    assert lines[0].startswith("- R009, ")
    assert lines[1] == (
        r"- hazard largest \|sum\|: 751K/Apple-Neural-Engine-Microarchitecture-Study-M6, "
        "final_report/en.md chapter 8 (recorded)"
    )
    assert lines[2].startswith("- [What the gates check](https://github.com/")
    assert lines[2].endswith("): hazards, placement")
    assert lines[3:] == ["- [The run with all figures](002-x.jsonl)"]


CHANGED = MANIFEST.replace("nbits = 4", "nbits = 6").replace("[m", "# Why.\n[m", 1)


@pytest.mark.parametrize(
    ("facts", "more", "sentence"),
    [
        ({"started": "2026-11-24T15:59:59Z"}, {}, "The intent was written after the result."),
        ({"started": ""}, {}, "The run does not say when it began, so the intent may be younger "
         "than the result."),
        ({"stopped": "interrupted"}, {}, "The run ended early (interrupted)."),
        ({"commit": ""}, {}, "The run is of another commit than the intent: cccccccccccc, then no "
         "commit."),
        ({}, {"before": CHANGED.encode()}, "The manifest was changed after the intent was "
         "recorded: models.m.compression.nbits 6 -> 4."),
        ({}, {"before": f"# Why.\n{MANIFEST}".encode()}, "The manifest was changed after the "
         "intent was recorded, in no key."),
        ({"selection": "L02"}, {"before": b"[[["}, "The manifest was changed after the intent was "
         "recorded."),
        ({}, {"shards": "L01,L03"}, "The run has no verdict of m:L03."),
    ],
)  # fmt: skip
def test_caveats(facts: dict[str, object], more: dict[str, object], sentence: str) -> None:
    facts = {"selection": "L01", **facts}
    answer = answer_of(run_of(COMPRESSION, **facts), **more)  # type: ignore[arg-type]
    assert next(caveats(answer)) == sentence
    assert sentence.split(":")[0] in sections(answer)["Result"].split("\n\n")[1]


def test_no_caveat_and_those_of_the_page_itself() -> None:
    answer = answer_of(run_of(COMPRESSION))
    assert list(caveats(answer)) == []
    (also,) = caveats(answer_of(run_of(COMPRESSION, OTHER)))
    assert also == "The run also gated m:L03, which the intent is not about."
    added = answer.writeup.with_sections({"Intent": f"{INTENT}\n\nMine."})
    assert list(caveats(replace(answer, writeup=added))) == []
    changed = answer.writeup.with_sections({"Intent": "6-bit palettes"})
    for page in (changed, replace(answer.writeup, body="\n# 002: nothing\n")):
        (sentence,) = caveats(replace(answer, writeup=page))
        assert sentence == "The intent was changed after it was recorded."


def test_damaged_figures_are_one_sentence() -> None:
    run = run_of(COMPRESSION)
    rows = (replace(run.rows[0], data={"figures": [{"name": 3}], "gate": "g", "subject": "s"}),)
    with pytest.raises(ReportError, match="The report's verdict g of s is damaged"):
        sections_of(replace(run, rows=rows))


@given(text=HOSTILE)
def test_any_intent_is_one_paragraph_of_its_section(text: str) -> None:
    assume(any(map(str.isalnum, text)))
    intent = intent_of(text)
    page = WriteUp(Path("001-a.md"), HEAD, blank(1, intent))
    assert list(page.sections) == [*SECTIONS]
    assert page.sections["Intent"] == intent
    assert {page.sections[title][:12] for title in WRITTEN} == {"*Not run yet"}
    tokens = MarkdownIt("commonmark").parse(page.body)
    assert not [token.type for token in tokens if token.type.startswith("html")]
    assert sum(token.type == "heading_open" for token in tokens) == 8


@pytest.mark.parametrize("text", ["", " \n\t", "+++", "\u200b"])
def test_an_intent_that_says_nothing(text: str) -> None:
    with pytest.raises(ReportError, match="The intent is empty"):
        intent_of(text)


@settings(max_examples=30)
@given(text=HOSTILE)
def test_hostile_names_stay_text(text: str) -> None:
    odd = replace(FIDELITY, subject=text, findings=(Finding("failed", text, remedy=text),))
    run = run_of(odd, selection=text, commit=text, started=text)
    page = WriteUp(Path("001-a.md"), HEAD, blank(1, INTENT)).with_sections(sections_of(run))
    assert list(page.sections) == [*SECTIONS]
    tokens = MarkdownIt("commonmark").enable("table").parse(page.body)
    inline = [child for token in tokens for child in token.children or ()]
    assert not [child for child in inline if child.type == "html_inline"]
    assert all(
        child.attrGet("href").startswith(("https://github.com/pytest-ane/", "002-x.", "001-a."))
        for child in inline if child.type == "link_open"
    )  # fmt: skip
    assert not [token for token in tokens if token.type == "html_block"]


def test_the_last_write_up_of_the_same_shards(tmp_path: Path) -> None:
    now = run_of(FIDELITY)
    for stem, verdict in (("001-a", FIDELITY), ("002-b", FIDELITY), ("003-c", COMPRESSION)):
        WriteUp(tmp_path / f"{stem}.md", HEAD, "").save()
        save_run(tmp_path / f"{stem}.jsonl", run_of(verdict, selection=stem))
    (tmp_path / "002-b.jsonl").write_text("damaged")
    page = WriteUp(tmp_path / "004-d.md", HEAD, "")
    assert (last := last_of(page, now)) is not None
    assert (last[0], last[1].facts.selection) == ("001-a", "001-a")
    assert last_of(replace(page, path=tmp_path / "001-a.md"), now) is None
