"""The compression gate's verdicts: figures, findings and the table of weights."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from pytest_ane.gates.compression import judge
from pytest_ane.gates.compression.measure import CompressionMeasurement
from pytest_ane.gates.verdict import Verdict
from pytest_ane.make import Census, Distortion
from pytest_ane.make.record import Against
from pytest_ane.manifest import Compression
from pytest_ane.manifest.policy import CompressionPolicy
from pytest_ane.mlprogram.weights import Stage, Weight

LUT = "constexpr_lut_to_dense"
SCALE = "constexpr_blockwise_shift_scale"


def stored(
    name: str, shape: tuple[int, ...], op: str, nbits: int, groups: int, blocks: int, size: int
) -> Weight:
    """A weight that one operation expands."""
    return Weight(name, shape, size, nbits, (Stage(op, nbits, groups, blocks),))


Q = stored("q_proj_weight", (576, 576, 1, 1), LUT, 4, 18, 1, 166_464)
DOWN = stored("down_proj_weight", (576, 1536, 1, 1), LUT, 4, 18, 1, 442_944)
NORM = Weight("norm_weight", (1, 576, 1, 1), 1152, 16)
DENSE = Weight("router_weight", (17, 576, 1, 1), 19_584, 16)
FOUR_BITS = {"method": "palettize", "nbits": 4, "group_size": 32}
EIGHT_BITS = {"method": "linear", "dtype": "int8"}


def of(
    *weights: Weight,
    asked: dict[str, Any] | None = FOUR_BITS,
    size: int = 700_000,
    notes: tuple[str, ...] = (),
    distortions: tuple[Distortion, ...] = (),
    against: Against = "build",
    names: dict[str, tuple[str, ...]] | None = None,
    **policy: Any,
) -> Verdict:
    return judge(
        CompressionMeasurement(Census(weights), size, notes, distortions, against, **(names or {})),
        CompressionPolicy.model_validate(policy),
        "smollm2:L01",
        asked and TypeAdapter(Compression).validate_python(asked),
    )


def one_scale(sse: float, nbits: int = 8, groups: int = 1) -> Verdict:
    """An embedding's integers; their energy is 4,096."""
    embed = stored("embed", (4096, 64), SCALE, nbits, groups, 1, 262_146)
    return of(embed, asked=None, distortions=(Distortion("embed", sse, 4096.0),))


def test_one_scale_that_outliers_set_is_a_warning_with_a_remedy() -> None:
    (finding,) = one_scale(100.0).warnings
    assert finding.reason == (
        "embed has one scale for 4,096 rows, which its outliers set: its signal-to-noise ratio is "
        "16.1 dB"
    )
    assert "per_channel" in finding.remedy
    for right in (one_scale(0.5), one_scale(100.0, nbits=4), one_scale(100.0, groups=4096)):
        assert right.warnings == ()


def kinds(verdict: Verdict) -> dict[str, str]:
    """What is wrong with each weight."""
    return {finding.where.weight: finding.kind for finding in verdict.reasons}


def test_all_weights_compressed() -> None:
    verdict = of(Q, DOWN, NORM)
    assert (verdict.gate, verdict.subject) == ("compression", "smollm2:L01")
    assert (verdict.status, verdict.findings) == ("passed", ())
    assert verdict.values == {
        "size_bytes": 700_000,
        "ratio": 3.4774,
        "weights": 3,
        "weights_compressed": 2,
        "weights_missing": 0,
    }
    (table,) = verdict.tables
    assert [row[0] for row in table.rows] == ["q_proj_weight", "down_proj_weight", "norm_weight"]


def test_weights_that_the_converter_declined() -> None:
    assert kinds(of(Q, DENSE)) == {"router_weight": "are not 4-bit (not divisible by 32)"}
    note = "Cannot perform palettization on w. Skipped this op."
    verdict = of(Weight("w", (64, 64, 1, 1), 8192, 16), notes=("Something else.", note))
    assert note.rstrip(".") in verdict.reasons[0].reason
    assert verdict.tables[0].rows[0][-1] == note.rstrip(".")
    verdict = of(Weight("w", (64, 64, 1, 1), 8192, 16), asked=EIGHT_BITS)
    assert kinds(verdict) == {"w": "are not int8"}
    assert verdict.tables[0].rows[0][-1] == "coremltools gave no reason"
    (row,) = of(DENSE).tables[0].rows
    assert row[-1] == "17 output channels are not divisible by group_size 32"


