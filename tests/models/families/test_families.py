"""Families by name, streams, ids of blocks, residual paths, and values that no model has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.manifest import FAMILIES
from pytest_ane.mlprogram.errors import AneError, ManifestError, SourceError
from pytest_ane.models.families import (
    Conversion,
    Cut,
    Port,
    Ports,
    Streams,
    Wire,
    apply_output,
    optional,
    ports_of,
    shard_input,
)
from pytest_ane.models.families._blocks import missing, slice_bounds, slices, starts_whole, wiring
from pytest_ane.models.families._decoders import LLAMA
from pytest_ane.models.families.gemma4 import FAMILY as GEMMA4
from pytest_ane.models.families.registry import get_family
from pytest_ane.models.families.zaya import ZayaConfig
from pytest_ane.models.sources import SeededSource
from tests.models.families.gemma4.tiny import ROOT, MemorySource, tiny_config
from tests.models.families.gemma4.tiny import tiny_model as gemma4
from tests.models.families.gemma4.tiny import tiny_source as gemma_source
from tests.models.families.llama.tiny import tiny_model as llama
from tests.models.families.llama.tiny import tiny_source as tiny_llama
from tests.models.families.zaya import oracle
from tests.models.families.zaya.tiny import tiny_model as zaya
from tests.models.families.zaya.tiny import tiny_source as tiny_zaya

BERT = {
    "model_type": "bert", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
    "num_attention_heads": 2, "vocab_size": 16, "max_position_embeddings": 64,
}  # fmt: skip


def bert(*shards: str) -> Any:
    family = get_family("bert")
    return family.open_model(SeededSource(7, family.spread, BERT), Cut(shards))


@pytest.mark.parametrize(
    ("model", "shard", "independent"),
    [
        (llama, "L00", True),
        (gemma4, "L00.p0", True),
        (partial(zaya, variant="published"), "L01", True),
        (zaya, "L01", False),
        (partial(bert, "L00", "pooling"), "L00", True),
        # Transformers has no mean over positions, and no norm after it.
        (partial(bert, "L00", "pooling"), "pooling", False),
    ],
)
def test_whether_another_hand_wrote_the_reference(
    model: Callable[[], Any], shard: str, independent: bool
) -> None:
    assert model().independent(shard) is independent


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_what_the_protocol_asks(name: str) -> None:
    family = get_family(name)
    assert family.VERSION.startswith(f"{name}/")
    functions = ("open_model", "layout", "wiring", "starts_whole", "spread")
    assert all(callable(getattr(family, function)) for function in functions)


@pytest.mark.parametrize("name", ["", "Llama", "base", "..errors"])
def test_an_unknown_family(name: str) -> None:
    with pytest.raises(ManifestError) as error:
        get_family(name)
    assert f"No family {name!r}; there is: {', '.join(FAMILIES)}." in str(error.value)


@pytest.mark.parametrize(("name", "shard"), [("zaya", "L00"), ("gemma4", "L00.attn")])
def test_a_token_beyond_the_vocabulary_is_an_error(name: str, shard: str) -> None:
    """Of synthetic weights too, which have a row for any number."""
    family = get_family(name)
    model = family.open_model(SeededSource(1, family.spread), Cut((shard,)))
    with pytest.raises(SourceError, match="has no row 300000"):
        model.embed([2, 300_000])


MODELS = {
    "llama": llama(("L00", "head.0", "head.1", "head.2")),
    "llama with states": llama(("L00", "head.0", "head.1", "head.2"), context=6),
    "zaya": zaya(("L00", "L01", "head.0", "head.1")),
    "gemma4": gemma4(["head.0", "head.1", "head.2"]),
}
SHARDS = [
    *(("llama", shard) for shard in ("L00", "head.1", "head.2")),
    ("llama with states", "L00"),
    *(("zaya", shard) for shard in ("L00", "L01", "head.0", "head.1")),
    *(("gemma4", shard) for shard in ("L00.attn", "L01.attn", "L00.p0", "L00.p7", "head.2")),
]


@pytest.mark.parametrize(("name", "shard"), SHARDS)
def test_ports_without_weights_are_those_of_the_module(name: str, shard: str) -> None:
    model = MODELS[name]
    module, ports = model.conversion(shard).module.float(), model.ports(shard)

    def shape(port: Port) -> list[int]:
        return [2 if size == "T" else int(size) for size in port.shape]

    y = module(*(torch.zeros(shape(port)) for port in ports.inputs))
    assert [list(y.shape)] == [shape(port) for port in ports.outputs]
    buffers = dict(module.named_buffers())
    assert all(list(buffers[port.name].shape) == shape(port) for port in ports.states)
    layout = model.layout(shard)
    inputs = layout.inputs(np.zeros((2, layout.width), np.float32))
    assert {name: list(value.shape) for name, value in inputs.items()} == {
        port.name: shape(port) for port in ports.inputs
    }
    assert bool(ports.states) == (layout.sees == "state")
    assert (len(ports.inputs) == 1) == (layout.sees == "itself")


def test_a_module_s_own_functions_go_before_a_family_that_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What builds on another family is not that family."""
    code = """from pytest_ane.models.families._decoders import LLAMA as FAMILY
VERSION = "builds_on/1"
layout, wiring, starts_whole, spread, open_model = [lambda *_: None] * 5
"""
    (tmp_path / "builds_on_llama.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    assert get_family("builds_on_llama").VERSION == "builds_on/1"


X, MOE = np.array([[1, 2], [5, 6]], np.float32), np.array([[3, 4], [7, 8]], np.float32)


def test_streams_enter_side_by_side() -> None:
    wire = Wire("L00.p7", takes=("x", "moe"))
    assert shard_input({"x": X, "moe": MOE}, wire).tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]


