"""Rules on shapes: their limits, what is known only at run time, and states."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pytest

from pytest_ane.gates.placement import Forecast, forecast
from pytest_ane.gates.placement.rules._shapes import limit_bytes, too_large
from pytest_ane.gates.placement.segmenter import function_ops
from pytest_ane.gates.placement.segmenter._costs import obstacle
from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.mlprogram.records import DType, Feature, Operation, StateType, TensorType, ValueType
from tests.gates.placement.programs import (
    const,
    foretell,
    full,
    function,
    half,
    ints,
    model,
    op,
    rules,
    value,
)


def reshape(*shape: int | None) -> list[tuple[str, str, str]]:
    return rules(op("reshape", "y", half(*shape), x="x", shape=value([1])))


def test_rank_6_is_ineligible_read_or_computed_and_rank_5_is_fine() -> None:
    (finding,) = foretell(op("reshape", "y", half(1, 2, 2, 2, 2, 2), x="x")).matches
    assert finding.rule == "R027"
    assert finding.why == "fp16[1,2,2,2,2,2] has rank 6; the ANE takes rank 5 at most."
    found = rules(op("reshape", "y", half(32), x="x"), inputs={"x": half(1, 2, 2, 2, 2, 2)})
    assert found == [("y", "R027", "ineligible")]
    assert reshape(1, 2, 2, 2, 4) == []


@pytest.mark.parametrize(
    ("shape", "outcome"),
    [
        *((long, "ineligible") for long in (
            (1, 240_000), (1, 1, 65_537), (65_537, 8, 1, 1), (1, 8, 1, 65_537), (1, 65_537, 1, 2))),
        # What only newer chips take.
        *((long, "warned") for long in ((1, 8, 1, 16_385), (1, 8, 65_536, 2), (1, 20_000))),
        # A slice of a vocabulary as a 1x1 convolution, and a quarter of Phi-4's, measured.
        *((fine, "") for fine in (
            (1, 12_288, 1, 64), (1, 50_016, 1, 4), (1, 65_536, 1, 2), (65_536, 8, 1, 2),
            (20_000, 8), (1, 16_384), (1, 8, 1, None))),
    ],
)  # fmt: skip
def test_a_long_axis(shape: tuple[int | None, ...], outcome: str) -> None:
    found = reshape(*shape)
    assert ("y", "R030", outcome) in found if outcome else found == []


def test_channels_of_a_convolution_are_warned_of_and_constants_are_fine() -> None:
    conv = op("conv", "y", half(1, 262_144, 1, 2), x="x")
    assert rules(conv) == [("y", "R030", "warned")]
    table = const("table", np.zeros((70_000, 1), np.float16))
    assert rules(table, op("gather", "y", half(2, 1), x="table", indices=value([0, 1]))) == []


def head(kind: str, outputs: int, **given: object) -> list[tuple[str, str, str]]:
    result = half(1, outputs)
    return rules(op(kind, "y", result, x="x", **given), inputs={"x": half(1, 4)})


def test_a_wide_head_by_a_constant_is_warned_of() -> None:
    weight = value(np.zeros((17_408, 4), np.float16))
    assert ("y", "R032", "warned") in head("linear", 17_408, weight=weight)
    assert ("y", "R032", "warned") in head("matmul", 17_408, y=value(np.zeros((4, 17_408), "f2")))
    assert head("linear", 13_088, weight=value(np.zeros((13_088, 4), np.float16))) == []
    found = rules(
        op("matmul", "y", half(1, 1, 4, 20_000), x="q", y="k"),
        inputs={"q": half(1, 1, 4, 8), "k": half(1, 1, 8, 20_000)},
    )
    assert [rule for _, rule, _ in found] == ["R030"]


def conv(*kernel: int) -> Operation:
    weight = value(np.zeros((2, 2, *kernel), np.float16))
    return op("conv", "y", half(1, 2, 1, 64), x="x", weight=weight)


def pool(*sizes: int) -> Operation:
    return op("max_pool", "y", half(1, 2, 1, 64), x="x", kernel_sizes=value(sizes))


X = {"x": half(1, 2, 1, 64), "n": ints(2), "a": half(2, 32_768), "b": half(32_768, 2)}
X |= {"c": half(2, 40_000), "d": half(40_000, 2)}
BOOL = TensorType(DType.BOOL, (1, 64))
Y = half(1, 2, 1, 64)
TAKEN = [
    *(conv(1, 15), conv(31, 1), conv(16, 16), pool(9, 8), pool(2, 32), pool(9, 1)),
    *(op(kind, "y", Y, x="x") for kind in ("relu", "affine", "resample", "einsum")),
    op("relu", "y", half(65_536, 2), x="x"),
    op("relu", "y", half(1, 4, 16, 32, 32), x="x"),
    op("logical_and", "y", BOOL, x="x", y="x"),
    op("topk", "y", half(1, 2, 1, 4), x="x"),
    op("gather", "y", half(1, 2, 1, 2), x="x", indices=value([0, 3])),
    op("gather_nd", "y", half(2), x="x", indices="n"),
    op("slice_by_size", "y", half(1, 1), x="x", begin=value([0, 0]), size=value([1, 1])),
    op("cast", "c", full(1, 2, 1, 64), x="y"),
    op("matmul", "y", half(2, 2), x="a", y="b"),
]
OFF = [
    (conv(1, 16), "a kernel of 1x16; the ANE takes 15 wide"),
    (conv(32, 1), "a kernel of 32x1; the ANE takes 31 high"),
    (conv(17, 17), "a kernel of 17x17; the ANE takes 16 on a side"),
    (pool(2, 9), "max_pool 9 wide; the ANE takes 8, or 32"),
    (pool(2, 33), "max_pool 33 wide"),
    (op("relu", "y", half(1, 65_537, 1, 2), x="x"), "an axis of 65,537; the ANE takes 65,536"),
    (op("relu", "y", half(1, 1, 1, 1, 1, 2), x="x"), "a tensor of rank 6"),
    (op("add", "y", ints(2), x="n", y=value([1, 1])), "add of int32"),
    (op("mul", "y", full(1, 2, 1, 64), x="x", y="x"), "mul of fp32"),
    (op("gather", "y", half(1, 2, 1, 2), x="x", indices="n"), "gather with indices computed"),
    (op("slice_by_size", "y", half(1, 1), x="x", begin="n", size=value([1, 1])),
     "slice_by_size of int32"),
    (op("matmul", "y", half(2, 2), x="c", y="d"), "matmul over 40,000 elements; the ANE takes 32,"),
    (op("while_loop", "y", half(1, 64), x="x"), "while_loop: the ANE has no control flow"),
    *((op(kind, "y", half(1, 64), x="x"), f"{kind}: the ANE does not have it") for kind in (
        "argsort", "crop_resize", "cumsum", "lstm", "reduce_argmax", "scatter", "tan")),
]  # fmt: skip


@pytest.mark.parametrize(("made", "limit"), [*((made, "") for made in TAKEN), *OFF])
def test_rules_and_the_segmenter_say_the_same(made: Operation, limit: str) -> None:
    inputs = X | {"y": Y}
    assert any(foretell(made, inputs=inputs).of("ineligible")) is bool(limit)
    (seen,) = function_ops(function(made, inputs=inputs))
    found = obstacle(seen, "ane")
    assert found.startswith(limit) if limit else found == ""


GIB = 2**30


@pytest.mark.parametrize(
    ("os", "limit"),
    [("macOS 15.2", 2 * GIB), ("macOS 26", 2 * GIB), ("macOS 27", GIB), ("macos 27.0.1", GIB),
     (" macOS  28 ", GIB), ("iOS 26", 2 * GIB)],
)  # fmt: skip
def test_limits(os: str, limit: int) -> None:
    assert limit_bytes(os) == limit
    assert too_large(limit, os) is None
    assert f"{limit // GIB} GiB at most." in (too_large(limit + 1, os) or "")


@pytest.mark.parametrize("os", ["", "27", "macOS", "macOS twenty", "Linux 6", "macOS 26; rm"])
def test_what_is_no_system_is_refused(os: str) -> None:
    with pytest.raises(ManifestError, match="is not a system; write it like 'macOS 26'"):
        limit_bytes(os)


IN = {"x": half(1, 8, 1, None), "n": ints(1)}


def ineligible(*operations: Operation) -> list[tuple[str, str, str]]:
    """What keeps ops off, but that they are of integers."""
    found = rules(*operations, inputs=IN)
    return [match for match in found if match[2] == "ineligible" and match[1] != "R022"]


@pytest.mark.parametrize(
    "operation",
    [
        op("slice_by_index", "y", half(1, 8, 1, None), x="x", begin=value([0]), end="n"),
        op("slice_by_index", "y", half(1, 8, 1, None), x="x", end=value([4]), begin="n"),
        op("slice_by_size", "y", half(1, 8, 1, None), x="x", begin=value([0]), size="n"),
        op("range_1d", "y", ints(None), start=value(0), end="n", step=value(1)),
        op("reshape", "y", half(None, 8), x="x", shape="n"),
        op("fill", "y", half(None), shape="n", value=value(0.5)),
        op("tile", "y", half(None, 8), x="x", reps="n"),
        op("pad", "y", half(None, 8), x="x", pad="n"),
    ],
    ids=lambda operation: "-".join((operation.op, *operation.inputs)),
)
def test_extents_from_runtime_values_are_ineligible(operation: Operation) -> None:
    assert ineligible(operation) == [("y", "R053", "ineligible")]


def test_extents_from_the_shape_of_a_flexible_input_are_plain_propagation() -> None:
    found = rules(
        op("shape", "s", ints(4), x="x"),
        op("gather", "t", ints(), x="s", indices=value(3), axis=value(0)),
        op("add", "end", ints(), x="t", y=value(1)),
        op(
            "slice_by_index", "mask", half(1, None), x=value([[0.5] * 9]), begin=value([0]), end="t"
        ),
        op("range_1d", "positions", ints(None), start=value(0), end="t", step=value(1)),
        op("reshape", "y", half(None, 8), x="x", shape="end"),
        inputs=IN,
    )
    assert found == [("s", "R005", "ineligible")], "only the shape op itself has no ANE form"


def test_the_shape_of_a_data_dependent_tensor_is_data_dependent() -> None:
    found = ineligible(
        op("range_1d", "r", ints(None), start=value(0), end="n", step=value(1)),
        op("shape", "s", ints(1), x="r"),
        op("reshape", "y", half(None, 8), x="x", shape="s"),
    )
    assert [(place, rule) for place, rule, _ in found] == [
        ("r", "R053"),
        ("s", "R005"),
        ("y", "R053"),
    ]


def test_a_masked_end_is_not_read_and_a_cache_keeps_its_extents() -> None:
    mask = const("mask", np.array([True, True]))
    cut = op("slice_by_index", "y", half(1, 8), x="x", begin=value([0]), end="n", end_mask="mask")
    assert rules(mask, cut, inputs=IN) == []
    write = op("slice_update", "y", half(1, 8, 1, 64), x="x", update="x", begin="n", end="n")
    assert ineligible(write) == []


def ranged(*ranges: tuple[int, int | None]) -> list[tuple[str, str, str]]:
    feature = Feature("x", DType.FP16, (1, 8, 1, 4), ranges)
    flexible = function(op("relu", "y", half(1, 8, 1, None), x="x"), inputs=IN)
    found = forecast(model(flexible, features=[feature]), size_bytes=1).matches
    return [(finding.op, finding.rule, finding.why) for finding in found]


def test_an_input_without_an_upper_bound_is_ineligible_and_a_bounded_one_is_fine() -> None:
    why = "Axis 3 of input `x` has no upper bound."
    assert ranged((1, 1), (8, 8), (1, 1), (1, None)) == [("x", "R056", why)]
    assert ranged((1, 1), (8, 8), (1, 1), (1, 64)) == []
    assert ranged() == []


def enumerated(
    *shapes: tuple[int, ...], inputs: Mapping[str, ValueType] = MappingProxyType(IN)
) -> Forecast:
    feature = Feature("x", DType.FP16, (1, 8, 1, 4), enumerated=shapes)
    flexible = function(op("relu", "y", half(1, 8, 1, None), x="x"), inputs=inputs)
    return forecast(model(flexible, features=[feature]), size_bytes=1)


def test_enumerated_shapes_are_warned_of_and_the_program_stays_eligible() -> None:
    found = enumerated((1, 8, 1, 4), (1, 8, 1, 8))
    (finding,) = found.matches
    assert (finding.rule, finding.outcome) == ("R055", "warned")
    assert finding.why == "Input `x` has 2 enumerated shapes."
    assert (found.outcome, found.warned()) == ("eligible", 0), "no single op is meant"
    assert enumerated().matches == ()


def test_enumerated_shapes_beside_a_state_are_warned_of_twice() -> None:
    found = enumerated((1, 8, 1, 4), inputs={**IN, "cache": StateType(half(1, 32))})
    assert [finding.rule for finding in found.matches] == ["R055", "R062"]
    assert enumerated(inputs={**IN, "cache": StateType(half(1, 32))}).matches == ()


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (full(1, 32), [("R061", "State `cache` is fp32[1,32], not fp16.")]),
        (half(1, 3, 256, 270),
         [("R058", "State `cache` is fp16[1,3,256,270]; 270 is no multiple of 32.")]),
        *((fine, []) for fine in (half(1, 32), half(1, 3, 256), half(270, 2048))),
    ],
    ids=str,
)  # fmt: skip
def test_a_state_is_in_fp16_and_as_wide_as_a_multiple_of_32(
    kind: TensorType, found: list[tuple[str, str]]
) -> None:
    read = op("read_state", "c", half(1, 32), input="cache")
    relu = op("relu", "y", half(1, 32), x="c")
    matches = foretell(read, relu, inputs={"cache": StateType(kind)}).matches
    told = [(match.rule, match.why) for match in matches if match.type == "state"]
    assert told == found


def update(*after: Operation) -> list[tuple[str, str, str]]:
    at = {"begin": value([0, 0]), "end": value([1, 16])}
    new = op("slice_update", "u", half(1, 32), x="c", update="h", **at)
    cache, h = StateType(half(1, 32)), half(1, 16)
    read = op("read_state", "c", half(1, 32), input="cache")
    return rules(read, new, *after, inputs={"cache": cache, "h": h}, outputs=["u"])


def test_only_the_last_of_a_chain_of_updates_must_reach_a_state() -> None:
    assert update() == [("u", "R059", "warned")]
    assert update(op("relu", "y", half(1, 32), x="u")) == [("u", "R059", "warned")]
    assert update(op("write_state", "", None, input="cache", data="u")) == []
    more = op("slice_update", "v", half(1, 32), x="u", update="h", begin=value([0, 16]))
    assert update(more, op("write_state", "", None, input="cache", data="v")) == []
    assert update(more) == [("v", "R059", "warned")]