@pytest.mark.parametrize(
    ("weights", "lost", "against", "asked", "status"),
    [
        ((Q, DOWN), (0.0, 1e-5), "uncompressed", None, "unproven"),
        ((Q, DOWN), (0.0, 0.0), "reference", FOUR_BITS, "unproven"),
        ((Q, DOWN), (0.0, 1.0), "uncompressed", None, "passed"),  # A weight of zeros, and one more.
        ((stored("w", (4, 64, 1, 1), LUT, 4, 4, 1, 128),), (0.0,), "uncompressed", None, "passed"),
        ((stored("w", (64, 64), SCALE, 8, 64, 1, 4096),), (0.0,), "uncompressed", None, "unproven"),
        ((stored("w", (64, 8), SCALE, 8, 64, 1, 512),), (0.0,), "uncompressed", None, "passed"),
        ((Q,), (0.0,), "uncompressed", {"method": "palettize", "mode": "unique"}, "passed"),
        ((Q,), (0.0,), "build", FOUR_BITS, "passed"),
    ],
)
def test_compression_that_lost_nothing(
    weights: tuple[Weight, ...], lost: tuple[float, ...], against: Against,
    asked: dict[str, Any] | None, status: str,
) -> None:  # fmt: skip
    """What was decompressed from a package is no program before compression."""
    scheme = "lossless palettization" if asked and asked.get("mode") == "unique" else "4-bit"
    distortions = tuple(
        Distortion(w.name, sse, 4096.0, scheme) for w, sse in zip(weights, lost, strict=True)
    )
    verdict = of(*weights, asked=asked, distortions=distortions, against=against)
    assert verdict.status == status
    assert ["lost nothing" in f.reason for f in verdict.reasons] == [True] * (status != "passed")


def test_over_the_budget_or_below_the_ratio() -> None:
    verdict = of(Q, DOWN, **{"max-bytes": "0.6 MB"})
    (finding,) = verdict.reasons
    assert finding.reason == "The package has 700,000 bytes, above max-bytes = 600,000"
    assert (finding.figure, finding.remedy) == ("size_bytes", "")
    figure = verdict.figure("size_bytes")
    assert (figure.value, figure.limit) == (700_000, 600_000)
    assert of(Q, **{"max-bytes": 700_000}).status == "passed"
    (finding,) = of(Q, DOWN, size=1_400_000, **{"min-ratio": 2.0}).reasons
    assert finding.figure == "ratio"
    assert of(Q, DOWN, size=1_216_512, **{"min-ratio": 2.0}).status == "passed"


def test_packages_of_unknown_making_without_weights_or_empty() -> None:
    assert of(Q, DENSE, asked=None).status == "passed"
    assert of(Q, DENSE, asked=None, **{"max-bytes": 1}).status == "failed"
    assert of().status == "unproven"
    shown = [figure.name for figure in of(size=5_500).figures if figure.shown]
    assert shown == ["size_bytes", "weights"]
    assert of(**{"max-bytes": 1}).status == "failed"
    verdict = of(Q, size=0)
    assert verdict.values["ratio"] == 0.0


def test_a_package_of_the_users_without_weights_is_green_where_nothing_is_claimed() -> None:
    for against in ("nothing", "itself", "uncompressed"):
        verdict = of(asked=None, against=against)
        assert (verdict.status, verdict.figure("weights").note) == ("passed", "nothing claimed")
        assert of(asked=FOUR_BITS, against=against).status == "unproven"
    assert of(asked=None, against="build").status == "unproven"
    lost = of(asked=None, against="uncompressed", names={"missing": ("w",)})
    assert lost.status == "failed"
    assert of(asked=None, against="nothing", **{"min-ratio": 2.0}).status == "failed"


def lut(tables: int, op: str = "conv", **stage: Any) -> Weight:
    return Weight("w", (64, 128), 5000, 4, (Stage(LUT, 4, tables, **stage),), op_types=(op,))


