"""Hidden probes of a family's shard, and recorded references."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pytest_ane.make import Cache
from pytest_ane.manifest import Probes, Shard
from pytest_ane.mlprogram.errors import BuildError, ManifestError
from pytest_ane.probes.cases import with_prefix
from pytest_ane.probes.recording import (
    HiddenProbe,
    answered_probes,
    draw_probes,
    drawn_calls,
    in_steps,
    kept_rows,
    load,
    probe_of,
    ragged_calls,
    rewrite_calls,
    save,
    to_tensors,
)
from tests.models.families.gemma4.tiny import tiny_model as gemma
from tests.models.families.llama.tiny import tiny_model as llama
from tests.models.families.zaya.tiny import CONTEXT
from tests.models.families.zaya.tiny import tiny_model as zaya

ALL = ("gaussian", "unit-norm", "captured", "outlier", "extreme", "massive")


def shard(name: str, *kinds: Any, count: int = 1, **changes: Any) -> Shard:
    probes = Probes(kinds=kinds or ("gaussian",), count=count)
    return Shard(model="m", id=name, probes=probes, **{"max_tokens": 4, **changes})


def read(tensors: dict[str, Any], listed: list[dict[str, Any]]) -> list[HiddenProbe]:
    return [probe_of(note, with_prefix(tensors, f"{i}.")) for i, note in enumerate(listed)]


def no_states() -> Any:
    raise AssertionError("no kind asks for captured states")


def states(width: int) -> Any:
    rng = np.random.default_rng(0)
    return lambda: [(n, rng.standard_normal((3, width)).astype(np.float32)) for n in ("a", "b")]


def test_every_kind_without_states() -> None:
    model = llama()
    found = answered_probes(model, shard("L00", *ALL, "ragged"), states(model.config.width))
    seeded = [
        f"{kind} T={length}{rest}"
        for length in (1, 2, 3, 4)
        for kind, rest in (
            ("gaussian", " #0"),
            ("unit-norm", " #0"),
            ("outlier", " #0"),
            *((("extreme", " captured maximum"), ("extreme", " fp16 edge")) * (length in (1, 4))),
        )
    ]
    captured = ["captured a T=1", "captured a T=3", "captured b T=1", "captured b T=3"]
    assert [probe.name for probe in found if probe.kind != "massive"] == seeded + captured
    assert {probe.kind for probe in found} == set(ALL)
    assert all(np.isfinite(probe.expected).all() for probe in found)


@pytest.mark.parametrize(("name", "left_out"), [("L00", True), ("head.0", False)])
def test_massive_channels_are_left_out_where_the_output_carries_them_on(
    name: str, left_out: bool
) -> None:
    found = answered_probes(llama(), shard(name, "massive"), no_states)
    assert [np.abs(probe.hidden).max() for probe in found] == [400, 4_000, 20_000]
    for probe in found:
        assert bool(probe.left_out) == left_out
        assert all(probe.hidden[:, i].max() >= 400 for i in probe.left_out)


def test_a_shard_with_states_is_called_step_by_step() -> None:
    model = zaya()
    found = answered_probes(model, shard("L00", context=CONTEXT), no_states)
    assert [(probe.name, probe.calls) for probe in found] == [
        (f"gaussian T=8 #0 in steps of {size}", in_steps(8, size)) for size in (1, 4)
    ]
    np.testing.assert_array_equal(found[0].expected, found[1].expected)
    calls = found[1].case(model.layout("L00")).calls
    assert [len(call["x"][0, 0]) for call in calls] == [4, 4]


def test_long_probes_fill_as_many_keys_of_a_state() -> None:
    probes = Probes(kinds=("gaussian",), count=1, lengths=(20, 30))
    asked = Shard(model="m", id="L00", probes=probes, max_tokens=8, context=32)
    *_, first, second = answered_probes(llama(context=32), asked, no_states)
    assert [(p.kind, p.name, p.calls[-1]) for p in (first, second)] == [
        ("long", "long, 20 keys", (16, 4)),
        ("long", "long, 30 keys", (24, 6)),
    ]
    quarters = first.hidden.reshape(4, 5, -1).mean(axis=1)
    assert (np.linalg.norm(quarters, axis=1) > 0.5 * quarters.shape[1] ** 0.5).all()
    assert np.square(first.hidden).mean() == pytest.approx(1)


def test_long_probes_need_a_state() -> None:
    asked = Shard(model="m", id="L00", probes=Probes(lengths=(8,)), max_tokens=8)
    with pytest.raises(ManifestError, match="lengths fills a key-value state"):
        answered_probes(llama(), asked, states(16))
    head = asked.model_copy(update={"id": "head.0"})
    assert "long" not in {p.kind for p in answered_probes(llama(), head, states(16))}


@pytest.mark.parametrize(
    ("max_tokens", "context", "expected"),
    [
        (4, 64, [(1, 8), (4, 8)]),
        (32, 256, [(1, 8), (32, 64)]),
        (32, 48, [(1, 8), (32, 48)]),
        (64, 4, [(1, 4), (4, 4)]),
        (1, 64, [(1, 8)]),
    ],
)
def test_the_largest_call_of_a_shard_with_states_is_made(
    max_tokens: int, context: int, expected: list[tuple[int, int]]
) -> None:
    asked = shard("L00", context=context, max_tokens=max_tokens)
    probes = draw_probes(asked, zaya().layout("L00"), no_states)
    assert [(probe.calls[0][1], len(probe.hidden)) for probe in probes] == expected


@pytest.mark.parametrize(
    ("largest", "context"), [(1, 1), (1, 3), (4, 8), (4, 33), (5, 48), (64, 256), (200, 512)]
)
def test_a_ragged_sequence_fills_the_context_with_every_short_call(
    largest: int, context: int
) -> None:
    calls, *last = ragged_calls(largest, context, anywhere=True)
    assert last == ([((context - 1, 1),)] if context > 1 else [])
    assert kept_rows(calls) == list(range(context))
    sizes = [length for _, length in calls]
    assert max(sizes) <= largest
    if context >= 3 * largest:
        assert {*range(1, min(largest, 5) + 1), largest} <= {*sizes}


def test_a_large_context_is_probed_at_its_start_its_middle_and_its_end() -> None:
    spans = ragged_calls(4, 2048, anywhere=True)
    assert [(calls[0][0], sum(calls[-1])) for calls in spans] == [
        (0, 11), (1018, 1029), (2037, 2048), (2047, 2048),
    ]  # fmt: skip
    assert ragged_calls(4, 2048, anywhere=False) == spans[:1]


def test_slots_are_written_again_from_the_middle_and_from_the_first() -> None:
    twice = rewrite_calls(8, 64)
    assert {start: calls[2:] for start, calls in twice.items()} == {
        6: ((6, 8), (14, 2)),
        0: ((0, 8), (8, 2)),
    }
    assert all(calls[:2] == ((0, 6), (6, 6)) for calls in twice.values())
    assert {*rewrite_calls(4, 64)} == {4, 0}
    assert [kept_rows(calls)[-1] for calls in twice.values()] == [21, 21]
    assert rewrite_calls(8, 1) == {0: ((0, 1), (0, 1))}


@pytest.mark.parametrize(
    ("largest", "context", "anywhere"), [(64, 64, True), (4, 640, True), (33, 256, False)]
)
def test_over_seeds_a_call_begins_at_every_position(
    largest: int, context: int, anywhere: bool
) -> None:
    every = [drawn_calls(seed, largest, context, anywhere=anywhere) for seed in range(1, 41)]
    calls = [call for sequences in every for sequence in sequences for call in sequence]
    assert {*range(context)} <= {start for start, _ in calls}
    assert max(map(sum, calls)) == context
    assert all(size <= largest for _, size in calls)
    assert max(len(sequence) for sequences in every for sequence in sequences) <= 18


@pytest.mark.parametrize(
    ("model", "name", "kinds"),
    [
        (llama(context=64), "L00", {"ragged", "rewrite"}),
        (zaya(), "L00", {"ragged", "rewrite"}),
        (zaya(), "L01", set()),
        (llama(), "L00", set()),
    ],
)
def test_which_shards_are_called_how(model: Any, name: str, kinds: set[str]) -> None:
    drawn = draw_probes(shard(name, "ragged", "rewrite"), model.layout(name), no_states)
    assert {probe.kind for probe in drawn} == kinds


def test_recurrent_states_are_restored_where_a_call_goes_back() -> None:
    model = zaya()
    for probe in answered_probes(model, shard("L00", "rewrite", context=CONTEXT), no_states):
        case = probe.case(model.layout("L00"))
        assert case.recurrent == model.layout("L00").recurrent != ()
        starts = [start for start, _ in probe.calls]
        ((again, first),) = case.restored.items()
        assert starts[again] == starts[first] <= starts[again - 1]
    cached = llama(context=64)
    (probe, _) = answered_probes(cached, shard("L00", "rewrite", context=64), no_states)
    assert probe.case(cached.layout("L00")).restored == {}


def test_the_reference_of_a_rewritten_sequence_is_that_of_how_it_stands() -> None:
    model = llama(context=64)
    found = answered_probes(model, shard("L00", "rewrite", context=64), no_states)
    for probe in found:
        assert len(probe.hidden) == 22
        (expected,) = model.reference("L00")([probe.sequence])
        np.testing.assert_array_equal(probe.expected, expected)
        np.testing.assert_array_equal(probe.residual, probe.sequence)
    tensors, listed = to_tensors(found)
    for before, after in zip(found, read(tensors, listed), strict=True):
        assert before.calls == after.calls
        np.testing.assert_array_equal(before.residual, after.residual)


class Untold:
    """A family that does not tell who wrote its reference."""

    def __init__(self) -> None:
        self._model = llama()

    def __getattr__(self, name: str) -> Any:
        if name == "independent":
            raise AttributeError(name)
        return getattr(self._model, name)


@pytest.mark.parametrize(
    ("model", "same"),
    [(llama, False), (Untold, True), (zaya, True), (partial(zaya, variant="published"), False)],
)
def test_who_wrote_the_reference_is_kept(model: Any, same: bool) -> None:
    opened = model()
    for probe in read(*to_tensors(answered_probes(opened, shard("L00"), no_states))):
        assert probe.same_module is same
        assert probe.case(opened.layout("L00")).same_module is same


@pytest.mark.parametrize(("model", "name"), [(zaya, "L01"), (gemma, "L00.p7"), (gemma, "L00.p2")])
def test_residual_paths_and_routes_are_kept(model: Any, name: str) -> None:
    first, *rest = answered_probes(model(), shard(name), no_states)
    probes = [replace(first, undecided=(0,)), *rest]
    tensors, listed = to_tensors(probes)
    for before, after in zip(probes, read(tensors, listed), strict=True):
        assert (before.residual is None) == (name == "L00.p2") == (after.residual is None)
        if before.residual is not None:
            np.testing.assert_array_equal(before.residual, after.residual)
        assert before.routed == after.routed
        assert len(after.routed) == len(after.hidden)
        case = after.case(model().layout(name))
        assert (case.routed, case.undecided) == (before.routed, before.undecided)


def test_a_window_is_crossed_with_states_that_the_reference_fills() -> None:
    """Each key is out of sight `window` positions later; with a wider mask another shard runs."""
    model = gemma(context=64, shards=("L00.attn",), sliding_window=32)
    asked = shard("L00.attn", "ragged", max_tokens=4, context=64)
    probes = answered_probes(model, asked, no_states)
    probe = probes[-1]
    assert (probe.before, probe.calls[0][0], sum(probe.calls[-1])) == (27, 27, 38)
    *_, kept = read(*to_tensors(probes))
    assert kept.before == probe.before
    assert kept.states.keys() == {"k_cache", "v_cache"}
    module = model.conversion("L00.attn").module.float()
    for window, alike in ((32, True), (64, False)):
        case = kept.case(replace(model.layout("L00.attn"), window=window))
        for name, value in case.states.items():
            getattr(module, name)[:] = torch.from_numpy(value).float()
        with torch.inference_mode():
            outputs = [module(*map(torch.from_numpy, call.values())) for call in case.calls]
        rows = np.concatenate([y[0, :, :, 0].T.numpy() for y in outputs])
        error = np.abs(rows - probe.expected).max()
        assert (error < 2e-3) == alike


def test_a_family_of_the_user_s_own_may_tell_neither() -> None:
    class Own:
        def __init__(self) -> None:
            self.model = llama()
            self.layout, self.reference = self.model.layout, self.model.reference

    for probe in answered_probes(Own(), shard("L00"), no_states):  # type: ignore[arg-type]
        assert (probe.residual, probe.routed, probe.undecided) == (None, (), ())


KEY = "a" * 64


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limits of files")
def test_a_disk_that_fills_while_a_reference_is_saved_is_one_sentence(tmp_path: Path) -> None:
    """The safetensors package raises an error of its own for it."""
    import resource

    cache, tensors = Cache(tmp_path), {"x": np.zeros(100_000, np.float32)}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(BuildError) as error:
            cache.get_or_make("recordings", KEY, lambda folder: save(folder, tensors, {}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(error.value).startswith(f"Building into {tmp_path} failed: ")
    assert "File too large" in str(error.value)
    assert list((tmp_path / "tmp").iterdir()) == []
    folder = cache.get_or_make("recordings", KEY, lambda folder: save(folder, tensors, {}))
    assert load(folder)[0]["x"].shape == (100_000,)
    shutil.rmtree(folder)