@pytest.mark.parametrize(
    ("mode", "after"),
    [
        ("set", [[3, 4], [7, 8]]),
        ("add", [[4, 6], [12, 14]]),
        ("append", [[1, 2, 3, 4], [5, 6, 7, 8]]),
    ],
)
def test_an_output_replaces_adds_or_lengthens(mode: str, after: list[list[int]]) -> None:
    streams: Streams = {"x": X}
    apply_output(streams, Wire("L00", mode=mode), MOE)
    assert streams["x"].tolist() == after


@pytest.mark.parametrize("mode", ["set", "add", "append"])
def test_the_first_output_makes_the_stream(mode: str) -> None:
    streams: Streams = {}
    apply_output(streams, Wire("L00.p0", gives="moe", mode=mode), MOE)
    assert np.array_equal(streams["moe"], MOE)


class _Family:
    """A user's family, which does not tell its ports."""

    description: dict[str, Any] = {}  # noqa: RUF012

    def conversion(self, shard: str) -> Conversion:
        return Conversion(None, (Port(shard, (1,)),), (Port("y", (1,)),), (Port("k", (2,)),))


class _Telling(_Family):
    def ports(self, shard: str) -> Ports:
        return Ports((), (Port(shard, (3,)),))


def test_ports_are_told_or_those_of_the_conversion() -> None:
    assert ports_of(_Family(), "a") == Ports(
        (Port("a", (1,)),), (Port("y", (1,)),), (Port("k", (2,)),)
    )
    assert ports_of(_Telling(), "a") == Ports((), (Port("a", (3,)),))


def test_shards_in_running_order() -> None:
    shards = ["head.10", "L10", "L02", "head.2", "L01"]
    assert wiring(shards, "mine") == (
        Wire("L01"),
        Wire("L02"),
        Wire("L10"),
        Wire("head.2", gives="logits", mode="append", kind="head"),
        Wire("head.10", gives="logits", mode="append", kind="head"),
    )
    assert wiring([], "mine") == ()


