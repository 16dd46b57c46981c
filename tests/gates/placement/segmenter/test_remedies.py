"""Remedies: changed graphs that the prediction confirms, with the gain it predicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.gates.placement.segmenter import Op, Remedy, Tensor, predict, remedies
from pytest_ane.gates.placement.segmenter.records import Units

IMAGE = Tensor((1, 64, 32, 32))


def conv(name: str = "conv") -> Op:
    """0.0047 ms on the ANE and 0.1001 ms on the CPU."""
    return Op(name, "conv", (IMAGE,), (IMAGE,), Tensor((64, 64, 3, 3), constant=True))


def op(kind: str, dtype: str = "fp16") -> Op:
    image = Tensor(IMAGE.shape, dtype)
    return Op(kind, kind, (image,), (image,))


def cast(before: str, after: str) -> Op:
    return Op("cast", "cast", (Tensor(IMAGE.shape, before),), (Tensor(IMAGE.shape, after),))


def remedies_of(ops: Sequence[Op], units: Units = "CPU_AND_NE") -> dict[str, Remedy]:
    """By kind."""
    return {remedy.kind: remedy for remedy in remedies(ops, predict(ops, units))}


FIVE = [conv(), conv(), conv(), conv(), conv()]


def test_nothing_to_bring_back() -> None:
    assert remedies_of(FIVE) == {}
    assert remedies_of([]) == {}


def test_an_unsupported_operation_is_rewritten() -> None:
    """Two segments of five convolutions become one; the product stands on the ANE."""
    confirmed = remedies_of([*FIVE, op("cumsum"), *FIVE])
    rewrite = confirmed["rewrite"]
    assert rewrite.action == "rewrite 1 cumsum as matmul with a triangular matrix"
    assert [part.kind for part in rewrite.ops] == ["conv"] * 5 + ["matmul"] + ["conv"] * 5
    assert (rewrite.back, rewrite.segments) == (1, 1)
    # Three of the four changes of backend and launches, and the slower operation.
    assert rewrite.gain_ms == pytest.approx(0.375, abs=0.01)


def test_an_island_is_taken_out_and_still_costs_its_time() -> None:
    ops = [*FIVE, op("cumsum"), *FIVE]
    fuse = remedies_of(ops)["fuse"]
    assert fuse.action == "compute 1 cumsum before or after the program"
    assert fuse.ops == (*FIVE, *FIVE)
    assert (fuse.back, fuse.segments) == (0, 1)
    assert fuse.elsewhere_ms == predict(ops).segments[1].ms > 0
    assert fuse.gain_ms == pytest.approx(0.375)


def test_islands_alike_are_taken_out_together() -> None:
    fuse = remedies_of([*FIVE, op("tan"), *FIVE, op("tan"), *FIVE])["fuse"]
    assert fuse.action == "compute 2 islands of 1 tan before or after the program"
    assert fuse.gain_ms == pytest.approx(0.75)


@pytest.mark.parametrize("dtype", ["int32", "fp32"])
def test_a_chain_is_cast_as_a_whole(dtype: str) -> None:
    """Casts that convert nothing any more are gone."""
    chain = [cast("fp16", dtype), op("add", dtype), op("mul", dtype), cast(dtype, "fp16")]
    changed = remedies_of([*FIVE, *chain, *FIVE])["cast"]
    assert dtype in changed.action
    half = [part for part in changed.ops if part.kind != "conv"]
    assert {t.dtype for part in half for t in (*part.inputs, *part.outputs)} <= {"fp16", dtype}
    assert [part.kind for part in half if part.kind != "cast"] == ["add", "mul"]
    assert changed.segments == 1


def test_two_kinds_that_help_only_together() -> None:
    """Either alone leaves the convolutions between the other's neighbours."""
    ops = [conv(), conv(), op("tan"), conv(), op("cumsum"), conv(), conv()]
    confirmed = remedies_of(ops)
    assert confirmed["together"].back == 7
    assert confirmed["together"].segments == 1


@pytest.mark.parametrize(
    ("unsupported", "kind", "words"),
    [
        (
            Op("k", "conv", (IMAGE,), (IMAGE,), Tensor((64, 64, 1, 40), constant=True)),
            "split",
            "split 1 conv into convolutions with smaller kernels, and add",
        ),
        (
            Op("p", "max_pool", (IMAGE,), (IMAGE,), attributes={"kernel_sizes": (1, 9)}),
            "split",
            "split 1 max_pool into narrower ones in a row",
        ),
        (
            Op(
                "m",
                "matmul",
                (Tensor((1, 16, 40_000)), Tensor((1, 40_000, 16))),
                (Tensor((1, 16, 16)),),
            ),
            "split",
            "split 1 matmul into products over fewer elements, and add",
        ),
        (
            Op("r", "relu", (Tensor((1, 70_000)),), (Tensor((1, 70_000)),)),
            "rewrite",
            "rewrite 1 relu with a long axis laid out as two",
        ),
        (
            Op("r", "relu", (Tensor((2, 2, 2, 2, 2, 2)),), (Tensor((2, 2, 2, 2, 2, 2)),)),
            "rewrite",
            "rewrite 1 relu with fewer axes",
        ),
        (
            Op("r", "relu", (Tensor((1, 65_537)),), (Tensor((1, 65_537)),)),
            "pad",
            "pad 1 relu with a long axis laid out as two",
        ),
    ],
)
def test_a_limit_is_kept_by_parts_or_by_padding(unsupported: Op, kind: str, words: str) -> None:
    remedy = remedies_of([*FIVE, unsupported, *FIVE])[kind]
    assert remedy.action == words
    assert not any(placed.off for placed in predict(remedy.ops).operations)


