"""Families of checkpoints that transformers saves: refusals, seeds, streams, and examples."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import gemma3
from pytest_ane.mlprogram import fp16
from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.families import Cut, apply_output, shard_input
from pytest_ane.models.families.decoder import DecoderModel
from pytest_ane.models.families.registry import get_family, identify_family
from pytest_ane.models.sources import SeededSource
from pytest_ane.models.sources._safetensors import SafetensorsSource
from tests.forked import Forge
from tests.models.families.decoder.cases import CASES
from tests.models.families.decoder.oracle import (
    MAX_TOKENS,
    TINY,
    Case,
    Converted,
    difference,
    expected,
    prompt,
    referred,
)

FIRST = {case.family: case for case in reversed(CASES)}


def edited(case: Case, folder: Path, **changes: Any) -> None:
    """The case's checkpoint with other settings; `...` takes one out."""
    case.save(folder)
    config = json.loads((folder / "config.json").read_text()) | changes
    kept = {key: value for key, value in config.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(kept))


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_layers_that_the_configuration_does_not_have(family: str, tmp_path: Path) -> None:
    edited(FIRST[family], tmp_path, num_hidden_layers=2)
    said = r"has the tensor 'model\.layers\.2\..*', and by its configuration 2 layers, so the last"
    with pytest.raises(SourceError, match=said):
        get_family(family).open_model(SafetensorsSource(tmp_path), Cut(("L00",)))


@pytest.mark.parametrize(
    ("family", "key", "experts"),
    [
        ("mixtral", "num_local_experts", "experts.3"),
        ("qwen2_moe", "num_local_experts", "experts.4"),
        ("qwen3_moe", "num_local_experts", "experts.4"),
        ("gemma4", "num_experts", "experts.gate_up_proj"),
        ("zaya", "num_experts", "mlp.gate.balancing_biases"),
    ],
)
def test_experts_that_the_configuration_does_not_have(
    family: str, key: str, experts: str, tmp_path: Path
) -> None:
    case = FIRST[family]
    case.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    key = key if key in config else "num_experts"
    edited(case, tmp_path, **{key: config[key] - 1 - 7 * (family == "gemma4")})

    def build() -> None:
        model = case.open(tmp_path, stateful=False)
        for shard in model.shards:
            model.conversion(shard)

    with pytest.raises(SourceError, match=f"({re.escape(experts)}|router).*by its configuration"):
        build()


