"""The published form: names of either kind, one expert at a position, the router's state."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pytest_ane.make.coremltools_quiet import converter_notes
from pytest_ane.make.shard import convert
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.model import read_model
from pytest_ane.models.families import Cut
from pytest_ane.models.families.zaya import ZayaModel, layout, open_model
from pytest_ane.models.sources._safetensors import SafetensorsSource
from tests.models.families.decoder.cases import CASES
from tests.models.families.decoder.oracle import difference, expected, prompt, referred
from tests.models.families.zaya.tiny import tiny_model

_LEGACY = (
    (r"model\.norm\.", "model.final_norm."),
    (r"layers\.(\d+)\.input_layernorm", "layers.{even}.input_norm"),
    (r"layers\.(\d+)\.post_attention_layernorm", "layers.{odd}.input_norm"),
    (r"model\.input_hidden_states_", "model.layers.0.res_scale.hidden_states_"),
    (r"layers\.(\d+)\.post_attention_residual_scale", "layers.{odd}.res_scale"),
    (r"layers\.(\d+)\.post_mlp_residual_scale", "layers.{next}.res_scale"),
    (r"layers\.(\d+)\.self_attn\.qk_norm\.temp", "layers.{even}.self_attn.qkv.temp"),
    (r"layers\.(\d+)\.self_attn\.o_proj", "layers.{even}.self_attn.o_proj"),
    (r"layers\.(\d+)\.self_attn\.qkv_proj", "layers.{even}.self_attn.qkv"),
    (r"\.q_proj", ".linear_q"), (r"\.k_proj", ".linear_k"),
    (r"v_proj_current", "val_proj1"), (r"v_proj_delayed", "val_proj2"),
    (r"conv_qk_depthwise", "conv_qk.0"), (r"conv_qk_grouped", "conv_qk.1"),
    (r"layers\.(\d+)\.mlp\.gate", "layers.{odd}.zaya_block.router"),
    (r"router_mlp\.norm", "rmsnorm_eda"), (r"router_mlp\.fc1", "router_mlp.0"),
    (r"router_mlp\.fc2", "router_mlp.2"), (r"router_mlp\.out_proj", "router_mlp.4"),
)  # fmt: skip
"""From transformers' names to the first release's: what `convert_zaya_weights_to_hf.py` of its pull
request 45862 does, the other way."""


def legacy(tensors: dict[str, torch.Tensor], layers: int) -> dict[str, torch.Tensor]:
    """Tensors that transformers saved as the first release has them."""
    named: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if match := re.fullmatch(r"model\.layers\.(\d+)\.mlp\.experts\.(\w+)_proj", name):
            fc, at = ("1" if match[2] == "gate_up" else "2"), 2 * int(match[1]) + 1
            own = f"model.layers.{at}.zaya_block.experts.local_experts"
            named |= {f"{own}.{e}.linear_fc{fc}.weight": w.clone() for e, w in enumerate(tensor)}
            continue
        for pattern, new in _LEGACY:

            def renamed(found: re.Match[str], new: str = new) -> str:
                index = int(found[1]) if found.re.groups else 0
                return new.format(even=2 * index, odd=2 * index + 1, next=2 * index + 2)

            name = re.sub(pattern, renamed, name)
        named[name.replace(f"model.layers.{layers}.", "model.")] = tensor
    return named


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, Path]:
    """A model of transformers, what it saves, and the same as the first release."""
    new, old = (tmp_path_factory.mktemp(name) for name in ("new", "old"))
    right = next(case for case in CASES if case.name == "zaya").save(new)
    save_file(legacy(load_file(new / "model.safetensors"), 6), old / "model.safetensors")
    config = {
        "model_type": "zaya", "num_hidden_layers": 6, "hidden_size": 32, "num_attention_heads": 4,
        "num_query_groups": 2, "head_dim": 8, "partial_rotary_factor": 0.5, "rope_theta": 5e6,
        "num_experts": 4, "ffn_hidden_size": 24, "zaya_mlp_expansion": 6, "norm_epsilon": 1e-5,
        "vocab_size": 61,
    }  # fmt: skip
    (old / "config.json").write_text(json.dumps(config))
    return right, new, old


def opened(folder: Path, variant: str = "published", **changes: Any) -> ZayaModel:
    shards = (*(f"L{i:02d}" for i in range(6)), "head.0")
    cut = Cut(shards, max_tokens=8, context=32, variant=variant)
    return open_model(SafetensorsSource(folder, changes), cut)


@pytest.mark.slow
def test_the_first_release_s_names_are_the_same_model(saved: tuple[Any, Path, Path]) -> None:
    right, new, old = saved
    ids = prompt(20)
    np.testing.assert_array_equal(referred(opened(old), ids), referred(opened(new), ids))
    assert difference(referred(opened(old), ids), expected(right, ids)) <= 1e-4


@pytest.mark.slow
def test_the_notes_form_of_either_is_another_model(saved: tuple[Any, Path, Path]) -> None:
    right, new, old = saved
    ids = prompt(20)
    notes = referred(opened(new, "notes"), ids)
    np.testing.assert_array_equal(notes, referred(opened(old, "notes"), ids))
    assert difference(notes, expected(right, ids)) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("model.res_scale.hidden_states_scale", 1.2),
        ("model.layers.0.res_scale.hidden_states_bias", 1.2),
        ("model.layers.3.zaya_block.router.router_states_scale", 1.2),
        ("model.layers.3.zaya_block.router.balancing_biases", -1),
    ],
)
def test_what_the_notes_form_leaves_out_is_read(
    saved: tuple[Any, Path, Path], tmp_path: Path, name: str, factor: float
) -> None:
    right, _, old = saved
    tensors = load_file(old / "model.safetensors")
    tensors[name] *= factor
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((old / "config.json").read_text())
    ids = prompt(20)
    assert difference(referred(opened(tmp_path), ids), expected(right, ids)) > 1e-4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts_per_tok": 2}, "num_experts_per_tok is 2, and family 'zaya' computes 1 only"),
        ({"layer_types": ["hybrid"] * 2}, "expected one of hybrid, hybrid_sliding for each of 3"),
        (
            {"layer_types": ["hybrid_sliding"] * 3, "sliding_window": None},
            "layer_types has sliding ones, and no window",
        ),
        ({"rope_parameters": {"hybrid": {"rope_type": "axial"}}}, 'rope_type "axial"'),
    ],
)
def test_what_is_not_computed(
    saved: tuple[Any, Path, Path], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SourceError, match=re.escape(message)):
        opened(saved[1], **changes)


def test_streams_of_a_mixture() -> None:
    model = tiny_model(("L01", "L03"), "published", layers=4)
    assert [model.layout(shard).width for shard in ("L01", "L03")] == [12, 12 + 6]
    assert layout(json.loads(json.dumps(model.description)), "L03") == model.layout("L03")
    first, second = (model.ports(shard) for shard in ("L01", "L03"))
    assert first.inputs[0].shape == (1, 12, "T", 1)
    assert second.inputs[0].shape == first.outputs[0].shape == (1, 18, "T", 1)


def test_one_expert_or_none_is_chosen_and_only_it_is_read() -> None:
    model = tiny_model(("L01",), "published", seed=3)
    x = np.random.default_rng(0).standard_normal((40, 12)).astype(np.float32)
    routing = model.routed("L01")
    assert routing is not None
    (routes,) = routing([x])
    assert {len(route) for route in routes} == {0, 1}
    reference, source = model.reference("L01"), model.source
    source.read.clear()
    row = next(i for i, route in enumerate(routes) if route == (1,))
    reference([x[row : row + 1]])
    own = "model.layers.1.zaya_block.experts.local_experts.1."
    assert source.read == [f"{own}linear_fc1.weight", f"{own}linear_fc2.weight"]


def test_what_a_position_adds_is_what_its_expert_adds() -> None:
    """The router's state is taken out whole; where none is chosen, two biases are left."""
    model = tiny_model(("L03",), "published", layers=4, seed=3)
    x = np.random.default_rng(0).standard_normal((40, 18)).astype(np.float32)
    routing, residual = model.routed("L03"), model.residual("L03")
    assert routing is not None
    assert residual is not None
    added = model.reference("L03")([x])[0] - residual([x])[0]
    assert not added[:, 12:].any()
    tensors = model.source.tensors
    bias, scale = (tensors[f"model.res_scale.hidden_states_{n}"] for n in ("bias", "scale"))
    for row, route in zip(added[:, :12], routing([x])[0], strict=True):
        assert np.allclose(row, bias * scale, atol=1e-6) == (not route)


