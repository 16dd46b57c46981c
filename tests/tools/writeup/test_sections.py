"""The sections of a write-up: literal examples of small runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from pytest_ane.gates.verdict import Column, Figure, Finding, Table, Verdict, Where
from pytest_ane.mlprogram.errors import ReportError
from pytest_ane.records.run import Facts
from pytest_ane.report.rows import Row
from pytest_ane.report.run import Run
from pytest_ane.report.verdict import reasons, row, to_json
from pytest_ane.tools._writeup.answer import Answer, caveats, changed_keys, last_of, suggestions
from pytest_ane.tools._writeup.sections import LONGEST_INTENT, Sections, blank, intent_of
from pytest_ane.tools._writeup_data import SECTIONS, Head, WriteUp, digest_of, read, writeups
from tests.hostile import HOSTILE
from tests.records.runs import reread, save_run

INTENT = intent_of("4-bit palettes on L01")
HEAD = Head(
    2, digest_of(INTENT), "2026-11-24T16:00:00Z", "../shards.toml", "a" * 64, "L01", "c" * 40
)
FACTS = Facts(
    started="2026-11-24T16:00:09Z",
    seconds=3.5,
    arguments=("--ane-shards=L01", "-m", "gate", "--ane-report=experiments/002-x.jsonl"),
    selection="L01",
    manifest="shards.toml",
    digest="a" * 64,
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


def answer_of(run: Run, folder: Path = Path("none"), **more: object) -> Answer:
    writeup = WriteUp(folder / "002-x.md", HEAD, blank(2, INTENT))
    return Answer(writeup, run, "002-x.json", due=("m:L01",), **more)


def parts_of(run: Run, **more: object) -> dict[str, str]:
    return Sections(answer_of(run, **more)).parts()


def test_setup() -> None:
    assert parts_of(run_of(FIDELITY))["setup"] == (
        "- Manifest: `../shards.toml`, as it was when the intent was recorded; SHA-256 "
        "`aaaaaaaaaaaa`\n"
        "- Intent: recorded 2026-11-24T16:00:00Z\n"
        "- Run: begun 2026-11-24T16:00:09Z, 3.50 s\n"
        "- Commit: `cccccccccccc`\n"
        "- Configuration: L01 · seed 7\n"
        "- Machine: backend cpu, machine Linux x86_64\n"
        "- Versions: pytest-ane 0.1.0, coremltools 9.0\n"
        "\n```text\npytest --ane-shards=L01 -m gate\n```\n\n"
        f"| shard | SHA-256 of its package |\n| --- | --- |\n| m:L01 | `{'5f' * 32}` |"
    )


def test_result_of_one_shard_and_a_negative_result_is_one() -> None:
    assert parts_of(
        run_of(FIDELITY, COMPRESSION), charts=(("KL [a]", "002-x.kl.svg", "It _grows_."),)
    )["result"] == (
        "passed: fidelity 0/1, compression 1/1.\n"
        "\n"
        "| shard | gate | status | figures |\n"
        "| --- | --- | --- | --- |\n"
        "| m:L01 | fidelity | FAILED | cosine 0.9412 &#60; 0.97 · probe is near zero |\n"
        "| m:L01 | compression | passed | 1.02 MB (at most 2 MB) |\n"
        "\n"
        "![KL \\[a\\]](002-x.kl.svg)\n"
        "\n"
        r"It \_grows\_."
    )


def test_result_of_several_shards_has_what_they_come_to() -> None:
    larger = replace(COMPRESSION, subject="m:L03", figures=(
        replace(COMPRESSION.figures[0], value=1_500_000),
    ))  # fmt: skip
    assert parts_of(run_of(COMPRESSION, larger))["result"].endswith(
        "| gate | figure | shards | least | median | most | sum |\n"
        "| --- | --- | --- | --- | --- | --- | --- |\n"
        "| compression | size_bytes | 2 | 1.02 MB | 1.50 MB | 1.50 MB | 2.52 MB |"
    )


def test_surprise() -> None:
    unproven = Verdict("placement", "m:L01", findings=(Finding("unproven", "No evidence"),))
    run = run_of(FIDELITY, COMPRESSION)
    run = replace(run, rows=(*run.rows, as_row(unproven, allowed=True)))
    assert parts_of(run)["surprise"] == (
        "- **m:L01** fidelity failed: cosine is 0.9412; keep \\`fc1\\` in fp16\n"
        "- **m:L01** placement unproven, which the policy allows: No evidence\n"
        "- fidelity warns: probe is near zero (m:L01)\n"
        "\n"
        "No earlier write-up has these shards."
    )
    assert parts_of(run_of(COMPRESSION))["surprise"].startswith("Nothing is red")


def test_what_changed_since_the_last_one() -> None:
    better = replace(FIDELITY, figures=(replace(COSINE, value=0.9801),), findings=())
    device = replace(COMPRESSION, provenance={"backend": "coreml"})
    versions = {"pytest-ane": "0.1.0", "coremltools": "8.3"}
    before = run_of(better, device, versions=versions)
    text = parts_of(run_of(FIDELITY, COMPRESSION), last=("001-w", before))["surprise"]
    assert text.endswith(
        "Since [001-w](001-w.md):\n"
        "\n"
        "- coremltools 8.3 -> 9.0\n"
        "- m:L01 fidelity: passed -> **failed**\n"
        "- m:L01 fidelity: 0.9801 -> cosine 0.9412 &#60; 0.97\n"
        "- m:L01 compression: measured by coreml, then by reading the package, so no figure is "
        "compared"
    )
    same = parts_of(run_of(FIDELITY), last=("001-w", run_of(FIDELITY)))["surprise"]
    assert same.endswith("- no figure and no status changed")


def test_speeds_are_compared_on_one_machine_alone() -> None:
    def speed(rate: float) -> Verdict:
        return Verdict("throughput", "m", (Figure("tok_s", rate, "tok/s", shown=True),))

    assert "8.00 tok/s -> 9.00 tok/s" in parts_of(
        run_of(speed(9)), last=("001-w", run_of(speed(8)))
    )["surprise"]  # fmt: skip
    other = run_of(speed(8), machine={"backend": "cpu", "machine": "macOS arm64"})
    text = parts_of(run_of(speed(9)), last=("001-w", other))["surprise"]
    assert "machine macOS arm64 -> Linux x86_64" in text
    assert "tok/s" not in text


def test_next_of_a_red_run() -> None:
    waiting = Row("fidelity", "m:L03", "not run", "waits for L01", reasons=("waits for L01",))
    run = run_of(FIDELITY, PLACEMENT)
    run = replace(run, rows=(*run.rows, waiting))
    assert parts_of(run, documents=({"command": "recommend", "candidates": []},))["next"] == (
        "- Keep \\`fc1\\` in fp16 (m:L01)\n"
        "- Gather on the host (m:L01)\n"
        "- Leave it out (m:L01)\n"
        "- recommend: none of 0 candidates passes every gate\n"
        "- 1 verdict waits for the canary: m:L03\n"
        "- Then run again: `pytest --ane-shards=m:L01,m:L03 -m gate`\n"
        "- Placement is a forecast; only a plan of a Mac can say: "
        "`pytest --ane-shards=L01 -m placement --ane-record`"
    )


def test_next_of_a_green_run() -> None:
    run, ids = run_of(COMPRESSION), [f"m:L{number:02d}" for number in range(2, 15)]
    for count, line in (
        (1, "Gate the other shard of m: `pytest --ane-shards=m:L02 -m gate`"),
        (2, "Gate the other 2 shards of m: `pytest --ane-shards=m:L02,m:L03 -m gate`"),
        (13, "13 shards of m have no verdict; gate the whole model: "
             "`pytest '--ane-shards=m:*' -m gate`"),
    ):  # fmt: skip
        assert parts_of(run, ungated={"m": ids[:count]})["next"] == f"- {line}"
    assert parts_of(run_of(COMPRESSION))["next"] == "This run suggests nothing."


def test_references_name_the_sources_of_rules_that_spoke() -> None:
    peaks = Table(
        "hazards",
        tuple(map(Column, ("operation", "kind", "hazard", "probe", "value", "limit", "rule"))),
        (("a", "conv", "largest |sum|", "gaussian", 4e4, 32768.0, "recorded"),),
        "hazards",
    )
    hazards = Verdict("hazards", "m:L01", tables=(peaks,))
    lines = parts_of(run_of(PLACEMENT, hazards))["references"].splitlines()
    assert lines[0].startswith("- R009, ")
    assert lines[1] == (
        r"- hazard largest \|sum\|: 751K/Apple-Neural-Engine-Microarchitecture-Study-M6, "
        "final_report/en.md chapter 8 (recorded)"
    )
    assert lines[2].startswith("- [What the gates check](https://github.com/")
    assert lines[2].endswith("): hazards, placement")
    assert lines[3:] == ["- [The run with all figures](002-x.json)"]


@pytest.mark.parametrize(
    ("facts", "more", "sentence"),
    [
        ({"started": "2026-11-24T15:59:59Z"}, {}, "The intent was written after the result."),
        ({"started": ""}, {}, "The run does not say when it began, so the intent may be younger "
         "than the result."),
        ({"stopped": "interrupted"}, {}, "The run ended early (interrupted)."),
        ({"commit": ""}, {}, "The run is of another commit than the intent: cccccccccccc, then no "
         "commit."),
        ({"digest": "b" * 64}, {}, "The manifest was changed after the intent was recorded; the "
         "keys are unknown, as one of the two files is gone or damaged."),
        ({"digest": "b" * 64}, {"changes": ()}, "The manifest was changed after the intent was "
         "recorded, in no key."),
        ({"digest": "b" * 64}, {"changes": ("a.nbits 4 -> 6",)}, "The manifest was changed after "
         "the intent was recorded: a.nbits 4 -> 6."),
        ({}, {"due": ("m:L01", "m:L03[f]")}, "The run has no verdict of m:L03[f]."),
        ({"selection": "L02"}, {"due": None}, "The intent is about L01, and the run gated L02."),
    ],
)  # fmt: skip
def test_caveats(facts: dict[str, object], more: dict[str, object], sentence: str) -> None:
    answer = replace(answer_of(run_of(COMPRESSION, **facts)), **more)
    assert list(caveats(answer)) == [sentence]
    assert Sections(answer).parts()["result"].startswith("**The ")


def test_no_caveat_and_those_of_the_page_itself() -> None:
    answer = answer_of(run_of(COMPRESSION))
    assert list(caveats(answer)) == []
    other = replace(COMPRESSION, subject="m:L05")
    (also,) = caveats(answer_of(run_of(COMPRESSION, other)))
    assert also == "The run also gated m:L05, which the intent is not about."
    changed = answer.writeup.with_parts({"intent": "6-bit palettes"})
    (sentence,) = caveats(replace(answer, writeup=changed))
    assert sentence == "The intent was changed after it was recorded."
    bare = replace(answer.writeup, body="\n# 002: nothing\n")
    (sentence,) = caveats(replace(answer, writeup=bare))
    assert sentence == "The recorded intent is no longer on this page."


def test_a_run_without_any_verdict_says_so() -> None:
    parts = parts_of(Run("", (), FACTS))
    assert parts["result"].endswith("No gate came to a verdict.")
    assert parts["surprise"].startswith("No gate came to a verdict.")
    broken = Run("", (Row("", "test_a.py", "error", "no such file"),), FACTS)
    assert "- **test_a.py** error: no such file" in parts_of(broken)["surprise"]


def test_damaged_figures_are_one_sentence() -> None:
    run = run_of(COMPRESSION)
    rows = (replace(run.rows[0], data={"figures": [{"name": 3}], "gate": "g", "subject": "s"}),)
    with pytest.raises(ReportError, match="The report's verdict g of s is damaged"):
        parts_of(replace(run, rows=rows))


def test_a_new_page_has_every_section_and_what_will_stand_there() -> None:
    page = WriteUp(Path("002-x.md"), HEAD, blank(2, INTENT))
    assert list(page.sections) == [*SECTIONS]
    assert page.sections["Intent"] == "4-bit palettes on L01"
    assert page.sections["Lesson"] == "*What you learned: write it here in place of this line.*"
    assert all(text.startswith("*Not run yet.") for name, text in page.sections.items()
               if name not in ("Intent", "Lesson"))  # fmt: skip
    assert page.edited == []


@given(text=HOSTILE)
def test_any_intent_is_one_paragraph_of_its_section(text: str) -> None:
    assume(len(text) <= LONGEST_INTENT and any(map(str.isalnum, text)))
    intent = intent_of(text)
    page = WriteUp(Path("001-a.md"), HEAD, blank(1, intent))
    assert list(page.sections) == [*SECTIONS]
    assert page.parts["intent"] == intent
    tokens = MarkdownIt("commonmark").parse(page.body)
    assert [token.type for token in tokens if token.type.startswith("html")] == ["html_block"] * 12
    assert sum(token.type == "heading_open" for token in tokens) == 8


def test_intents_that_say_nothing_or_too_much() -> None:
    for text in ("", " \n\t", "+++", "\u200b"):
        with pytest.raises(ReportError, match="The intent is empty"):
            intent_of(text)
    with pytest.raises(ReportError, match="10,000 characters; say it in at most 4,000"):
        intent_of("x" * 10_000)


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="<\r#"), max_size=30)


@settings(max_examples=30)
@given(mine=st.lists(WORDS, min_size=7, max_size=7))
def test_finish_is_idempotent_and_keeps_a_persons_words(mine: list[str]) -> None:
    answer = answer_of(run_of(FIDELITY, COMPRESSION))
    body = answer.writeup.body
    for title, words in zip(SECTIONS, mine, strict=True):
        body = body.replace(f"## {title}\n\n", f"## {title}\n\n{words}\n\n")
    writeup = replace(answer.writeup, body=body)
    once = writeup.with_parts(Sections(replace(answer, writeup=writeup)).parts())
    twice = once.with_parts(Sections(replace(answer, writeup=once)).parts())
    assert twice == once
    for title, words in zip(SECTIONS, mine, strict=True):
        assert once.sections[title].startswith(words.strip())


@settings(max_examples=30)
@given(text=HOSTILE)
def test_hostile_names_stay_text(text: str) -> None:
    odd = replace(FIDELITY, subject=text, findings=(Finding("failed", text, remedy=text),))
    run = run_of(odd, selection=text, commit=text, started=text)
    page = WriteUp(Path("001-a.md"), HEAD, blank(1, INTENT)).with_parts(parts_of(run))
    assert list(page.sections) == [*SECTIONS]
    tokens = MarkdownIt("commonmark").enable("table").parse(page.body)
    inline = [child for token in tokens for child in token.children or ()]
    assert not [child for child in inline if child.type == "html_inline"]
    assert all(
        child.attrGet("href").startswith(("https://github.com/pytest-ane/", "002-x.", "001-a."))
        for child in inline if child.type == "link_open"
    )  # fmt: skip
    assert sum(token.type == "html_block" for token in tokens) == 12


def test_pages_for_the_report(tmp_path: Path) -> None:
    WriteUp(tmp_path / "001-a.md", replace(HEAD, number=1), blank(1, INTENT)).save()
    (tmp_path / "002-b.md").write_text("nothing")
    (tmp_path / "README.md").write_text("not one of them")
    damaged, page = writeups(tmp_path)
    assert (damaged.name, damaged.head, dict(damaged.sections)) == ("002-b", None, {})
    assert "002-b.md:1: has no head" in damaged.problem
    assert page.head == read(tmp_path / "001-a.md").head
    assert page.sections["Intent"] == "4-bit palettes on L01"
    assert writeups(tmp_path / "none") == []


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


def test_keys_of_manifests_that_differ(tmp_path: Path) -> None:
    old, new = tmp_path / "a.toml", tmp_path / "b.toml"
    old.write_text("[models.m]\nshards = 'L01'\ncompression = { nbits = 4 }\n")
    new.write_text("# a word\n[models.m]\nseed = 3\nshards = 'L01'\ncompression = { nbits = 6 }\n")
    assert changed_keys(old, new) == (
        "models.m.compression.nbits 4 -> 6", "models.m.seed absent -> 3"
    )  # fmt: skip
    assert changed_keys(old, old) == ()
    new.write_text("[[[")
    assert changed_keys(old, new) is None


def test_what_other_commands_printed() -> None:
    searched = {"command": "recommend", "candidates": [1, 2], "best": None}
    assert list(suggestions(searched)) == ["recommend: none of 2 candidates passes every gate"]
    best = {"name": "mixed 3", "size": 105_100_000}
    assert list(suggestions({**searched, "best": best})) == [
        "recommend: mixed 3, 105.10 MB, is the smallest of 2 that passes every gate"
    ]
    call = {
        "tokens": 4, "half_weights": 0.02, "half_macs": 0.04,
        "total": {"seconds": 0.04, "bound_by": "bandwidth"},
    }  # fmt: skip
    bound = {"command": "bound", "name": "m", "device": {"name": "M4 Max"}, "calls": [call]}
    assert list(suggestions(bound)) == [
        "bound: m on M4 Max at T = 4 is bound by bandwidth: at most 100 tok/s, 200 tok/s with "
        "weights of half the bytes, 100 tok/s with half the multiply-accumulates"
    ]
    assert list(suggestions({"command": "drift"})) == []
    for damaged in ({"tokens": 4}, {**call, "half_macs": 0}, {**call, "half_weights": "x"}):
        with pytest.raises(ReportError, match="What bound printed is damaged"):
            list(suggestions({**bound, "calls": [damaged]}))


@pytest.mark.parametrize(
    ("intent", "title"),
    [
        ("short", "short"),
        ("word " * 20, "word " * 16 + "..."),
        ("量" * 100, "量" * 80 + " ..."),
    ],
)
def test_a_title_is_the_beginning_of_an_intent(intent: str, title: str) -> None:
    assert f"\n# 007: {title}\n" in blank(7, intent_of(intent))
