"""A family shard's probes: lengths, calls, residual paths and routes, and how they are kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_ane.manifest import Probes, Shard
from pytest_ane.probes.hidden import answered_probes, draw_probes, from_tensors, to_tensors
from tests.families.gemma4.tiny import tiny_model as gemma
from tests.families.llama.tiny import tiny_model as llama
from tests.families.zaya.tiny import CONTEXT
from tests.families.zaya.tiny import tiny_model as zaya

ALL = ("gaussian", "unit-norm", "captured", "outlier", "extreme")


def shard(name: str, *kinds: Any, **changes: Any) -> Shard:
    probes = Probes(kinds=kinds or ("gaussian",), count=1)
    return Shard(model="m", id=name, probes=probes, **{"max_tokens": 4, **changes})


def no_states() -> Any:
    raise AssertionError("no kind asks for captured states")


def states(width: int) -> Any:
    rng = np.random.default_rng(0)
    return lambda: [(n, rng.standard_normal((3, width)).astype(np.float32)) for n in ("a", "b")]


def test_every_kind_at_three_lengths() -> None:
    model = llama()
    width = model.config.width
    found = answered_probes(model, shard("L00", *ALL), states(width))
    assert [probe.name for probe in found] == [
        f"{kind} T={length}{rest}"
        for length in (1, 3, 4)
        for kind, rest in (
            ("gaussian", " #0"),
            ("unit-norm", " #0"),
            ("outlier", " #0"),
            ("extreme", " captured maximum"),
            ("extreme", " fp16 edge"),
        )
    ] + ["captured a T=1", "captured a T=3", "captured b T=1", "captured b T=3"]
    assert {probe.kind for probe in found} == set(ALL)
    assert all(np.isfinite(probe.expected).all() for probe in found)


def test_a_shard_with_states_is_called_step_by_step() -> None:
    model = zaya()
    found = answered_probes(model, shard("L00", context=CONTEXT), no_states)
    assert [(probe.name, probe.chunk, len(probe.hidden)) for probe in found] == [
        (f"gaussian T=8 #0 in steps of {chunk}", chunk, 8) for chunk in (1, 3, 4)
    ]
    (first, *rest) = found
    for probe in rest:
        np.testing.assert_array_equal(probe.expected, first.expected)
    assert [len(call["x"][0, 0]) for call in rest[0].case(model.layout("L00")).calls] == [3, 3, 2]


@pytest.mark.parametrize(
    ("max_tokens", "context", "expected"),
    [
        (4, 64, [(1, 8), (3, 8), (4, 8)]),
        (32, 256, [(1, 8), (17, 34), (32, 64)]),
        (32, 48, [(1, 8), (17, 34), (32, 48)]),
        (64, 4, [(1, 4), (3, 4), (4, 4)]),
    ],
)
def test_the_largest_call_of_a_shard_with_states_is_made(
    max_tokens: int, context: int, expected: list[tuple[int, int]]
) -> None:
    asked = shard("L00", context=context, max_tokens=max_tokens)
    probes = draw_probes(asked, zaya().layout("L00"), no_states)
    assert [(probe.chunk, len(probe.hidden)) for probe in probes] == expected


def test_a_residual_path_that_is_the_input_is_not_kept_twice() -> None:
    tensors, listed = to_tensors(answered_probes(llama(), shard("L00"), no_states))
    assert not any("residual" in name for name in tensors)
    for probe in from_tensors(tensors, listed):
        assert probe.residual is probe.hidden
        np.testing.assert_array_equal(probe.case(llama().layout("L00")).residual["y"], probe.hidden)


def test_a_head_has_no_residual_path() -> None:
    tensors, listed = to_tensors(answered_probes(llama(), shard("head.0"), no_states))
    for probe in from_tensors(tensors, listed):
        assert probe.residual is None
        assert probe.case(llama().layout("head.0")).residual == {}


@pytest.mark.parametrize(("model", "name"), [(zaya, "L01"), (gemma, "L00.p7"), (gemma, "L00.p2")])
def test_residual_paths_and_routes_are_kept(model: Any, name: str) -> None:
    probes = answered_probes(model(), shard(name), no_states)
    tensors, listed = to_tensors(probes)
    for before, after in zip(probes, from_tensors(tensors, listed), strict=True):
        assert (before.residual is None) == (name == "L00.p2") == (after.residual is None)
        if before.residual is not None:
            np.testing.assert_array_equal(before.residual, after.residual)
        assert before.routed == after.routed
        assert len(after.routed) == len(after.hidden)
        assert after.case(model().layout(name)).routed == before.routed


def test_a_family_of_the_user_s_own_may_tell_neither() -> None:
    class Own:
        def __init__(self) -> None:
            self.model = llama()
            self.layout, self.reference = self.model.layout, self.model.reference

    for probe in answered_probes(Own(), shard("L00"), no_states):  # type: ignore[arg-type]
        assert (probe.residual, probe.routed) == (None, ())
