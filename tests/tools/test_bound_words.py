"""The report of a bound, word for word."""

from __future__ import annotations

from pytest_ane.tools._bound import Group, Measured, bound_call, lines
from pytest_ane.tools._costs import Costs, OpCost
from pytest_ane.tools._devices import Device

DEVICE = Device(name="M0", bandwidth=100, peak=10, lanes=4)


def group(kind: str, weights: int, count: int, states: int = 0) -> Group:
    def at(tokens: int) -> Costs:
        op = OpCost("y", "conv", tokens * weights, 1, weights=weights, states=states)
        return Costs(tokens, (op,), 0, 0, states)

    return Group(kind, f"{kind}.1", count, at)


GROUPS = [group("attention", 1_000_000, 2, 500_000), group("head", 30_000_000, 1)]


def test_a_table_for_each_t_and_what_would_help() -> None:
    calls = [bound_call(GROUPS, DEVICE, tokens) for tokens in (1, 100)]
    ours = Measured(runtime="measured", device="M0", model="tiny", tok_s=1500)
    other = Measured(
        runtime="mlx 0.21", device="M0 GPU", model="tiny", tok_s=90.25, joules_per_token=0.4
    )
    assert (
        "\n".join(lines("tiny", DEVICE, GROUPS, calls, [ours, other]))
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
