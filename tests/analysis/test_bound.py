"""The roofline of calls, and the notes' reasoning about a mixture of experts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.analysis.bound import Group, bound, call
from pytest_ane.analysis.costs import Costs, OpCost
from pytest_ane.analysis.devices import Device, published

DEVICE = Device(name="d", bandwidth=10, peak=1)
M4_MAX = published()["M4 Max"]
EXPERTS, WIDTH, FFN = 16, 2048, 2048
WEIGHTS = EXPERTS * 3 * WIDTH * FFN
"""Of a ZAYA1 mixture without its router: 201 million."""


def mixture(bits: int) -> Group:
    """A dense mixture as the notes built it: all experts at every position."""

    def at(tokens: int) -> Costs:
        op = OpCost("y", "conv", tokens * WEIGHTS, 1, weights=WEIGHTS * bits // 8, elements=WEIGHTS)
        return Costs(tokens, (op,), 2 * WIDTH * tokens, 2 * WIDTH * tokens, 0)

    return Group("mixture", "L41", 40, at)


def simple(weights: int, macs: int, **others: int) -> Costs:
    op = OpCost("y", "conv", macs, 1, weights=weights, elements=weights, **others)
    return Costs(1, (op,), 0, 0, 0)


def test_the_longer_of_the_two_binds() -> None:
    found = bound(simple(10_000_000, 100_000_000), DEVICE)
    assert (found.streaming, found.computing) == (1e-3, 2e-4)
    assert (found.seconds, found.binds) == (1e-3, "bandwidth")
    found = bound(simple(1_000_000, 100_000_000), DEVICE)
    assert (found.seconds, found.binds) == (2e-4, "compute")


def test_states_and_what_the_host_moves_are_streamed() -> None:
    costs = Costs(1, (OpCost("s", "read_state", states=4_000_000),), 2_000_000, 1_000_000, 9)
    assert bound(costs, DEVICE).streaming == 7e-4


def test_halving_weights_leaves_states_as_they_are() -> None:
    costs = simple(8_000_000, 1, states=2_000_000)
    assert bound(costs, DEVICE, weights=0.5).streaming == pytest.approx(6e-4)


def test_a_device_may_hold_weights_wider_than_they_are_stored() -> None:
    held = DEVICE.model_copy(update={"held": 4})
    assert bound(simple(1_000_000, 1), held).streaming == 4e-4


def test_a_device_may_fill_up_the_last_axis() -> None:
    filled = DEVICE.model_copy(update={"lanes": 32})
    assert bound(simple(1, 1_000_000), filled).computing == pytest.approx(32 * 2e-6)


def test_a_mixture_is_bound_by_bandwidth_at_1_and_by_compute_at_4() -> None:
    int8 = [mixture(8)]
    one, four = call(int8, M4_MAX, 1), call(int8, M4_MAX, 4)
    assert one.parts[0].bound_by == "bandwidth"
    assert four.parts[0].bound_by == "compute"
    assert four.parts[0].intensity == pytest.approx(4 * one.parts[0].intensity, rel=1e-3)
    assert one.seconds < four.seconds < 4 * one.seconds
    # All 16 experts at every position.
    assert four.parts[0].macs == 40 * 4 * WEIGHTS


def test_halving_the_bytes_helps_at_1_and_hardly_at_4() -> None:
    one, four = (call([mixture(8)], M4_MAX, tokens) for tokens in (1, 4))
    assert one.seconds / one.half_weights > 1.9
    assert four.seconds / four.half_weights < 1.01
    assert four.seconds / four.half_macs > 1.5
    int4 = call([mixture(4)], M4_MAX, 1)
    assert int4.rate / one.rate == pytest.approx(one.seconds / one.half_weights, rel=1e-3)


def test_the_notes_figures_are_below_the_bound() -> None:
    """Of both compressions at T = 1 and of verifier calls of 499 and 483 ms at T = 4."""
    for bits, decoded, verified in ((8, 8.59, 4 / 0.499), (4, 9.25, 4 / 0.483)):
        one, four = (call([mixture(bits)], M4_MAX, tokens) for tokens in (1, 4))
        assert 0.3 < one.share(decoded) < 0.7
        assert 0.2 < four.share(verified) < 0.3


def test_with_no_axis_filled_up_bandwidth_binds_at_4_too() -> None:
    bare = M4_MAX.model_copy(update={"lanes": 1})
    four = call([mixture(4)], M4_MAX, 4)
    assert four.bare == call([mixture(4)], bare, 4).seconds < four.seconds
    assert call([mixture(4)], bare, 4).parts[0].bound_by == "bandwidth"


def test_groups_of_a_kind_are_one_part() -> None:
    groups = [Group("a", "L0", 2, lambda _: simple(10, 1)),
              Group("b", "L1", 1, lambda _: simple(1, 1_000_000)),
              Group("a", "L2", 1, lambda _: simple(1, 1_000_000))]  # fmt: skip
    found = call(groups, DEVICE, 1)
    assert [(p.kind, p.count, p.bound_by) for p in found.parts] == [
        ("a", 3, "both"),
        ("b", 1, "compute"),
    ]
    assert found.parts[0].weights == 21
    assert found.seconds == pytest.approx(sum(part.seconds for part in found.parts))


def test_fixed_shapes_are_calls() -> None:
    fixed = Costs(None, (OpCost("y", "conv", 500_000_000),), 0, 0, 0)
    found = call([Group("package", "m", 1, lambda _: fixed)], DEVICE, 4)
    assert found.tokens is None
    assert found.rate == pytest.approx(1000)


@given(
    weights=st.integers(1, 10**9),
    macs=st.integers(1, 10**12),
    count=st.integers(1, 80),
    lanes=st.sampled_from([1, 32]),
)
def test_less_of_either_never_takes_longer(weights: int, macs: int, count: int, lanes: int) -> None:
    device = DEVICE.model_copy(update={"lanes": lanes})
    found = call([Group("a", "L0", count, lambda _: simple(weights, macs))], device, 1)
    for less in (found.half_weights, found.half_macs):
        assert found.seconds / 2 <= less * (1 + 1e-9)
        assert less <= found.seconds * (1 + 1e-9)
    assert found.bare <= found.seconds * (1 + 1e-9)