UNIQUE, PAIRS = {**FOUR_BITS, "mode": "unique"}, {**FOUR_BITS, "cluster_dim": 2}
KEPT = {**FOUR_BITS, "overrides": [{"op_type": "gather", "method": "none"}]}
WIDE, NARROW = (stored("w", (64, 64, 1, 1), SCALE, bits, 64, 1, 4224) for bits in (8, 4))
ROUTER = {"router_weight": "are not 4-bit (not divisible by 32)"}
TABLES = "have another number of tables or scales than asked for"
KEPT_IN_FP16 = "are compressed though they were to stay fp16"


@pytest.mark.parametrize(
    ("weights", "asked", "wrong"),
    [
        # Another method, or number of bits.
        ([NARROW], FOUR_BITS, {"w": "are not 4-bit"}),
        ([NARROW], {**EIGHT_BITS, "dtype": "int4"}, {}),
        ([WIDE], {**EIGHT_BITS, "dtype": "uint4"}, {"w": "have 8 bits instead of 4"}),
        ([stored("w", (64, 64, 1, 1), "constexpr_affine_dequantize", 8, 64, 1, 4300)], EIGHT_BITS,
         {}),
        ([Q], {**FOUR_BITS, "nbits": 6}, {"q_proj_weight": "have 4 bits instead of 6"}),
        ([Q], {**UNIQUE, "nbits": 6}, {}),
        ([stored("w", (64, 64, 1, 1), "const", 16, 0, 0, 8192)], UNIQUE,
         {"w": "are not palettized"}),
        # Kept on purpose, or to be kept; small ones and those of one axis stay as they are.
        ([Q, DENSE], {**FOUR_BITS, "keep": ["router*"]}, {}),
        ([Q, DOWN], {**FOUR_BITS, "keep": ["q_proj*"]}, {"q_proj_weight": KEPT_IN_FP16}),
        ([Q], {"method": "none"}, {"q_proj_weight": KEPT_IN_FP16}),
        ([NORM, DENSE], {"method": "none"}, {}),
        ([Weight("w", (64, 64), 8192, 16, op_types=("gather",))], KEPT, {}),
        ([Weight("w", (64, 64), 8192, 16)], FOUR_BITS, {"w": "are not 4-bit"}),
        ([DENSE], {**FOUR_BITS, "weight_threshold": 9792}, {}),
        ([DENSE], {**FOUR_BITS, "weight_threshold": 9791}, ROUTER),
        *(([Weight("bias", (4096,), 8192, 16)], asked, {})
          for asked in (FOUR_BITS, EIGHT_BITS, {"method": "prune", "threshold": 1})),
        # Groups lie along the output channels: as many as groups of 16 take, or of 32 inputs.
        *(([lut(tables, op)], FOUR_BITS, {}) for op, tables in (
            ("conv", 2), ("conv_transpose", 4), ("matmul", 2), ("matmul", 4))),
        *(([lut(tables, op)], FOUR_BITS, {"w": TABLES}) for op, tables in (
            ("conv", 4), ("linear", 4), ("conv_transpose", 2), ("matmul", 8), ("conv", 1))),
        ([Weight("w", (64, 128), 5000, 8, (Stage(SCALE, 8, 64),), op_types=("conv",))],
         EIGHT_BITS, {}),
        ([Weight("w", (64, 128), 5000, 8, (Stage(SCALE, 8, 128),), op_types=("conv",))],
         EIGHT_BITS, {"w": TABLES}),
        ([lut(2, vector=2)], PAIRS, {}),
        ([lut(2)], PAIRS, {"w": "have vectors of 1 instead of 2"}),
        ([lut(2, vector=2)], FOUR_BITS, {"w": "have vectors of 2 instead of 1"}),
    ],
)  # fmt: skip
def test_what_was_asked_of_every_weight(
    weights: list[Weight], asked: dict[str, Any], wrong: dict[str, str]
) -> None:
    assert kinds(of(*weights, asked=asked)) == wrong


HALF = {"method": "prune", "target_sparsity": 0.5}
SPARSE = Stage("constexpr_sparse_to_dense", 16)
SPARSE_LUT = Stage("constexpr_lut_to_sparse", 4, 2)