def test_a_recurrent_layer_is_unrolled() -> None:
    sequence, state = Tensor((4, 1, 64)), Tensor((1, 64))
    lstm = Op("l", "lstm", (state, state, sequence), (sequence, state, state))
    rewrite = remedies_of([*FIVE, lstm, *FIVE])["rewrite"]
    assert "unrolled steps" in rewrite.action
    assert sum(part.kind == "linear" for part in rewrite.ops) == 4
    assert (rewrite.back, rewrite.segments) == (1, 1)


def test_the_least_batch_that_brings_a_segment_back() -> None:
    """Two convolutions: from a batch of 2 on, 0.38 ms on the CPU against 0.27 ms."""
    ops = [conv("a"), conv("b")]
    batch = remedies_of(ops)["batch"]
    assert (batch.multiple, batch.back) == (2, 2)
    assert batch.ops[0].inputs[0].shape == (2, 64, 32, 32)
    assert batch.gain_ms == pytest.approx(
        (predict(ops).total_ms or 0) - (predict(batch.ops).total_ms or 0) / 2
    )


def test_what_stays_undecided_is_not_back() -> None:
    """The last relu costs the same on the CPU, and so does the way there."""
    batch = remedies_of([conv("a"), conv("b"), op("relu")])["batch"]
    assert [placed.undecided for placed in predict(batch.ops).operations] == [False, False, True]
    assert (batch.multiple, batch.back) == (2, 2)


@pytest.mark.parametrize(
    ("single", "shapes"),
    [
        (
            Op("m", "matmul", (Tensor((64, 2048)), Tensor((2048, 512))), (Tensor((64, 512)),)),
            [(2048,), (2048, 512)],
        ),
        (
            Op("c", "conv", (IMAGE, w := Tensor((64, 64, 3, 3))), (IMAGE,), w),
            [(64, 32, 32), (64, 64, 3, 3)],
        ),
    ],
)
def test_a_batch_leaves_weights_as_they_are(single: Op, shapes: list[tuple[int, ...]]) -> None:
    batch = remedies_of([single])["batch"]
    x, weight = batch.ops[0].inputs
    assert x.shape == ((single.inputs[0].shape[0] or 0) * batch.multiple, *shapes[0])
    assert weight.shape == shapes[1]


def test_the_least_t_where_a_graph_at_another_t_is_known() -> None:
    ops = [conv("a"), conv("b")]

    def at_tokens(tokens: int) -> list[Op] | None:
        image = Tensor((1, 64, 32, 4 * tokens))
        graph = [Op(n, "conv", (image,), (image,), Tensor((64, 64, 3, 3))) for n in "ab"]
        return graph if tokens <= 32 else None

    helpful = {remedy.kind: remedy for remedy in remedies(ops, predict(ops), 8, at_tokens)}
    remedy = helpful["batch"]
    assert (remedy.action, remedy.multiple) == ("call it with 2 times T = 8", 2)
    assert remedy.ops[0].inputs[0].shape == (1, 64, 32, 64)


def test_small_programs_are_fused() -> None:
    """Two convolutions twice: 0.40 ms on the CPU, 0.27 ms on the ANE."""
    ops = [conv("a"), conv("b")]
    fuse = remedies_of(ops)["fuse"]
    assert (fuse.action, fuse.multiple) == ("fuse 2 programs like this one into one", 2)
    assert fuse.ops == (*ops, *ops)
    assert fuse.back == 2
    assert fuse.gain_ms == pytest.approx(
        (predict(ops).total_ms or 0) - (predict(fuse.ops).total_ms or 0) / 2
    )


def test_what_no_change_helps_has_no_remedy() -> None:
    """Argsort has no other form; alone, and in a small program, nothing is worth a launch."""
    assert remedies_of([op("argsort")]) == {}
    assert remedies_of([op("tan")]) == {}


KINDS = ("conv", "relu", "cumsum", "tan", "argsort", "sigmoid", "add of int32", "add of fp32")
GRAPHS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(1, 6)), min_size=1, max_size=8
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(GRAPHS, st.sampled_from(["CPU_AND_NE", "ALL"]))
def test_a_gain_is_the_difference_of_two_predictions(
    runs: list[tuple[str, int]], units: Units
) -> None:
    ops = []
    for kind, count in runs:
        name, _, dtype = kind.partition(" of ")
        ops += [conv() if kind == "conv" else op(name, dtype or "fp16")] * count
    ops = [replace(operation, name=f"{place}") for place, operation in enumerate(ops)]
    before = predict(ops, units)
    for remedy in remedies(ops, before):
        after = predict(remedy.ops, units)
        assert before.total_ms is not None
        assert after.total_ms is not None
        cost = remedy.elsewhere_ms + after.total_ms / remedy.multiple
        assert remedy.gain_ms == pytest.approx(before.total_ms - cost)
        assert remedy.gain_ms > 0
        assert remedy.segments == len(after.segments)
        assert remedy.back > 0 or remedy.segments < len(before.segments)
        decided = {op.name for op in after.operations if op.unit == "ANE" and not op.undecided}
        off = {op.name for op in before.operations if op.unit != "ANE"}
        assert remedy.back <= len(off & decided)
