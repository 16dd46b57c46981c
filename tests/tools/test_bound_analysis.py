"""The roofline of calls, and the notes' reasoning about a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.manifest import Linear, Shard
from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.tools._bound import Group, KindBound, bound_call, counted, roofline, same_costs
from pytest_ane.tools._costs import Costs, OpCost, costs_of
from pytest_ane.tools._devices import Device, published
from tests.packages import save_conv

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


def one(costs: Costs, device: Device = DEVICE, **scale: float) -> KindBound:
    return roofline("y", [(1, costs)], device, **scale)


def test_the_longer_of_the_two_binds() -> None:
    found = one(simple(10_000_000, 100_000_000))
    assert (found.streaming, found.computing) == (1e-3, 2e-4)
    assert (found.seconds, found.bound_by) == (1e-3, "bandwidth")
    found = one(simple(1_000_000, 100_000_000))
    assert (found.seconds, found.bound_by) == (2e-4, "compute")


def test_what_is_streamed_and_what_is_computed() -> None:
    """States and the host's tensors are streamed too, and are not halved with the weights."""
    costs = Costs(1, (OpCost("s", "read_state", states=4_000_000),), 2_000_000, 1_000_000, 9)
    assert one(costs).streaming == 7e-4
    states = simple(8_000_000, 1, states=2_000_000)
    assert one(states, weights=0.5).streaming == pytest.approx(6e-4)
    held = DEVICE.model_copy(update={"held": 4})
    assert one(simple(1_000_000, 1), held).streaming == 4e-4
    filled = DEVICE.model_copy(update={"lanes": 32})
    assert one(simple(1, 1_000_000), filled).computing == pytest.approx(32 * 2e-6)


def test_a_mixture_is_bound_by_bandwidth_at_1_and_by_compute_at_4() -> None:
    int8 = [mixture(8)]
    one, four = bound_call(int8, M4_MAX, 1), bound_call(int8, M4_MAX, 4)
    assert one.kinds[0].bound_by == "bandwidth"
    assert four.kinds[0].bound_by == "compute"
    assert four.kinds[0].intensity == pytest.approx(4 * one.kinds[0].intensity, rel=1e-3)
    assert one.total.seconds < four.total.seconds < 4 * one.total.seconds
    # All 16 experts at every position.
    assert four.kinds[0].macs == 40 * 4 * WEIGHTS


def test_halving_the_bytes_helps_at_1_and_hardly_at_4() -> None:
    one, four = (bound_call([mixture(8)], M4_MAX, tokens) for tokens in (1, 4))
    assert one.total.seconds / one.half_weights > 1.9
    assert four.total.seconds / four.half_weights < 1.01
    assert four.total.seconds / four.half_macs > 1.5
    int4 = bound_call([mixture(4)], M4_MAX, 1)
    assert int4.rate / one.rate == pytest.approx(one.total.seconds / one.half_weights, rel=1e-3)


def test_the_notes_figures_are_below_the_bound() -> None:
    """Of both compressions at T = 1 and of verifier calls of 499 and 483 ms at T = 4."""
    for bits, decoded, verified in ((8, 8.59, 4 / 0.499), (4, 9.25, 4 / 0.483)):
        one, four = (bound_call([mixture(bits)], M4_MAX, tokens) for tokens in (1, 4))
        assert 0.3 < decoded / one.rate < 0.7
        assert 0.2 < verified / four.rate < 0.3


def test_with_no_axis_filled_up_bandwidth_binds_at_4_too() -> None:
    bare = M4_MAX.model_copy(update={"lanes": 1})
    four = bound_call([mixture(4)], M4_MAX, 4)
    assert four.unpadded == bound_call([mixture(4)], bare, 4).total.seconds < four.total.seconds
    assert bound_call([mixture(4)], bare, 4).kinds[0].bound_by == "bandwidth"