def chain(*stages: Stage, sparsity: float = 0.0, shape: tuple[int, ...] = (64, 64)) -> Weight:
    return Weight("w", shape, 1000, stages[0].nbits, stages, sparsity)


@pytest.mark.parametrize(
    ("shape", "options", "least"),
    [
        ((64, 64), {"n_m_ratio": [2, 4]}, 0.5),
        # One channel there, which n:m pruning leaves.
        ((64, 1), {"n_m_ratio": [2, 4], "weight_threshold": 0}, 0.25),
        # 66 input channels are 9 groups of 7 and one of 3, filled up with 4 zeros.
        ((64, 66), {"n_m_ratio": [5, 7]}, (9 * 5 + 1) / 66),
        ((64, 64), {"threshold": 0.1}, 0.5),
        ((7, 5), {"target_sparsity": 0.5, "weight_threshold": 0}, 17 / 35),
    ],
)
def test_the_zeros_that_must_be_there(
    shape: tuple[int, int], options: dict[str, Any], least: float
) -> None:
    asked = {"method": "prune", **options}
    assert of(chain(SPARSE, sparsity=least, shape=shape), asked=asked).status == "passed"
    if least != 0.25:
        few = of(chain(SPARSE, sparsity=least - 1e-6, shape=shape), asked=asked)
        assert kinds(few) == {"w": "have fewer zeros than asked for"}


PALETTE_OF_INT8 = {
    "method": "palettize",
    "joint": [{"method": "linear", "granularity": "per_tensor"}],
}


@pytest.mark.parametrize(
    ("asked", "stages"),
    [
        ({**HALF, "joint": [{"method": "palettize"}]}, (SPARSE,)),
        ({**HALF, "joint": [{"method": "palettize"}]}, (Stage(LUT, 4, 2),)),
        ({**HALF, "joint": [{"method": "linear"}]}, (SPARSE_LUT, SPARSE)),
        (HALF, (SPARSE_LUT, SPARSE)),
        (PALETTE_OF_INT8, (Stage(LUT, 4, 2),)),
        (PALETTE_OF_INT8, (Stage(SCALE, 16, 1, 64, of_table=True), Stage(LUT, 4, 2))),
        (PALETTE_OF_INT8, (Stage(SCALE, 4, 1, 1, of_table=True), Stage(LUT, 4, 2))),
        (PALETTE_OF_INT8, (Stage(SCALE, 8, 2, 1, of_table=True), Stage(LUT, 4, 2))),
        (FOUR_BITS, (Stage(SCALE, 8, 1, 1, of_table=True), Stage(LUT, 4, 2))),
        ({**FOUR_BITS, "enable_per_channel_scale": True}, (Stage(LUT, 4, 128),)),
    ],
)
def test_a_step_that_was_left_out_or_not_asked_for(
    asked: dict[str, Any], stages: tuple[Stage, ...]
) -> None:
    verdict = of(chain(*stages, sparsity=0.5), asked=asked)
    assert verdict.status == "failed"
    assert len(verdict.reasons) == 1


def test_every_step_may_be_there() -> None:
    whole = (Stage(SCALE, 8, of_table=True), SPARSE_LUT, SPARSE)
    asked = {**HALF, "joint": [{"method": "palettize"}, *PALETTE_OF_INT8["joint"]]}
    assert of(chain(*whole, sparsity=0.5), asked=asked).status == "passed"


def test_the_lowest_ratio_is_a_figure_where_something_was_lost() -> None:
    losses = (Distortion("q_proj_weight", 1.0, 100.0), Distortion("down_proj_weight", 1.0, 1000.0))
    verdict = of(Q, DOWN, NORM, distortions=(*losses, Distortion("norm_weight", 0.0, 1.0)))
    assert verdict.values["min_snr_db"] == 20.0
    assert verdict.values["min_snr_weight"] == "q_proj_weight"
    assert verdict.tables[0].rows[0][-3:-1] == (1.0, pytest.approx(20.0))
    assert verdict.tables[0].rows[2][-3:-1] == (None, None)
    verdict = of(NORM, asked=None, distortions=(Distortion("norm_weight", 0.0, 1.0),))
    assert "min_snr_db" not in verdict.values


