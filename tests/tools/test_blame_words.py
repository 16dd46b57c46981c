"""The lines and tables that say what an error comes from."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ane.gates.verdict import Finding, Where
from pytest_ane.manifest import Linear, Palettize, Uncompressed, load
from pytest_ane.mlprogram.weights import Stage, Weight
from pytest_ane.tools.blame import CAUSE, cause, describe, lines, override, tables
from pytest_ane.tools.blame.analysis import Blame, Culprit, Remedy, Suspect

STAGE = Stage("constexpr_lut_to_dense", 2, 6)
MEND = Remedy(Palettize(nbits=4, group_size=16), 0.0142, 27_792)
WORST = Culprit(Weight("v_proj", (192, 576), 27_696, 2, (STAGE,)), 0.012, 0.4, 0.98, MEND)
OTHER = Culprit(Weight("o", (576, 576), 9, 2, (STAGE,)), 0.41, 0.02, -0.01)
OVERFLOW = Suspect("mul", "square", math.inf, 0.0, math.inf, 481_000.0)
CONV = Suspect("conv", "out", 0.37, 0.0005, 0.4, 2.0, ("v_proj",))
FOUND = Blame(("gaussian #0", "chat"), 16, False, 0.41, 0.001, (WORST, OTHER), (OVERFLOW, CONV))


def test_all_of_it() -> None:
    assert list(lines(FOUND)) == [
        "compression: exact weights leave less than half of the error",
        "relative error of the output on the worst 2 of 16 probes (gaussian #0, chat)",
        "0.41 as it is, 0.001 with every weight exact; run by the CPU executor",
        "weight  stored as                 restored   alone  share  remedy                      "
        "error with it      more",
        "v_proj  lut_to_dense, 2 bits x 6    0.0120  0.4000  98.0%  4-bit kmeans, groups of 16  "
        "       0.0142  27.79 kB",
        "o       lut_to_dense, 2 bits x 6    0.4100  0.0200  -1.0%",
        'for compression.overrides in shards.toml: { weights = "v_proj", method = "palettize", '
        'mode = "kmeans", nbits = 4, granularity = "per_grouped_channel", group_size = 16 }',
        "op      type  own error  arrives with  leaves with  note",
        "square  mul         inf        0.0000          inf  overflows fp16: 481,000 in float32",
        "out     conv     0.3700        0.0005       0.4000  takes v_proj",
    ]


def test_weights_alike_are_overridden_together() -> None:
    four = [replace(WORST, weight=replace(WORST.weight, name=n), share=0.24) for n in "abcd"]
    found = replace(FOUND, weights=(*four, replace(WORST, share=0.02)))
    (line,) = (line for line in lines(found) if line.startswith("for compression.overrides"))
    named = [f'{{ weights = "{name}"' in line for name in ("a", "b", "c", "d", "v_proj")]
    assert named == [True, True, True, True, False]
    assert cause(found).remedy == line


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (MEND.settings, "4-bit kmeans, groups of 16"),
        (Palettize(nbits=6, granularity="per_tensor"), "6-bit kmeans, one table"),
        (Linear(dtype="int8"), "int8 per channel"),
        (Uncompressed(), "fp16"),
    ],
)
def test_an_entry_is_one_that_the_manifest_takes(
    settings: Palettize, text: str, tmp_path: Path
) -> None:
    manifest = tmp_path / "shards.toml"
    manifest.write_text(
        '[models.m]\nfamily = "llama"\nsource = { path = "x.gguf" }\nshards = "L00"\n'
        'max-tokens = 4\n[models.m.compression]\nmethod = "palettize"\n'
        f"overrides = [{{ {override('v_proj', replace(MEND, settings=settings))} }}]\n"
    )
    (shard,) = load(manifest).shards
    assert shard.compression is not None
    assert describe(shard.compression.for_weight("v_proj")) == describe(settings) == text


ALONE = replace(FOUND, weights=(), exact=math.nan, without="There are none.")


@pytest.mark.parametrize(
    ("found", "line", "text"),
    [
        (replace(FOUND, contribution=True), 1, "relative error of the contribution on the worst 2"),
        (ALONE, 0, "relative error of the output on"),
        (ALONE, 1, "0.41 as it is; run by the CPU executor"),
        (ALONE, 2, "There are none."),
        (replace(FOUND, absent=("a", "b", "c", "d")), 7, "4 more have no counterpart in the "
         "uncompressed package and stayed compressed: a, b, c and 1 more"),
        (replace(FOUND, operations=(replace(CONV, own=0.0),) * 2), -1,
         "all 2 operations agree with float32 on the same inputs"),
        (replace(FOUND, operations=(replace(CONV, peak=1.5e-5),)), -1,
         "out  conv     0.3700        0.0005       0.4000  takes v_proj, underflows fp16: 1.5e-05"),
        (replace(FOUND, weights=(replace(OTHER, share=0.125),) * 8), 9,
         "... and 3 more; those above make 62.5% of the squared error"),
    ],
)  # fmt: skip
def test_a_line(found: Blame, line: int, text: str) -> None:
    assert list(lines(found))[line].startswith(text)


def test_on_a_device() -> None:
    third = list(lines(FOUND, on_device=True))[2]
    assert third.endswith("not by the device: this explains compression and arithmetic, no more")


@pytest.mark.parametrize(
    ("exact", "algebra", "says"),
    [(0.02, 0.001, "compression:"), (0.9, 0.8, "wrong function:"), (0.9, 0.001, "fp16:")],
)
def test_the_cause_comes_first_and_what_it_is_not_offers_no_remedy(
    exact: float, algebra: float, says: str
) -> None:
    found = replace(FOUND, error=1.0, exact=exact, algebra=algebra)
    first, *rest = lines(found)
    assert first.startswith(says)
    assert any("overrides" in line for line in rest) == (says == "compression:")
    finding = cause(found)
    assert (finding.severity, finding.kind, finding.reason) == ("note", CAUSE, first)
    mended = says == "compression:"
    assert finding.where == (Where(weight="v_proj") if mended else Where(op="square"))
    assert bool(finding.remedy) == mended


SQUARES = "fp16 overflows in square_0 (11.8 million): 3,436 squared"
MASK = "mul scores gives NaN: mask constant -inf times 0"


@pytest.mark.parametrize(
    ("errors", "overflow", "says"),
    [
        ((math.inf, math.inf, 0.001), SQUARES, SQUARES),
        ((1.0, 0.9, 0.001), SQUARES, SQUARES),
        ((math.inf, math.inf, math.inf), MASK, f"wrong function: {MASK}"),
        ((math.inf, math.nan, math.nan), MASK, MASK),
        ((math.inf, math.inf, math.inf), "", "wrong function: NaN or infinity in float32 as well"),
        # What exact weights mend, or float32 leaves, is no overflow's doing.
        ((math.inf, 0.001, 0.001), SQUARES, "compression:"),
        ((1.0, 0.9, 0.8), SQUARES, "wrong function: exact weights"),
        ((1.0, 0.9, 0.001), "", "fp16: exact weights"),
    ],
)
def test_the_first_nan_or_infinity_is_the_cause(
    errors: tuple[float, float, float], overflow: str, says: str
) -> None:
    error, exact, algebra = errors
    found = replace(FOUND, error=error, exact=exact, algebra=algebra, overflow=overflow)
    first, *_ = lines(found)
    assert first.startswith(says)
    assert cause(found).reason == first
    assert "neither compression nor fp16" not in first or math.isfinite(algebra)


def test_one_scale_for_all_rows_is_named() -> None:
    stage = Stage("constexpr_blockwise_shift_scale", 8)
    weight = Weight("embed", (4096, 64), 262_146, 8, (stage,))
    mend = Remedy(Linear(dtype="int8"), 0.01, 8190)
    found = replace(FOUND, weights=(replace(WORST, weight=weight, remedy=mend),))
    assert cause(found).reason.endswith("; embed has one scale for 4,096 rows")
    assert any("8 bits, one scale for 4,096 rows" in line for line in lines(found))
    by_row = replace(weight, stages=(replace(stage, groups=4096),))
    found = replace(FOUND, weights=(replace(WORST, weight=by_row, remedy=mend),))
    assert "one scale" not in cause(found).reason + "".join(lines(found))


def test_five_hazards_are_named_with_their_rewrites() -> None:
    hazards = [Finding("failed", "simulated ANE (h16+): a lot", remedy="scale it")]
    hazards += [Finding("warned", "nearly")] * 5
    assert list(lines(replace(FOUND, hazards=tuple(hazards))))[-6:] == [
        "hazard: a lot; scale it",
        *["near a hazard: nearly; "] * 4,
        "... and 1 more, which the hazards gate names",
    ]


def test_names_cannot_steer_a_terminal() -> None:
    found = replace(FOUND, operations=(replace(CONV, name="a\x1b[2Jb\n"),))
    assert any("a\\x1b[2Jb\\n" in line for line in lines(found))
    assert all(line.isprintable() for line in lines(found))


def test_tables_have_all_weights_and_all_operations() -> None:
    many = tuple(replace(CONV, name=f"out{i}", typed=0.123456) for i in range(9))
    weights, operations = tables(replace(FOUND, operations=(OVERFLOW, *many)))
    named = [(table.name, table.listed) for table in (weights, operations)]
    assert named == [("blame.weights", False), ("blame.operations", False)]
    assert weights.rows == (
        ("v_proj", "lut_to_dense, 2 bits x 6", 0.012, 0.4, 0.98,
         "4-bit kmeans, groups of 16", 0.0142, 27_792),
        ("o", "lut_to_dense, 2 bits x 6", 0.41, 0.02, -0.01, None, None, None),
    )  # fmt: skip
    assert len(operations.rows) == 10
    assert operations.rows[0] == ("square", "mul", math.inf, None, 0.0, math.inf, OVERFLOW.note)
    assert operations.rows[9] == ("out8", "conv", 0.37, 0.12346, 0.0005, 0.4, "takes v_proj")


def test_a_cause_that_is_not_known_says_so() -> None:
    right = replace(CONV, own=0.0)
    found = cause(Blame(("p",), 1, False, 0.1, math.nan, (), (right,), absent=("w",)))
    assert (found.reason, found.where) == ("the cause of the error is not known", Where())