@pytest.mark.drawn
@pytest.mark.parametrize(("shard", "seed"), [("L01", 1), ("L03", 1), ("L03", 2)])
def test_where_fp16_chooses_otherwise_is_undecided(shard: str, seed: int) -> None:
    model = tiny_model((shard,), "published", layers=4, width=64, router=32, experts=8, seed=seed)
    x = np.random.default_rng(seed).standard_normal((3000, model.layout(shard).width))
    hidden = x.astype(np.float16).astype(np.float32)
    routing, doubt = model.routed(shard), model.undecided(shard)
    assert routing is not None
    assert doubt is not None
    module = model.conversion(shard).module
    with torch.inference_mode():
        part = torch.from_numpy(hidden.T[None, :, :, None]).half()
        state = module.router.state(module.norm(part[:, :64]), part[:, 64:])
        chosen = module.router(state)[0, :, :, 0].T
    own = [(best,) if best < 8 else () for best in chosen.argmax(dim=1).tolist()]
    other = {i for i, (a, b) in enumerate(zip(own, routing([hidden])[0], strict=True)) if a != b}
    undecided = set(doubt([hidden])[0])
    assert other
    assert other <= undecided
    assert len(undecided) < 300


@pytest.mark.drawn
@pytest.mark.slow
@pytest.mark.parametrize("shard", ["L00", "L01", "L03"])
def test_packages(shard: str, tmp_path: Path) -> None:
    model = tiny_model((shard,), "published", layers=4, width=16, head=8, overflowing=True)
    with converter_notes():
        made = convert(model.conversion(shard), max_tokens=4, target="iOS18", subject=shard)
        made.save(str(tmp_path / "p.mlpackage"))
    session = Session(read_model(tmp_path / "p.mlpackage"))
    counted = [op.op for op in session.model.main.block.operations]
    assert not {"scatter", "gather", "topk", "cond", "while_loop", "cast"} & {*counted}
    assert counted.count("conv") == (4 if shard == "L00" else 4 + 2 * 3)
    layout = model.layout(shard)
    hidden = np.random.default_rng(1).standard_normal((8, layout.width)).astype(np.float32)
    (right,) = model.reference(shard)([hidden])
    doubt = model.undecided(shard)
    decided = np.delete(np.arange(8), doubt([hidden])[0] if doubt else ())
    assert len(decided) >= 6
    for size in (1, 4):
        state, rows = session.make_state(), []
        for start in range(0, 8, size):
            inputs = layout.inputs(hidden[start : start + size], start)
            rows.append(layout.output(session.predict(inputs, state)))
        error = np.abs(np.concatenate(rows) - right)[decided]
        assert error.max() <= 4e-3 * np.abs(right).max()
