"""The roofline of calls, of the notes' mixture of experts too, measured speeds, and the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.manifest import Linear, Shard
from pytest_ane.mlprogram.errors import AneError, ManifestError
from pytest_ane.tools._costs import Costs, OpCost
from pytest_ane.tools._devices import Device, published
from pytest_ane.tools.bound import (
    Group,
    KindBound,
    Measured,
    bound_call,
    counted,
    lines,
    read_measured,
    roofline,
    same_costs,
)
from tests.gates.throughput.runs import run as stored
from tests.gates.throughput.runs import speed as timed

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


ALL = tuple(f"L{i:02d}" for i in range(5))


def shards(count: int) -> tuple[Shard, ...]:
    return tuple(Shard(model="m", id=f"L{i:02d}") for i in range(count))


def test_kind_compression_and_layout_tell_shards_apart(tmp_path: Path) -> None:
    many = list(shards(7))
    many[2] = many[2].model_copy(update={"compression": Linear()})
    many[6] = many[6].model_copy(update={"artifact": tmp_path})
    kinds = {s.id: "mixture" if i % 2 else "attention" for i, s in enumerate(many)}
    layouts: dict[str, object] = dict.fromkeys(kinds, "full") | {"L05": "sliding"}
    groups = [[int(shard.id[1:]) for shard in each] for each in same_costs(many, kinds, layouts)]
    assert groups == [[0, 4], [1, 3], [2], [5], [6]]


@pytest.mark.parametrize(
    ("built", "counts", "made"),
    [
        ((), [("L02", 5)], ["L02"]),
        (("L00", "L03"), [("L00", 1), ("L03", 4)], []),
        (ALL, [(id, 1) for id in ALL], []),
    ],
    ids=["none: the middle", "some: nearest to it for the others", "all"],
)
def test_who_is_counted(
    built: tuple[str, ...], counts: list[tuple[str, int]], made: list[str]
) -> None:
    builds: list[str] = []

    def build(shard: Shard) -> Path:
        builds.append(shard.id)
        return Path(shard.id)

    found = counted("block", shards(5), lambda s: Path(s.id) if s.id in built else None, build)
    assert ([(group.subject, group.count) for group in found], builds) == (counts, made)


M0 = Device(name="M0", bandwidth=100, peak=10, lanes=4)


def group_of(kind: str, weights: int, count: int, states: int = 0) -> Group:
    def at(tokens: int) -> Costs:
        op = OpCost("y", "conv", tokens * weights, 1, weights=weights, states=states)
        return Costs(tokens, (op,), 0, 0, states)

    return Group(kind, f"{kind}.1", count, at)


GROUPS = [group_of("attention", 1_000_000, 2, 500_000), group_of("head", 30_000_000, 1)]


def test_a_table_for_each_t_and_what_would_help() -> None:
    calls = [bound_call(GROUPS, M0, tokens) for tokens in (1, 100)]
    ours = Measured(runtime="measured", device="M0", model="tiny", tok_s=1500)
    other = Measured(
        runtime="mlx 0.21", device="M0 GPU", model="tiny", tok_s=90.25, joules_per_token=0.4
    )
    assert (
        "\n".join(lines("tiny", M0, GROUPS, calls, [ours, other]))
        == """\
tiny on M0: 100 GB/s, 10 TFLOP/s, ridge 100 FLOP/B, axes of 4
counted: attention.1 for 2 of attention
KV cache and other states: 1.0 MB

T = 1
kind      shards weight MB state MB  GMAC FLOP/B bytes ms MACs ms    ms by
attention      2       2.0      1.0 0.002    1.3    0.030   0.002 0.030 bytes
head           1      30.0      0.0 0.030    2.0    0.300   0.024 0.300 bytes
all            3      32.0      1.0 0.032           0.330   0.026 0.330
at most 3030 tok/s (0.330 ms a call)
  weights of half the bytes: 5882 tok/s (+94%)
  half the MACs: 3030 tok/s (+0%)
  measured: 1500 tok/s, 50% of the bound
  mlx 0.21 on M0 GPU: 90.2 tok/s, 0.4 J a token

T = 100
kind      shards weight MB state MB  GMAC FLOP/B bytes ms MACs ms    ms by
attention      2       2.0      1.0 0.200  133.3    0.030   0.160 0.160 MACs
head           1      30.0      0.0 3.000  200.0    0.300    2.40  2.40 MACs
all            3      32.0      1.0 3.200           0.330    2.56  2.56
at most 39062 tok/s (2.56 ms a call)
  weights of half the bytes: 39062 tok/s (+0%)
  half the MACs: 78125 tok/s (+100%)
  without padding to the lane width: 156250 tok/s

