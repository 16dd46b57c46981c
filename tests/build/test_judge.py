"""The compression gate's verdicts, sentence by sentence."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from pytest_ane.build import Census, judge
from pytest_ane.build.census import Weight
from pytest_ane.build.stages import Stage
from pytest_ane.manifest import Compression, CompressionPolicy
from pytest_ane.verdict import Verdict

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
    **policy: Any,
) -> Verdict:
    compression = asked and TypeAdapter(Compression).validate_python(asked)
    return judge(
        Census(weights),
        size=size,
        asked=compression,
        policy=CompressionPolicy.model_validate(policy),
        subject="smollm2:L01",
        notes=notes,
    )


def test_all_weights_compressed() -> None:
    verdict = of(Q, DOWN, NORM)
    assert (verdict.gate, verdict.subject) == ("compression", "smollm2:L01")
    assert (verdict.status, verdict.reasons) == ("passed", ())
    assert verdict.summary == (
        "0.70 MB, 3.48x smaller than fp16 · 2 weights (2 lut_to_dense 4-bit)"
    )
    assert verdict.facts == {
        "size_bytes": 700_000,
        "ratio": 3.4774,
        "weights": 3,
        "weights_compressed": 2,
    }
    assert verdict.details == (
        "q_proj_weight [576, 576, 1, 1]: constexpr_lut_to_dense, 4 bits, 18 groups, 166,464 bytes",
        "down_proj_weight [576, 1536, 1, 1]: constexpr_lut_to_dense, 4 bits, 18 groups, 442,944 "
        "bytes",
        "norm_weight [1, 576, 1, 1]: const, 16 bits, 0 groups, 1,152 bytes",
    )


def test_a_weight_whose_channels_do_not_divide() -> None:
    verdict = of(Q, DENSE)
    assert verdict.status == "failed"
    assert verdict.reasons == (
        "router_weight [17, 576, 1, 1] was to be palettized (kmeans, 4 bits, per_grouped_channel) "
        "but is stored as const (17 output channels are not divisible by group_size 32); choose a "
        "setting that fits its shape, or name it in compression.keep.",
    )


def test_a_weight_that_the_converter_declined_for_reasons_of_its_own() -> None:
    verdict = of(
        Weight("w", (64, 64, 1, 1), 8192, 16),
        notes=("Something else.", "Cannot perform palettization on w. Skipped this op."),
    )
    assert (
        "stored as const (Cannot perform palettization on w. Skipped this op);"
        in (verdict.reasons[0])
    )


def test_a_weight_declined_without_a_word() -> None:
    verdict = of(Weight("w", (64, 64, 1, 1), 8192, 16), asked=EIGHT_BITS)
    assert verdict.reasons == (
        "w [64, 64, 1, 1] was to be quantized (int8, per_channel) but is stored as const; choose a "
        "setting that fits its shape, or name it in compression.keep.",
    )


def test_another_method_than_asked_for() -> None:
    quantized = stored("w", (64, 64, 1, 1), SCALE, 4, 64, 1, 2176)
    assert of(quantized).reasons[0].startswith("w [64, 64, 1, 1] was to be palettized")
    assert of(quantized, asked={**EIGHT_BITS, "dtype": "int4"}).status == "passed"
    affine = stored("w", (64, 64, 1, 1), "constexpr_affine_dequantize", 8, 64, 1, 4300)
    assert of(affine, asked=EIGHT_BITS).status == "passed"


def test_another_number_of_bits_than_asked_for() -> None:
    verdict = of(Q, asked={**FOUR_BITS, "nbits": 6})
    assert verdict.reasons == (
        "q_proj_weight [576, 576, 1, 1] was to be palettized (kmeans, 6 bits, per_grouped_channel) "
        "but has 4 bits.",
    )
    assert of(Q, asked={**FOUR_BITS, "nbits": 6, "mode": "unique"}).status == "passed"
    wide = stored("w", (64, 64, 1, 1), SCALE, 8, 64, 1, 4224)
    assert of(wide, asked={**EIGHT_BITS, "dtype": "uint4"}).reasons == (
        "w [64, 64, 1, 1] was to be quantized (uint4, per_channel) but has 8 bits.",
    )


def test_a_weight_kept_on_purpose() -> None:
    assert of(Q, DENSE, asked={**FOUR_BITS, "keep": ["router*"]}).status == "passed"


def test_a_weight_that_should_have_been_kept() -> None:
    verdict = of(Q, DOWN, asked={**FOUR_BITS, "keep": ["q_proj*"]})
    assert verdict.reasons == (
        "q_proj_weight was to stay fp16 but is stored as constexpr_lut_to_dense.",
    )
    assert of(Q, asked={"method": "none"}).status == "failed"
    assert of(NORM, DENSE, asked={"method": "none"}).status == "passed"


@pytest.mark.parametrize(("threshold", "passes"), [(9792, True), (9791, False)])
def test_small_weights_stay_as_they_are(threshold: int, passes: bool) -> None:
    """The router has 9,792 elements."""
    verdict = of(Q, DENSE, asked={**FOUR_BITS, "weight_threshold": threshold})
    assert (verdict.status == "passed") is passes


def test_over_the_budget() -> None:
    verdict = of(Q, DOWN, **{"max-bytes": "0.6 MB"})
    assert verdict.reasons == (
        "The package has 700,000 bytes, over the budget of 600,000 "
        "(policy.compression.max-bytes); it would pass at max-bytes = 700000.",
    )
    assert of(Q, **{"max-bytes": 700_000}).status == "passed"


def test_below_the_ratio() -> None:
    verdict = of(Q, DOWN, size=1_400_000, **{"min-ratio": 2.0})
    assert verdict.reasons == (
        "The package is 1.738x smaller than fp16, below policy.compression.min-ratio = 2.",
    )
    assert of(Q, DOWN, size=1_216_512, **{"min-ratio": 2.0}).status == "passed"


def test_a_package_of_unknown_making_holds_only_the_budget() -> None:
    assert of(Q, DENSE, asked=None).status == "passed"
    assert of(Q, DENSE, asked=None, **{"max-bytes": 1}).status == "failed"


def test_no_weights_prove_nothing() -> None:
    verdict = of()
    assert verdict.status == "unproven"
    assert verdict.reasons == ("The program has no weights, so there was nothing to check.",)
    assert of(**{"max-bytes": 1}).status == "failed"


def test_an_empty_package() -> None:
    verdict = of(Q, size=0)
    assert verdict.facts["ratio"] == 0.0


def test_every_weight_is_named() -> None:
    assert len(of(DENSE, Weight("v", (17, 576), 19_584, 16)).reasons) == 2


def test_one_table_where_groups_were_asked_for() -> None:
    one = stored("w", (64, 64, 1, 1), LUT, 4, 1, 1, 2080)
    asked = {"method": "palettize", "nbits": 4, "group_size": 16}
    assert "takes 4 tables or scales, but has 1" in of(one, asked=asked).reasons[0]