@given(st.permutations([*(f"L{i:02}" for i in range(12)), *(f"head.{i}" for i in range(12))]))
def test_the_chain_does_not_depend_on_the_manifest_s_order(shards: list[str]) -> None:
    ids = [wire.shard for wire in wiring(shards, "mine")]
    assert ids == [*(f"L{i:02}" for i in range(12)), *(f"head.{i}" for i in range(12))]


@pytest.mark.parametrize("name", ["encoder", "L", "L00.p0", "head", "l00", "head.x", "L00\n"])
def test_a_shard_that_is_neither_block_nor_head(name: str) -> None:
    with pytest.raises(ManifestError) as error:
        wiring(["L00", name], "mine")
    assert f"Family 'mine' has no shard {name!r}; blocks are L00, L01, ..." in str(error.value)


def test_a_stack_is_whole_up_to_its_last_block() -> None:
    assert starts_whole(["L01", "head.3", "L00"])
    assert not starts_whole(["L01", "head.0"])
    assert missing(["L01", "head.0"], 4) == ["L00", "L02", "L03"]


def test_the_head_is_one_slice_or_a_row_of_them() -> None:
    assert slices(["L00"]) == 1
    assert slices(["head.1", "L00", "head.0"]) == 2
    for heads in (["head.0", "head.2"], ["head.0", "head.00"]):
        with pytest.raises(ManifestError, match=r"number them head\.0 to head\.1"):
            slices(heads)
    with pytest.raises(ManifestError, match=r"The head's slices are head\.1; number them head\.0"):
        slices(["L00", "head.1"])


