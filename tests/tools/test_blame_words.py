"""The lines that say what an error comes from."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pytest_ane.gates.verdict import Finding, Where
from pytest_ane.manifest import Linear, Palettize, Uncompressed
from pytest_ane.mlprogram.weights import Stage, Weight
from pytest_ane.tools.blame import CAUSE, cause, describe, lines, override, share, tables
from pytest_ane.tools.blame.analysis import Blame, Culprit, Suspect
from pytest_ane.tools.blame.weights import Remedy

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
        "weight  stored as                 restored  alone  share  remedy",
        "v_proj  lut_to_dense, 2 bits x 6     0.012    0.4  98.0%  "
        "4-bit kmeans, groups of 16: 0.0142, +27,792 bytes",
        "o       lut_to_dense, 2 bits x 6      0.41   0.02  -1.0%  -",
        'for compression.overrides in shards.toml: { weights = "v_proj", method = "palettize", '
        'mode = "kmeans", nbits = 4, granularity = "per_grouped_channel", group_size = 16 }',
        "operation  result  own error  arrives with  leaves with",
        "mul        square        inf             0          inf  "
        "overflows fp16: 481,000 in float32",
        "conv       out          0.37        0.0005          0.4  takes v_proj",
    ]


def test_weights_alike_are_overridden_together() -> None:
    four = [replace(WORST, weight=replace(WORST.weight, name=n), share=0.24) for n in "abcd"]
    found = replace(FOUND, weights=(*four, replace(WORST, share=0.02)))
    (line,) = (line for line in lines(found) if line.startswith("for compression.overrides"))
    named = [f'{{ weights = "{name}"' in line for name in ("a", "b", "c", "d", "v_proj")]
    assert named == [True, True, True, True, False]
    assert cause(found).remedy == line


def test_an_entry_is_one_that_the_manifest_takes(tmp_path) -> None:
    from pytest_ane.manifest import load

    described = {
        MEND.settings: "4-bit kmeans, groups of 16",
        Palettize(nbits=6, granularity="per_tensor"): "6-bit kmeans, one table",
        Linear(dtype="int8"): "int8 per channel",
        Uncompressed(): "fp16",
    }
    for settings, text in described.items():
        mend = replace(MEND, settings=settings)
        manifest = tmp_path / "shards.toml"
        manifest.write_text(
            '[models.m]\nfamily = "llama"\nsource = { path = "x.gguf" }\nshards = "L00"\n'
            'max-tokens = 4\n[models.m.compression]\nmethod = "palettize"\n'
            f"overrides = [{{ {override('v_proj', mend)} }}]\n"
        )
        (shard,) = load(manifest).shards
        assert shard.compression is not None
        assert describe(shard.compression.for_weight("v_proj")) == describe(settings) == text


@pytest.mark.parametrize(
    ("found", "line", "text"),
    [
        (replace(FOUND, contribution=True), 1, "relative error of the contribution on the worst 2"),
        (replace(FOUND, weights=(), exact=math.nan, without="There are none."), 0,
         "relative error of the output on"),
        (replace(FOUND, weights=(), exact=math.nan, without="There are none."), 1,
         "0.41 as it is; run by the CPU executor"),
        (replace(FOUND, weights=(), exact=math.nan, without="There are none."), 2,
         "There are none."),
        (replace(FOUND, absent=("a", "b", "c", "d")), 7, "4 more have no counterpart in the "
         "uncompressed package and stayed compressed: a, b, c ..."),
        (replace(FOUND, operations=(replace(CONV, own=0.0),) * 2), -1,
         "all 2 operations agree with float32 on the same inputs"),
        (replace(FOUND, operations=(replace(CONV, peak=1.5e-5),)), -1,
         "conv       out          0.37        0.0005          0.4  takes v_proj, underflows fp16: "
         "1.5e-05 at most"),
    ],
)  # fmt: skip
def test_a_line(found: Blame, line: int, text: str) -> None:
    assert list(lines(found))[line].startswith(text)


def test_on_a_device() -> None:
    third = list(lines(FOUND, on_device=True))[2]
    assert third.endswith("not by the device: this explains compression and arithmetic, no more")


@pytest.mark.parametrize(
    ("exact", "algebra", "cause"),
    [(0.02, 0.001, "compression:"), (0.9, 0.8, "wrong function:"), (0.9, 0.001, "fp16:")],
)
def test_the_cause_comes_first_and_what_it_is_not_offers_no_remedy(
    exact: float, algebra: float, cause: str
) -> None:
    first, *rest = lines(replace(FOUND, error=1.0, exact=exact, algebra=algebra))
    assert first.startswith(cause)
    assert any("overrides" in line for line in rest) == (cause == "compression:")


def test_five_weights_are_shown_and_a_spread_error_is_said() -> None:
    some = replace(OTHER, share=0.125)
    found = list(lines(replace(FOUND, weights=(some,) * 8)))
    assert sum(line.startswith("o ") for line in found) == 5
    assert "... and 3 more weights, together 37.5%" in found
    assert "no weight makes half of the squared error: the worst 5 make 62.5%" in found
    assert not any("shards.toml" in line for line in found)


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


def test_a_share_that_is_no_share() -> None:
    assert [share(x) for x in (-math.inf, 1.0)] == ["worse", "100.0%"]


def test_tables_have_all_weights_and_all_operations() -> None:
    many = tuple(replace(CONV, name=f"out{i}") for i in range(9))
    weights, operations = tables(replace(FOUND, operations=(OVERFLOW, *many)))
    named = [(table.name, table.listed) for table in (weights, operations)]
    assert named == [("blame.weights", False), ("blame.operations", False)]
    assert weights.rows == (
        ("v_proj", "lut_to_dense, 2 bits x 6", 0.012, 0.4, 0.98,
         "4-bit kmeans, groups of 16", 0.0142, 27_792),
        ("o", "lut_to_dense, 2 bits x 6", 0.41, 0.02, -0.01, None, None, None),
    )  # fmt: skip
    assert len(operations.rows) == 10
    assert operations.rows[0] == (
        "square", "mul", math.inf, None, 0.0, math.inf, "overflows fp16: 481,000 in float32"
    )  # fmt: skip
    assert operations.rows[9] == ("out8", "conv", 0.37, None, 0.0005, 0.4, "takes v_proj")
    # Those of the ANE's arithmetic have their error as typed.
    _, operations = tables(replace(FOUND, operations=(replace(CONV, typed=0.123456),)))
    assert operations.rows[0][3] == 0.12346


def test_the_cause_is_a_finding_with_the_first_remedy() -> None:
    found = cause(FOUND)
    assert (found.severity, found.kind, found.where) == ("note", CAUSE, Where(weight="v_proj"))
    assert found.reason == "compression: exact weights leave less than half of the error"
    assert found.remedy.startswith('for compression.overrides in shards.toml: { weights = "v_proj"')


def test_a_wrong_function_has_no_override() -> None:
    found = cause(replace(FOUND, exact=0.4, algebra=0.39))
    assert found.reason.startswith("wrong function:")
    assert (found.where, found.remedy) == (Where(op="square"), "")


def test_a_cause_that_is_not_known_says_so() -> None:
    right = replace(CONV, own=0.0)
    found = cause(Blame(("p",), 1, False, 0.1, math.nan, (), (right,), absent=("w",)))
    assert (found.reason, found.where) == ("the cause of the error is not known", Where())