def test_groups_of_a_kind_are_one_part() -> None:
    groups = [Group("a", "L0", 2, lambda _: simple(10, 1)),
              Group("b", "L1", 1, lambda _: simple(1, 1_000_000)),
              Group("a", "L2", 1, lambda _: simple(1, 1_000_000))]  # fmt: skip
    found = bound_call(groups, DEVICE, 1)
    assert [(p.kind, p.count, p.bound_by) for p in found.kinds] == [
        ("a", 3, "both"),
        ("b", 1, "compute"),
    ]
    assert found.kinds[0].weights == 21
    assert found.total.seconds == pytest.approx(sum(part.seconds for part in found.kinds))


def test_fixed_shapes_are_calls() -> None:
    fixed = Costs(None, (OpCost("y", "conv", 500_000_000),), 0, 0, 0)
    found = bound_call([Group("package", "m", 1, lambda _: fixed)], DEVICE, 4)
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
    found = bound_call([Group("a", "L0", count, lambda _: simple(weights, macs))], device, 1)
    for less in (found.half_weights, found.half_macs):
        assert found.total.seconds / 2 <= less * (1 + 1e-9)
        assert less <= found.total.seconds * (1 + 1e-9)
    assert found.unpadded <= found.total.seconds * (1 + 1e-9)


def shards(count: int, **fields: object) -> tuple[Shard, ...]:
    return tuple(Shard(model="m", id=f"L{i:02d}", **fields) for i in range(count))  # type: ignore[arg-type]


def ids(groups: Collection[list[Shard]]) -> list[tuple[str, list[str]]]:
    return [(parity(group[0]), [shard.id for shard in group]) for group in groups]


def parity(shard: Shard) -> str:
    return "mixture" if int(shard.id[1:]) % 2 else "attention"


def test_kind_compression_and_layout_tell_shards_apart() -> None:
    many = list(shards(6))
    assert ids(same_costs(many, parity, lambda _: 0)) == [
        ("attention", ["L00", "L02", "L04"]),
        ("mixture", ["L01", "L03", "L05"]),
    ]
    many[2] = many[2].model_copy(update={"compression": Linear()})
    assert ["L02"] in [found for _, found in ids(same_costs(many, parity, lambda _: 0))]
    layouts = {"L05": "sliding"}
    found = ids(same_costs(many, parity, lambda shard: layouts.get(shard.id)))
    assert ("mixture", ["L05"]) in found


def test_packages_of_one_s_own_stand_for_themselves(tmp_path: Path) -> None:
    many = [s.model_copy(update={"artifact": tmp_path / s.id}) for s in shards(3)]
    assert [len(group) for group in same_costs(many, parity, lambda _: 0)] == [1, 1, 1]


def count(built: Collection[str], of: int = 5) -> tuple[list[tuple[str, int]], list[str]]:
    made: list[str] = []

    def build(shard: Shard) -> Path:
        made.append(shard.id)
        return Path(shard.id)

    found = counted(
        "block",
        shards(of),
        lambda shard: Path(shard.id) if shard.id in built else None,
        build,
    )
    return [(group.subject, group.count) for group in found], made


def test_without_any_the_middle_one_is_built() -> None:
    assert count(()) == ([("L02", 5)], ["L02"])


def test_a_built_one_near_the_middle_stands_for_the_others() -> None:
    assert count(("L00", "L03")) == ([("L00", 1), ("L03", 4)], [])


def test_all_built_count_for_themselves() -> None:
    found, made = count([f"L{i:02d}" for i in range(5)])
    assert found == [(f"L{i:02d}", 1) for i in range(5)]
    assert made == []


@pytest.fixture
def conv(tmp_path: Path) -> Path:
    save_conv(tmp_path / "conv.mlpackage")
    return tmp_path / "conv.mlpackage"


def test_costs_are_counted_once(conv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_ane.tools import _costs as module

    reads: list[Path] = []
    read: Callable[..., object] = module.read_model
    monkeypatch.setattr(
        module, "read_model", lambda path, **options: reads.append(path) or read(path, **options)
    )
    at = costs_of(conv)
    assert at(1) == at(1)
    assert at(4).macs == 4 * at(1).macs
    assert len(reads) == 2


def test_what_is_no_package_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ProgramError):
        costs_of(tmp_path / "none.mlpackage")(1)