@given(st.integers(1, 200_000), st.integers(1, 64))
def test_slices_cover_the_vocabulary_once_and_evenly(vocabulary: int, parts: int) -> None:
    bounds = [slice_bounds(vocabulary, parts, i) for i in range(parts)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == vocabulary
    assert all(a[1] == b[0] for a, b in pairwise(bounds))
    sizes = {high - low for low, high in bounds}
    assert max(sizes) - min(sizes) <= 1


Values = dict[str, Any]
VALUES = [
    10**400, -(10**400), 2**63, 0, -1, 1e308, 1e-320, float("inf"), float("nan"), True, None, "",
    "\x1b[2J" * 9999, [], [10**400], {}, {"a": 10**400},
]  # fmt: skip


def hostile_llama(values: Values | None = None) -> Values:
    source = tiny_llama(layers=2, heads=4, kv_heads=2, head=8, ffn=20, vocabulary=11)
    if values is not None:
        source.values = values
        LLAMA.read(source, Cut(()))
    return source.values


def hostile_zaya(values: Values | None = None) -> Values:
    source = tiny_zaya()
    if values is not None:
        source.values = values
        ZayaConfig.read(source, 3, Cut((), context=9))
    return source.values


def hostile_gemma4(values: Values | None = None) -> Values:
    if values is not None:
        GEMMA4.read(MemorySource({}, values), Cut((), stateful=True))
    return tiny_config()


def paths(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key, nested ones too."""
    for key, value in table.items():
        yield (*path, key)
        if isinstance(value, Mapping):
            yield from paths(value, (*path, key))


@pytest.mark.parametrize("family", [hostile_llama, hostile_zaya, hostile_gemma4])
def test_any_value_of_any_key(family: Callable[..., Values]) -> None:
    refused: list[str] = []
    for path in list(paths(family())):
        for value in VALUES:
            values = deepcopy(family())
            table = values
            for key in path[:-1]:
                table = table[key]
            table[path[-1]] = value
            try:
                family(values)
            except AneError as error:
                refused.append(str(error))
    assert len(refused) > 50
    assert all(map(str.isprintable, refused))
    assert max(map(len, refused)) <= 1000


def states(width: int, *lengths: int) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal((n, width)).astype(np.float32) for n in lengths]


def residual(model: Any, shard: str, sequences: list[np.ndarray]) -> list[np.ndarray]:
    path = optional(model, "residual", shard)
    assert path is not None
    return path(sequences)


def test_a_llama_block_adds_to_what_enters() -> None:
    """Without its last projections a block gives the residual path alone."""
    model = llama()
    for name in ("blk.0.attn_output.weight", "blk.0.ffn_down.weight"):
        model.source.tensors[name] = np.zeros_like(model.source.tensors[name])
    sequences = states(model.config.width, 3, 1)
    for path, y in zip(
        residual(model, "L00", sequences), model.reference("L00")(sequences), strict=True
    ):
        np.testing.assert_array_equal(path, y)


@pytest.mark.parametrize("shard", ["L00", "L01"])
def test_a_zaya_layer_scales_and_shifts_it(shard: str) -> None:
    model = zaya(seed=2)
    own = oracle.weights(model.source.tensors, int(shard[1:]))
    sequences = states(12, 3, 2)
    for x, path in zip(sequences, residual(model, shard, sequences), strict=True):
        expected = x * own["res_scale.residual_scale"] + own["res_scale.residual_bias"]
        np.testing.assert_allclose(path, expected, rtol=1e-6, atol=1e-6)


def test_a_gemma_layer_ends_with_its_scalar() -> None:
    model = gemma4(seed=2)
    scalar = gemma_source(2).tensors[f"{ROOT}layers.0.layer_scalar"][0]
    both = states(2 * model.config.width, 3, 2)
    for x, path in zip(both, residual(model, "L00.p7", both), strict=True):
        expected = x[:, : model.config.width] * scalar
        np.testing.assert_allclose(path, expected, rtol=1e-6)
    (x,) = states(model.config.width, 3)
    assert residual(model, "L00.attn", [x])[0] is x


@pytest.mark.parametrize(
    ("model", "shard"),
    [(llama, "head.0"), (zaya, "head.0"), (gemma4, "head.0"), (gemma4, "L00.p3")],
    ids=["llama head", "zaya head", "gemma head", "gemma pack"],
)
def test_there_is_none_in_heads_and_packs(model: Any, shard: str) -> None:
    assert optional(model(), "residual", shard) is None


def test_a_zaya_mixture_s_experts_above_an_even_share() -> None:
    model = zaya(seed=3)
    sequences = states(12, 6, 5)
    routing = optional(model, "routed", "L01")
    assert routing is not None
    own = oracle.weights(model.source.tensors, 1)
    found = [active for routes in routing(sequences) for active in routes]
    assert len(set(found)) > 2
    for row, active in zip(np.concatenate(sequences), found, strict=True):
        weights = oracle.routing(row.astype(np.float64), own)
        above = [e for e in range(3) if weights[e] > 1 / 4]
        assert list(active) == sorted(above, key=lambda e: -weights[e])


def test_a_gemma_pack_s_own_experts_among_the_chosen() -> None:
    model = gemma4(seed=4)
    (x,) = states(model.config.width, 9)
    each = model.config.mixture.experts // 8
    together: list[list[int]] = [[] for _ in x]
    for pack in range(8):
        routing = optional(model, "routed", f"L00.p{pack}")
        assert routing is not None
        # The last pack takes the sum of the others beside the residual stream.
        given = np.concatenate([x, x], axis=1) if pack == 7 else x
        for position, active in enumerate(routing([given])[0]):
            assert set(active) <= set(range(pack * each, pack * each + each))
            together[position] += active
    assert {len(active) for active in together} == {model.config.mixture.top}
    assert len({*map(tuple, together)}) > 1


@pytest.mark.parametrize(
    ("model", "shard"),
    [(llama, "L00"), (zaya, "L00"), (zaya, "head.0"), (gemma4, "L00.attn")],
    ids=["llama", "zaya attention", "zaya head", "gemma attention"],
)
def test_others_route_nothing(model: Any, shard: str) -> None:
    assert optional(model(), "routed", shard) is None