@pytest.mark.parametrize("sse", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_fail(sse: float) -> None:
    verdict = of(Q, asked=None, distortions=(Distortion("q_proj_weight", sse, 1.0),))
    assert kinds(verdict) == {"q_proj_weight": "hold NaN or infinity"}


def lost(name: str, error: float, row: float, scheme: str = "6-bit k-means") -> Distortion:
    return Distortion(name, error, 1000.0, scheme, 1.0, row, (16, 31))


def reasons(*distortions: Distortion, **options: Any) -> list[str]:
    return [finding.reason for finding in of(Q, distortions=distortions, **options).reasons]


def test_errors_beyond_what_the_scheme_explains() -> None:
    verdict = of(Q, DOWN, distortions=(lost("q_proj_weight", 1.25, 4.0),))
    assert verdict.status == "passed"
    assert verdict.values["max_weight_error"] == 1.25
    assert verdict.values["max_weight_row_error"] == 4.0
    assert reasons(lost("q_proj_weight", 2.0, 28.04)) == [
        "compression: q_proj_weight rows 16 to 31 cost 28 times what 6-bit k-means needs "
        "(at most 4)"
    ]
    assert reasons(lost("q_proj_weight", 2.0, 4.0)) == [
        "compression: q_proj_weight costs 2 times what 6-bit k-means needs "
        "(max-weight-error = 1.25)"
    ]
    assert reasons(lost("q_proj_weight", 2.0, 4.0), **{"max-weight-error": 2}) == []
    errors = (lost("a", 2, 5), lost("b", 1, 500), lost("c", 1, 50))
    assert [reason.split()[1] for reason in reasons(*errors)] == ["b", "c", "a"]


def test_what_is_not_compressed_is_equal() -> None:
    assert reasons(lost("norm_weight", 1.0, 4.0, "fp16")) == []
    assert reasons(lost("norm_weight", 1.0, 2500.0, "fp16")) == [
        "norm_weight is not compressed, but rows 16 to 31 differ from the uncompressed weight by "
        "up to 50 steps of fp16"
    ]
    assert kinds(of(Q, names={"changed": ("main/scale",)})) == {
        "main/scale": "are other numbers than in the uncompressed program"
    }


def test_weights_that_are_missing_or_of_unknown_origin() -> None:
    verdict = of(Q, distortions=(lost("q_proj_weight", 1, 1),), names={"missing": ("a", "b")})
    assert list(kinds(verdict)) == ["a", "b"]
    assert verdict.values["weights_missing"] == 2
    (finding,) = of(Q, names={"missing": ("a", "b")}).reasons
    assert "so it is another program" in finding.reason
    verdict = of(Q, names={"extra": ("new",)})
    assert (verdict.status, [f.severity for f in verdict.findings]) == ("passed", ["warned"])


def test_packages_that_nothing_is_known_of() -> None:
    (finding,) = of(Q, against="changed").reasons
    assert "other bytes than those whose weights its build measured" in finding.reason
    bad = lost("q_proj_weight", 2.0, 28.0)
    verdict = of(Q, distortions=(bad,), against="nothing")
    (finding,) = verdict.findings
    assert (verdict.status, finding.severity) == ("passed", "note")
    assert 'uncompressed = "x-fp16.mlpackage"' in finding.remedy
    assert of(NORM, against="itself", asked=None).findings == ()


@pytest.mark.parametrize(
    ("scheme", "asked", "why"),
    [
        ("4-bit k-means of vectors of 2", FOUR_BITS, "nothing says what 4-bit k-means of vectors"),
        ("", None, "the manifest does not say"),
    ],
)
def test_an_error_without_a_yardstick_is_a_note(
    scheme: str, asked: dict[str, Any] | None, why: str
) -> None:
    verdict = of(Q, distortions=(Distortion("q_proj_weight", 9.0, 10.0, scheme),), asked=asked)
    (finding,) = verdict.findings
    assert (verdict.status, finding.severity) == ("passed", "note")
    assert f"The error of q_proj_weight was not judged: {why}" in finding.reason
