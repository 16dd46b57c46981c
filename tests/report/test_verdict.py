"""Every word about a verdict."""

from __future__ import annotations

import json
import math

from pytest_ane.gates.verdict import Column, Figure, Finding, Table, Verdict, Where
from pytest_ane.report.verdict import details, failure, properties, reasons, row, to_json

COSINE = Figure("cosine.min", 0.95, label="cosine", limit=0.97, good="above", note="worst of 2")
SIZE = Figure("size_bytes", 1_080_000, "bytes", shown=True)
LOW = Finding("failed", "1 of 2 probes is below 0.97", remedy="lower it", figure="cosine.min")


def weights(count: int, kind: str = "have 2 bits instead of 4") -> Verdict:
    names = [f"blocks.{i}.{n}" for i in range(4) for n in ("qkv", "o", "f1", "f2")]
    found = tuple(
        Finding("failed", f"{name} has 2 bits", Where(weight=name), "choose others", kind)
        for name in ["patch", *names][:count]
    )
    figures = (Figure("weights", 19, "weights"), SIZE)
    return Verdict("compression", "vit:all", figures, found)


def test_the_figure_that_decides_comes_first() -> None:
    verdict = Verdict("fidelity", "m:L01", (Figure("n", 16, "probes", shown=True), COSINE), (LOW,))
    assert row(verdict) == "cosine 0.9500 < 0.97 (worst of 2) · 16 probes"
    kl = Figure("kl", 0.02, "nats", "KL", limit=0.05, good="below", shown=True)
    top = Figure("top1", 0.91, "%", "top-1", limit=0.9, good="above", shown=True)
    verdict = Verdict("behaviour", "m", (kl, top))
    assert row(verdict) == "top-1 91.0% (needs 90%) · KL 0.0200 nats (at most 0.05)"
    ops = Figure("ops", 74, "ops for the ANE", of=84, shown=True)
    cpu = Figure("cpu", 10, "ops likely on the CPU", note="int32, gather", shown=True)
    verdict = Verdict("placement", "m:L01", (ops, cpu), basis="forecast", origin="recorded today")
    assert row(verdict) == (
        "forecast: 74 of 84 ops for the ANE · 10 ops likely on the CPU (int32, gather) · "
        "recorded today"
    )


def test_equal_kinds_are_grouped_and_none_is_cut() -> None:
    verdict = weights(17)
    group = "17 of 19 weights have 2 bits instead of 4: patch, blocks.0.qkv, blocks.0.o"
    assert row(verdict) == f"{group} and 14 more · 1.08 MB"
    (group,) = (reason.removesuffix("; choose others") for reason in reasons(verdict))
    assert group.endswith("blocks.3.f1, blocks.3.f2")
    assert failure(verdict).splitlines() == [
        "vit:all: compression failed", f"  - {group}; choose others"
    ]  # fmt: skip
    verdict = weights(1)
    assert row(verdict) == "1 of 19 weights has 2 bits instead of 4: patch · 1.08 MB"
    assert reasons(verdict) == ["patch has 2 bits; choose others"]
    found = (
        Finding("failed", "a", Where(op="a"), kind="are x"),
        Finding("failed", "b", Where(op="b"), kind="are y"),
        Finding("failed", "c", Where(op="c"), kind="are x"),
    )
    assert reasons(Verdict("g", "m", findings=found)) == ["2 ops are x: a, c", "b"]


def test_every_reason_is_told_with_remarks_below() -> None:
    found = tuple(Finding("failed", f"Reason {i}") for i in range(11))
    assert len(failure(Verdict("g", "m", findings=found)).splitlines()) == 12
    assert failure(Verdict("g", "m:L01", findings=(LOW,)), "seeded").splitlines()[0] == (
        "m:L01: g failed; weights are seeded"
    )
    found = (LOW, Finding("note", "It is odd"), Finding("warned", "It is large"))
    assert failure(Verdict("g", "m", findings=found)).splitlines()[1:] == [
        "  - 1 of 2 probes is below 0.97; lower it", "    warning: It is large", "    It is odd"
    ]  # fmt: skip


def test_details_are_remarks_and_listed_tables() -> None:
    table = Table("weights", (Column("weight"),), (("w",),))
    found = (Finding("warned", "It is large"), Finding("note", "It is odd"))
    verdict = Verdict("g", "m", findings=found, tables=(table,))
    assert list(details(verdict)) == [
        "warning: It is large", "It is odd", "", "weights:", "weight", "w"
    ]  # fmt: skip
    columns, rows = (Column("op"),), (("conv",),)
    unlisted = Table("the program", columns, rows, "program", listed=False)
    verdict = Verdict("mine", "m:L01", tables=(unlisted, Table("ops", columns, rows, "ops")))
    assert list(details(verdict)) == ["", "ops:", "op", "conv"]
    assert [table["name"] for table in to_json(verdict)["tables"]] == ["program", "ops"]
    assert verdict.table("program") is unlisted
    assert verdict.table("weights") is None


def test_properties_have_figures_limits_and_reasons() -> None:
    verdict = Verdict("fidelity", "m:L01", (COSINE, Figure("probes", 2)), (LOW,))
    assert properties(verdict) == {
        "gate": "fidelity",
        "subject": "m:L01",
        "status": "failed",
        "summary": row(verdict),
        "cosine.min": 0.95,
        "probes": 2,
        "limit.cosine.min": 0.97,
        "reasons": "1 of 2 probes is below 0.97; lower it",
    }
    warned = Verdict("g", "m", findings=(Finding("warned", "It is large"),))
    assert properties(warned)["warnings"] == 1


def test_json_is_strict() -> None:
    verdict = Verdict("g", "m", (Figure("f", math.nan),), (LOW,), provenance={"at": object})
    data = json.loads(json.dumps(to_json(verdict), allow_nan=False))
    assert data["figures"][0]["value"] == "NaN"
    assert (data["status"], data["reasons"]) == ("failed", reasons(verdict))