def test_layers_far_beyond_the_configuration(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    FIRST["llama"].save(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.7.mlp.up_proj.weight"
    save_file(tensors | {name: tensors["model.norm.weight"].clone()}, file)
    with pytest.raises(SourceError, match=f"the tensor '{name}', and by its configuration 3 layer"):
        FIRST["llama"].open(tmp_path, stateful=False)


def test_the_layers_of_a_tower_are_others(tmp_path: Path) -> None:
    """Of a model that also sees images there may be more of them than the text's."""
    from safetensors.torch import load_file, save_file

    FIRST["gemma3"].save(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = {k.replace("model.", "language_model.model."): v for k, v in load_file(file).items()}
    norm = tensors["language_model.model.norm.weight"].clone()
    tower = {f"vision_tower.encoder.layers.{i}.norm.weight": norm.clone() for i in range(20)}
    save_file(tensors | tower, file)
    assert len(FIRST["gemma3"].open(tmp_path, stateful=False).config.layers) == 7


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("llama", {"model_type": "mistral"}, "architecture 'mistral', expected 'llama'"),
        ("llama", {"sliding_window": 9}, "config.json has sliding_window 9, which family 'llama'"),
        ("qwen2", {"hidden_act": "gelu"}, "hidden_act is 'gelu', and family 'qwen2' computes"),
        ("qwen2", {"num_experts": 4}, "config.json has num_experts 4"),
        ("qwen3", {"num_key_value_heads": 3}, "4 query heads, 3 key heads and 16 channels"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention True"),
        ("gemma3", {"layer_types": ["full_attention"]}, "layer_types is .* for each of 7 layers"),
        ("gemma3", {"attn_logit_softcapping": -1}, "config.json has attn_logit_softcapping -1"),
        (
            "gemma3",
            {"rope_local_base_freq": 7.0},
            "7.0 and rope_parameters.sliding_attention.rope_theta",
        ),
        (
            "gemma3",
            {"rope_parameters": {"rope_type": "linear", "factor": 8.0}},
            "config.json has no rope_parameters.full_attention beside its other rope_parameters",
        ),
        (
            "llama",
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            "has rope_parameters {.*} and rope_scaling {.*}; leave one of them",
        ),
        ("phi3", {"partial_rotary_factor": 0.3}, "partial_rotary_factor 0.3"),
        ("smollm3", {"no_rope_layers": [1, 2, 1, 1, 1]}, "no_rope_layers is .* one of 1, 0 for"),
        ("granite", {"residual_multiplier": "x"}, "residual_multiplier is 'x', no positive number"),
        ("llama", {"residual_multiplier": 0.5}, "has residual_multiplier 0.5, which fam"),
        ("llama", {"quantization_config": {"bits": 4}}, r"quantization_config \{'bits': 4\}"),
        ("llama", {"layer_types": ["sliding_attention"] * 3}, r"has layer_types \['sliding_att"),
        ("mixtral", {"layer_types": 3}, "has layer_types 3, which family 'mixtral'"),
        ("llama", {"no_rope_layer_interval": 4}, "has no_rope_layer_interval 4, which family"),
        ("llama", {"scale_emb": 12}, "has scale_emb 12, which family"),
        ("llama", {"hidden_act": "gelu", "hidden_activation": "silu"}, "hidden_act is 'gelu'"),
        (
            "smollm3",
            {"layer_types": ["sliding_attention"] * 5, "sliding_window": 4},
            "layer_types has layers with a window, and no other key gives one",
        ),
        ("gemma2", {"sliding_window_pattern": 3}, "sliding_window_pattern is 3, and family"),
        ("granite", {"model_type": "granitemoehybrid"}, "config.json has no layer_types"),
        (
            "granite",
            {"model_type": "granitemoehybrid", "layer_types": ["attention", "mamba", "attention"]},
            "layer_types is .*expected one of attention, full_attention",
        ),
        (
            "granite",
            {
                "model_type": "granitemoehybrid",
                "layer_types": ["attention"] * 3,
                "num_local_experts": 8,
            },
            "config.json has num_local_experts 8, which family 'granite'",
        ),
        ("zaya", {"rope_parameters": ..., "rope_theta": 300.0}, "has rope_theta 300.0, which fam"),
        (
            "mistral",
            {"text_config": {"model_type": "mistral"}},
            "config.json has hidden_size 32 beside text_config, which has none; move it there",
        ),
    ],
)
def test_options_that_are_not_computed(
    tmp_path: Path, family: str, changes: dict[str, Any], said: str
) -> None:
    case = FIRST[family]
    edited(case, tmp_path, **changes)
    with pytest.raises(SourceError, match=said):
        case.open(tmp_path, stateful=False)


@pytest.mark.drawn
@pytest.mark.parametrize("family", FIRST)
def test_a_tensor_that_would_be_left_out(family: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    case = FIRST[family]
    case.save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.self_attn.sinks"] = tensors["model.norm.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(SourceError, match=r"its tensor 'model\.layers\.0\.self_attn\.sinks'"):
        case.open(tmp_path, stateful=False)


@pytest.mark.parametrize("family", FIRST)
def test_a_seed(family: str) -> None:
    module = get_family(family)
    case, shards = FIRST[family], FIRST[family].shards
    config = {**TINY, **case.changes}
    # A seed has the names of ZAYA's first release, which counts attention and mixtures.
    config["num_hidden_layers"] *= case.layers
    cut = Cut(shards, context=32, stateful=True)
    model = module.open_model(SeededSource(7, module.spread, config), cut)
    streams = {"x": model.embed(prompt(9))}
    for wire in module.wiring(shards):
        x, (y,) = streams["x"], model.reference(wire.shard)([shard_input(streams, wire)])
        assert np.isfinite(y).all()
        if wire.gives == "x":
            assert 0.5 < np.linalg.norm(y) / np.linalg.norm(x) < 10
        apply_output(streams, wire, y)


@pytest.mark.parametrize("family", FIRST)
def test_a_layout_is_rebuilt_from_its_description(family: str, tmp_path: Path) -> None:
    case = FIRST[family]
    case.save(tmp_path)
    model = case.open(tmp_path, stateful=True)
    described = json.loads(json.dumps(model.description))
    for shard in model.shards:
        assert get_family(family).layout(described, shard) == model.layout(shard)


def test_the_base_model_of_an_embedder_has_no_prefix(tmp_path: Path) -> None:
    """Qwen3's embedding models are saved without a head and without `model.`."""
    from safetensors.torch import load_file, save_file

    case = FIRST["qwen3"]
    case.save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        {k.removeprefix("model."): v for k, v in tensors.items() if k != "lm_head.weight"},
        tmp_path / "model.safetensors",
    )
    edited_config = json.loads((tmp_path / "config.json").read_text())
    edited_config["tie_word_embeddings"] = True
    (tmp_path / "config.json").write_text(json.dumps(edited_config))
    model = case.open(tmp_path, stateful=False)
    assert np.isfinite(model.reference("L00")([model.embed([1, 2])])[0]).all()


def test_states_after_a_sequence_are_those_of_its_calls(tmp_path: Path) -> None:
    import torch

    case = FIRST["gemma3"]
    case.save(tmp_path)
    model = case.open(tmp_path, stateful=True)
    module, layout = model.conversion("L00").module.float(), model.layout("L00")
    hidden = model.embed(prompt(60))
    for start in range(0, 60, 6):
        inputs = layout.inputs(hidden[start : start + 6], start)
        with torch.inference_mode():
            module(*map(torch.from_numpy, inputs.values()))
    filling = model.filling("L00")
    assert filling is not None
    states = filling(hidden)
    for name, value in states.items():
        kept = dict(module.named_buffers())[name].numpy()
        assert kept.shape == value.shape == (2, 1, 16, 32)
        np.testing.assert_allclose(kept, value, rtol=1e-3, atol=1e-3)
    assert model.filling("L05") is None


EXAMPLE = Path(__file__).parents[4] / "examples" / "own_family"
CHANGES = {"head_dim": 10, "sliding_window": 5, "query_pre_attn_scalar": 20}
OWN_CASES = (
    Case("plain", "vault_gemma", "VaultGemma", CHANGES),
    Case("no-caps", "vault_gemma", "VaultGemma", CHANGES | {
        "attn_logit_softcapping": None, "final_logit_softcapping": 3.0, "attention_bias": True,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    }),
)  # fmt: skip


@pytest.mark.parametrize("case", OWN_CASES, ids=lambda case: case.name)
def test_logits(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    right, ids = case.save(tmp_path), prompt(60)
    logits = expected(right, ids)
    shards = Converted(case.open(tmp_path, stateful=True))
    starts = range(0, 60, MAX_TOKENS)
    stepped = np.concatenate([shards(ids[start : start + MAX_TOKENS]) for start in starts])
    for actual in (referred(case.open(tmp_path, stateful=False), ids), stepped):
        assert difference(actual, logits) <= 1e-4
        np.testing.assert_array_equal(actual.argmax(axis=1), logits.argmax(axis=1))


def test_its_source_is_part_of_what_shards_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    assert get_family("vault_gemma").VERSION == "vault_gemma/3.1"
    assert identify_family("vault_gemma")["code"].keys() == {"vault_gemma"}


def test_the_page_shows_it() -> None:
    page = (EXAMPLE.parents[1] / "docs/how-to/own-model.md").read_text()
    shown = page.split("```python\nfrom dataclasses import replace\n")[1].split("```")[0]
    code = (EXAMPLE / "vault_gemma.py").read_text().splitlines()
    assert [line for line in shown.splitlines() if line and line not in code] == []


@pytest.mark.drawn(1)
@pytest.mark.slow
def test_gates_of_its_example(tmp_path: Path, forge: Forge) -> None:
    command = ["pytest", f"--ane-manifest={EXAMPLE / 'shards.toml'}", "--ane-shards=L00,head.0"]
    command += ["-m", "gate", f"--ane-cache={tmp_path / 'cache'}"]
    done = forge.run(command, tmp_path)
    assert done.returncode == 0, done.stdout
    assert "6 gates: " in done.stdout


GEMMA3 = next(case for case in CASES if case.name == "gemma3")


def tiny(folder: Path, scale: float | None = None) -> DecoderModel:
    """Gemma 3, its hidden states at another scale of the model's than its family has them."""
    GEMMA3.save(folder)
    model = GEMMA3.open(folder, stateful=False)
    if scale is not None:
        model.config = replace(model.config, stream_scale=scale)
    return model


def run(model: DecoderModel, shard: str, hidden: FloatArray, dtype: torch.dtype) -> FloatArray:
    """A shard's ANE form in a dtype, between its layout's two ends."""
    conversion, layout = model.conversion(shard), model.layout(shard)
    inputs = layout.inputs(hidden)
    tensors = [torch.tensor(inputs[port.name]).to(dtype) for port in conversion.inputs]
    with torch.inference_mode():
        given = conversion.module.to(dtype)(*tensors)
    return layout.output({"y": given.float().numpy()})


@pytest.mark.parametrize("shard", ["L00", "L06", "head.0"])
def test_the_scale_changes_no_number(tmp_path: Path, shard: str) -> None:
    plain, scaled = tiny(tmp_path / "plain", 1.0), tiny(tmp_path / "scaled")
    assert scaled.config.stream_scale == 2**-5
    hidden = plain.embed(prompt(7))
    assert (scaled.layout(shard).inputs(hidden)["x"] * 32 == hidden.T[None, :, :, None]).all()
    expected = run(plain, shard, hidden, torch.float32)
    assert run(scaled, shard, hidden, torch.float32) == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_what_fp16_does_not_hold_comes_through(tmp_path: Path) -> None:
    """104,000 is the largest of Gemma 3 270M, at the first position of a text."""
    hidden = np.random.default_rng(0).normal(size=(5, GEMMA3.changes.get("hidden_size", 32)))
    hidden[0, 3] = 104_000
    hidden = hidden.astype(np.float32)
    model = tiny(tmp_path / "scaled")
    (expected,) = model.reference("L00")([hidden])
    assert expected.max() > fp16.MAX
    given = run(model, "L00", hidden, torch.float16)
    assert np.abs(given - expected).max() < 2**-8 * np.abs(expected).max()
    lost = run(tiny(tmp_path / "plain", 1.0), "L00", hidden, torch.float16)
    assert not np.isfinite(lost).all()


ROOT = Path(__file__).parents[4]
GEMMA3_EXAMPLE = ROOT / "examples/gemma3-270m.toml"


@pytest.mark.drawn(3)
@pytest.mark.heavy
def test_the_reference_is_transformers() -> None:
    ours = gemma3.referred()
    theirs = gemma3.right(ours.ids)
    assert ours.perplexity == pytest.approx(theirs.perplexity, rel=1e-4)
    assert ours.perplexity == pytest.approx(21.5, rel=0.01)
    assert difference(ours.logits, theirs.logits) <= 1e-4
    assert (ours.logits.argmax(axis=1) == theirs.logits.argmax(axis=1)).all()
    # Beyond fp16, so that it needs the factor of 1/32.
    assert max(ours.largest.values()) > 65_504


@pytest.mark.full
def test_the_whole_example_is_green(tmp_path: Path, forge: Forge) -> None:
    """As the program's types say; both arithmetics take twice as long, `make examples` has them."""
    command = ["pytest", f"--ane-manifest={GEMMA3_EXAMPLE}"]
    command += ["--ane-shards=all"]
    command += ["-m", "gate", f"--ane-cache={tmp_path}", "-p", "no:cacheprovider"]
    command += ["--ane-arithmetic=typed"]
    done = forge.run(command, ROOT)
    assert done.returncode == 0, done.stdout
    assert "103 gates: " in done.stdout
