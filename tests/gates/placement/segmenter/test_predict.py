"""Predicted placement, and the shortest path it is."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.gates.placement.segmenter import (
    Edges,
    Off,
    Op,
    Prediction,
    Tensor,
    predict,
    shortest,
)
from pytest_ane.mlprogram.errors import ManifestError

# Quarters are exact in binary, so that equal paths cost the same to the last bit.
_MS = st.integers(0, 12).map(lambda quarters: quarters / 4)
_EDGES = Edges([0.125, 0.0, 0.125], [0.125] * 3, [0.125, 0.0, 0.125])


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[tuple[float, ...]], Edges]:
    """Up to 5 operations on up to 4 backends; the last backend takes every operation."""
    backends = draw(st.integers(1, 4))
    edges = [draw(st.lists(_MS, min_size=backends, max_size=backends)) for _ in range(3)]
    cost = _MS | st.just(math.inf)
    row = st.tuples(*[cost] * (backends - 1), _MS)
    return draw(st.lists(row, min_size=1, max_size=5)), Edges(*edges)


def _cost(costs: list[tuple[float, ...]], edges: Edges, path: tuple[int, ...]) -> float:
    """Term by term: the launch of each segment, each operation, each switch, the end."""
    total, previous = 0.0, None
    for row, backend in zip(costs, path, strict=True):
        if backend != previous:
            total += edges.launch[backend]
            total += 0.0 if previous is None else edges.switch[backend]
        total += row[backend]
        previous = backend
    return total + edges.end[path[-1]]


@given(chains())
def test_every_path_costs_at_least_the_best(chain: tuple[list[tuple[float, ...]], Edges]) -> None:
    costs, edges = chain
    paths = shortest(costs, edges, 1e-9)
    backends = range(len(edges.launch))
    every = {
        path: _cost(costs, edges, path) for path in itertools.product(backends, repeat=len(costs))
    }
    assert paths.total == min(every.values())
    assert every[paths.chosen] == paths.total
    for index, row in enumerate(paths.through):
        for backend, through in enumerate(row):
            assert through == min(ms for path, ms in every.items() if path[index] == backend)


def test_chains_without_operations_or_without_a_path() -> None:
    assert shortest([], _EDGES, 1e-6).total == 0.0
    paths = shortest([(math.inf,) * 3], _EDGES, 1e-6)
    assert (paths.total, paths.chosen) == (math.inf, ())
    prediction = predict([])
    assert (prediction.operations, prediction.segments, prediction.total_ms) == ((), (), 0.0)


IMAGE = Tensor((1, 64, 32, 32))


def conv(name: str) -> Op:
    """0.0047 ms on the ANE and 0.1001 ms on the CPU."""
    return Op(name, "conv", (IMAGE,), (IMAGE,), Tensor((64, 64, 3, 3)))


def op(kind: str, name: str = "") -> Op:
    return Op(name or kind, kind, (IMAGE,), (IMAGE,))


def units(prediction: Prediction) -> str:
    return " ".join(op.unit or "?" for op in prediction.operations)


def test_enough_work_is_on_the_ane() -> None:
    """Four convolutions: 0.4003 ms on the CPU; 0.0187, a launch and an end on the ANE."""
    prediction = predict([*map(conv, "abcd"), op("relu")])
    assert units(prediction) == "ANE ANE ANE ANE ANE"
    # A relu costs the same everywhere, and after it the end or the switch.
    assert (prediction.operations[-1].undecided, prediction.operations[-1].margin) == (True, 0.0)
    prediction = predict([conv(name) for name in "abcd"])
    assert prediction.total_ms == pytest.approx(4 * 0.0046743 + 0.25, rel=1e-4)
    assert prediction.without_ane_ms == pytest.approx(4 * 0.1000639, rel=1e-4)
    assert prediction.margin == pytest.approx(0.1316, rel=1e-3)
    assert [(s.unit, s.first, s.last) for s in prediction.segments] == [("ANE", 0, 3)]
    # Without one in the middle, the rest is better on the CPU too.
    assert prediction.operations[1].margin == pytest.approx(prediction.margin)
    assert not any(placed.undecided or placed.off for placed in prediction.operations)
    assert (prediction.chip, prediction.system) == ("M4", "macOS 27")
    prediction = predict([conv("a"), conv("b")])
    assert (units(prediction), prediction.margin) == ("CPU CPU", 0.0)
    off = prediction.operations[0].off
    assert off
    # 0.2593 ms on the ANE, 0.2001 ms on the CPU.
    short = pytest.approx(2 * 0.0046743 + 0.25 - 2 * 0.1000639, rel=1e-3)
    assert (off.cause, off.short_ms) == ("too little work", short)


def test_an_unsupported_operation_pulls_its_neighbours_along() -> None:
    prediction = predict([conv("a"), conv("b"), op("cumsum", "sum"), conv("c")])
    assert units(prediction) == "CPU CPU CPU CPU"
    offs = [placed.off for placed in prediction.operations]
    assert offs[2] == Off("unsupported", "cumsum: the ANE does not have it")
    assert [(off.cause, off.neighbour) for off in (offs[0], offs[1], offs[3]) if off] == [
        ("neighbour", "sum")
    ] * 3
    assert prediction.operations[2].margin is None


def test_a_long_segment_is_split_around_an_unsupported_operation() -> None:
    prediction = predict([*map(conv, "abcde"), op("cumsum"), *map(conv, "fghij")])
    assert units(prediction) == " ".join(["ANE"] * 5 + ["CPU"] + ["ANE"] * 5)
    assert prediction.switches == 2
    sums = sum(segment.ms for segment in prediction.segments)
    # Two launches, a switch to the CPU, one back, and the end.
    assert prediction.total_ms == pytest.approx(sums + 5 * 0.125)


def test_with_all_the_gpu_takes_part_and_what_it_does_cheaper_is_told() -> None:
    """ResNet-50's first addition: 1.94 ms on the ANE, 0.93 ms and two changes on the GPU."""
    kernel = Op("conv", "conv", (IMAGE,), (IMAGE,), Tensor((64, 64, 17, 17)))
    assert [units(predict([kernel])), units(predict([kernel], "ALL"))] == ["CPU", "GPU"]
    wide = Tensor((16, 256, 56, 56))
    conv = Op("c", "conv", (wide,), (wide,), Tensor((256, 256, 1, 1)))
    chain = [conv, Op("add", "add", (wide, wide), (wide,)), conv]
    prediction = predict(chain, "ALL", "M4 Pro")
    assert units(prediction) == "ANE GPU ANE"
    assert "The GPU's rates" in prediction.no_data[-1]
    off = prediction.operations[1].off
    assert off
    assert off.cause == "cheaper on the GPU"
    assert off.short_ms == pytest.approx(1.9355 - 0.9333 - 0.5, rel=1e-2)