A bound, no forecast: launches, host and what does not overlap come on top."""
    )


def test_fixed_shapes_are_calls_and_one_kind_has_no_sum() -> None:
    fixed = Costs(None, (OpCost("y", "conv", 5_000_000, weights=10),), 0, 0, 0)
    one = [Group("package", "m.mlpackage", 1, lambda _: fixed)]
    cpu = Device(name="this machine", bandwidth=40, peak=0.1, held=4)
    found = list(lines("m.mlpackage", cpu, one, [bound_call(one, cpu, 1)], []))
    assert found[0] == (
        "m.mlpackage on this machine: 40 GB/s, 0.1 TFLOP/s, ridge 2.5 FLOP/B, weights of 4 bytes"
    )
    assert found[2] == "fixed shapes"
    assert found[5] == "at most 10000 call/s (0.100 ms a call)"
    assert not any(line.startswith(("all", "counted")) for line in found)


CPU = Device(name="this machine", bandwidth=40, peak=0.1, held=4)
OTHER = {"runtime": "mlx-lm 0.21", "device": "M4 Max GPU", "model": "zaya1-8b", "tok_s": 31.5}


def decoded(what: str = "decode", subject: str = "zaya1-8b", **identity: str) -> Any:
    return timed(4.0, 5.0, 9.0, what=what, subject=subject, identity=identity)


def store(path: Path, *speeds: Any) -> Path:
    path.write_text(json.dumps(stored(*speeds)))
    return path


def tok_s(file: Path, device: Device) -> float:
    return read_measured(str(file), "zaya1-8b", device).tok_s


def test_the_median_of_decoding_the_model(tmp_path: Path) -> None:
    file = store(
        tmp_path / "run.json",
        decoded("call", "zaya1-8b:L01", backend="coreml", chip="Apple M4 Max"),
        decoded(subject="other", backend="coreml", chip="Apple M1"),
        decoded(backend="coreml", chip="Apple M4 Max"),
    )
    assert tok_s(file, M4_MAX) == 8
    assert tok_s(file, M4_MAX.model_copy(update={"name": "M4 Max with another peak"})) == 8
    assert tok_s(store(file, decoded(backend="cpu", chip="EPYC")), CPU) == 8


@pytest.mark.parametrize(
    ("identity", "device", "ran_on"),
    [
        ({"backend": "cpu", "chip": "EPYC"}, M4_MAX, "this machine"),
        ({"backend": "coreml", "chip": "Apple M4"}, M4_MAX, "M4"),
        ({"backend": "coreml", "chip": "Apple M4 Max"}, CPU, "M4 Max"),
    ],
)
def test_another_device_is_refused(
    tmp_path: Path, identity: dict[str, str], device: Device, ran_on: str
) -> None:
    file = store(tmp_path / "run.json", decoded(**identity))
    with pytest.raises(ManifestError, match=f"was measured on {ran_on}, .* --device '{ran_on}'"):
        tok_s(file, device)


def test_a_run_without_the_model_is_refused(tmp_path: Path) -> None:
    file = store(tmp_path / "run.json", decoded("call"), decoded(subject="other"))
    with pytest.raises(ManifestError, match="holds no decoding of zaya1-8b"):
        tok_s(file, M4_MAX)
    with pytest.raises(ManifestError, match="cannot be read"):
        tok_s(tmp_path / "none.json", M4_MAX)


def test_another_runtime_with_its_energy(tmp_path: Path) -> None:
    file = tmp_path / "mlx.json"
    file.write_text(json.dumps(OTHER | {"joules_per_token": 0.35}))
    measured = read_measured(str(file), "zaya1-8b", M4_MAX)
    assert (measured.tok_s, measured.tokens, measured.joules_per_token) == (31.5, 1, 0.35)
    with pytest.raises(ManifestError, match=r"is of zaya1-8b, and the bound of smollm2\.$"):
        read_measured(str(file), "smollm2", M4_MAX)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        *((text, "invalid JSON") for text in ("", "{", "[" * 100_000, "\xff")),
        ("[]", "give an object with runtime, device, model and tok_s"),
        ("{}", "runtime: field required; give an object"),
        (json.dumps(OTHER | {"tok_s": 0}), "tok_s: input should be greater than 0"),
        (json.dumps(OTHER | {"tok_s": float("nan")}), "tok_s: input should be a finite number"),
        (json.dumps(OTHER | {"joules_per_token": -1}), "joules_per_token: input should be"),
        (json.dumps(OTHER | {"watts": 1}), "watts: extra inputs are not permitted"),
        ('{"benchmarks": [1]}', r"cannot be compared with \(benchmarks"),
    ],
)
def test_a_damaged_file_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "run.json"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(AneError, match=says) as caught:
        tok_s(file, M4_MAX)
    assert "\n" not in str(caught.value)
