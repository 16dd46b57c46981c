"""What people ask of a run first."""

from __future__ import annotations

from pytest_ane.gates.verdict import Figure, Finding, Verdict
from pytest_ane.report.answers import answers, on_the_ane, right
from pytest_ane.report.run import Row
from pytest_ane.report.verdict import reasons, to_json
from pytest_ane.report.verdict import row as words


def row(verdict: Verdict) -> Row:
    return Row(
        verdict.gate, verdict.subject, verdict.status, words(verdict), data=to_json(verdict),
        reasons=tuple(reasons(verdict)),
    )  # fmt: skip


def fidelity(shard: str, cosine: float, *findings: Finding) -> Row:
    figure = Figure("cosine.min", cosine, label="cosine", limit=0.97, good="above", shown=True)
    return row(Verdict("fidelity", f"m:{shard}", (figure,), findings))


def placement(shard: str, answer: str, *findings: Finding) -> Row:
    figure = Figure("answer", answer, note="predicted: M4", shown=True)
    return row(Verdict("placement", f"m:{shard}", (figure,), findings))


LONE = row(Verdict("fidelity", "m:lone", (
    Figure("finite", 1.0, "%", "finite", note="no reference", shown=True),)))  # fmt: skip
ANSWERS = ("on the ANE", "undecided", "off the ANE")
WRONG = Finding("failed", "wrong function: 0.4 is wrong")
OPEN = Finding("unproven", "no probe is live")


def test_is_it_right() -> None:
    good, better = fidelity("a", 0.98), fidelity("b", 0.999)
    assert right([better, good], 3).line == "yes: b, a of 3 shards: cosine 0.9800 (needs 0.97)"
    assert right([good], 1).line == "yes: a: cosine 0.9800 (needs 0.97)"
    bad = [fidelity(shard, 0.5, WRONG) for shard in "abcde"]
    assert right([good, *bad]).line.startswith("no: all 5 fidelity: wrong function")
    assert (
        right([good, fidelity("b", 0.98, OPEN)]).line == "not known: b fidelity: no probe is live"
    )
    assert right([LONE]).line == "not known: nobody said what it should give"
    chain = row(Verdict("behaviour", "m", findings=(Finding("unproven", "no reference"),)))
    assert right([LONE, chain]).word == "not known"
    assert right([placement("a", "on the ANE")]).word == "not asked"


def test_is_it_on_the_ane() -> None:
    on, tie, off = (placement(s, a) for s, a in zip("abc", ANSWERS, strict=True))
    assert on_the_ane([on]).line == "yes: a (predicted: M4)"
    assert on_the_ane([on, tie]).line == "undecided: b (predicted: M4)"
    assert on_the_ane([on, tie, off]).line == "no: c (predicted: M4)"
    red = placement("d", "undecided", Finding("failed", "lstm is ineligible"))
    assert on_the_ane([red, on]).line == "no: d: lstm is ineligible"
    assert on_the_ane([LONE]).word == "not asked"


def test_how_big_and_how_fast() -> None:
    def size(subject: str) -> Row:
        figures = Figure("size_bytes", 2_000_000, "bytes"), Figure("ratio", 1.5, "x")
        return row(Verdict("compression", subject, figures))

    *_, big, fast = answers([size("m:a"), size("m:b[infer]"), size("m:b[prefill]")])
    assert big.line == "4.00 MB in 2 packages, 1.50x smaller than fp16"
    assert fast.word == "not asked"
    figure = Figure("tok_s", 12.0, "tok/s", shown=True)
    *_, fast = answers([row(Verdict("throughput", "m:a", (figure,)))])
    assert fast.line.startswith("a: 12.00 tok/s")