@pytest.mark.parametrize(
    ("last", "unit"),
    [
        (op("non_zero"), "CPU"),
        (Op("s", "slice_by_size", (IMAGE,), (IMAGE,), attributes={"runtime_begin": (1,)}), "CPU"),
        (Op("r", "relu", (Tensor((1, None)),), (Tensor((1, None)),)), None),
    ],
)
def test_shapes_known_only_at_run_time_have_no_path(last: Op, unit: str | None) -> None:
    prediction = predict([*map(conv, "abcd"), last])
    assert [placed.unit for placed in prediction.operations] == [unit] * 5
    assert all(placed.undecided for placed in prediction.operations)
    assert (prediction.total_ms, prediction.margin, prediction.segments) == (None, None, ())
    assert "known only at run time" in prediction.no_data[0]


def test_what_has_no_data_is_listed() -> None:
    compressed = Op("a", "relu", (IMAGE,), (IMAGE,), no_data=("compressed weights",))
    prediction = predict([compressed, op("read_state")], no_data=["several functions"])
    assert prediction.no_data == (
        "No public plan has compressed weights; counted as if uncompressed.",
        "No public plan has several functions; each is predicted as if alone.",
        "No public plan has read_state; support and the default cost assumed.",
    )
    other = predict([op("relu")], chip="M4 Pro")
    assert other.no_data == ("The CPU's rates on M4 Pro are those of M4.",)
    lstm = Op("l", "lstm", (Tensor((4, 1, 64)),), (Tensor((4, 1, 64)),))
    assert predict([lstm]).no_data == ("The cost of lstm is from one recorded operation.",)
    wide = Tensor((1, 512, 512))
    (sentence,) = predict([Op("t", "transpose", (wide,), (wide,))]).no_data
    assert "as large as transpose here on the ANE" in sentence
    assert predict([op("sigmoid")]).no_data == ()


def test_a_word_that_is_no_chip_is_refused() -> None:
    with pytest.raises(ManifestError, match=r"'M0' is no chip with an ANE; give M4 or M4 Pro"):
        predict([op("relu")], chip="M0")


@pytest.mark.parametrize("chip", ["M1", "m5  max", "A17 Pro"])
def test_a_chip_without_costs_has_support_alone(chip: str) -> None:
    prediction = predict([*map(conv, "abcd"), op("cumsum")], chip=chip)
    assert prediction.chip.casefold() == " ".join(chip.casefold().split())
    assert (prediction.system, prediction.total_ms, prediction.segments) == ("", None, ())
    assert {placed.unit for placed in prediction.operations} == {None}
    assert prediction.operations[-1].off == Off("unsupported", "cumsum: the ANE does not have it")
    assert prediction.no_data[:2] == (
        f"No costs of {prediction.chip} are public: where an operation runs is not predicted.",
        "Support is by limits measured on M4 (h16g).",
    )


@pytest.mark.parametrize(
    ("ops", "work"),
    [
        # 20 convolutions save 1.9 ms, one 0.095 ms, and a sigmoid less than 0.001 ms.
        ([conv("a")] * 20, "large"),
        ([conv("a")], "unknown"),
        ([op("sigmoid")], "small"),
        ([op("cumsum")], None),
        ([*[conv("a")] * 20, op("non_zero")], None),
    ],
)
def test_work_is_large_or_small_far_from_a_launch(ops: list[Op], work: str | None) -> None:
    assert predict(ops, chip="M2").operations[0].work == work
