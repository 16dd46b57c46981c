"""Every key of transformers' configurations is read by its family, refused, or changes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.manifest import FAMILIES, SourceTable
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.families import Cut
from pytest_ane.models.families.registry import get_family
from pytest_ane.models.sources import open_source
from tests.models.families.decoder.cases import CASES
from tests.models.families.decoder.oracle import TINY
from tests.models.sources.checkpoints import write_file

Keys = dict[str, Any]

HARMLESS: Mapping[str, str] = {
    **dict.fromkeys(("architectures", "transformers_version", "dtype"), "how it was saved"),
    **dict.fromkeys(("id2label", "label2id", "problem_type"), "of a classifier, refused by names"),
    **dict.fromkeys(("output_hidden_states", "return_dict"), "what a call of Python returns"),
    **dict.fromkeys(("use_cache", "pretraining_tp", "chunk_size_feed_forward"), "same results"),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), "of tokenizers and texts"),
    **dict.fromkeys(
        ("attention_dropout", "resid_pdrop", "embd_pdrop", "hidden_dropout_prob",
         "attention_probs_dropout_prob", "classifier_dropout", "initializer_range",
         "router_jitter_noise", "router_aux_loss_coef", "output_router_logits"),
        "of training",
    ),
}  # fmt: skip
"""Keys that change nothing in inference, of any family, and why."""

OWN_HARMLESS: Mapping[str, Mapping[str, str]] = {
    "bert": {"tie_word_embeddings": "of the heads of pre-training"},
    "gemma4": dict.fromkeys(
        ("use_double_wide_mlp", "vocab_size_per_layer_input"),
        "of layers that share keys, and of embeddings by layer, which are refused",
    ),
    "granite-4": dict.fromkeys(
        ("intermediate_size", "num_experts_per_tok", "time_step_limit",
         *(f"mamba_{it}" for it in ("n_heads", "n_groups", "d_state", "d_head", "d_conv", "expand",
                                    "chunk_size", "conv_bias", "proj_bias"))),
        "of experts and recurrent layers, which are refused",
    ),
}  # fmt: skip

_WINDOW: Keys = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
_CASES = {case.family: case for case in reversed(CASES)}
_CASES["phi3"] = next(case for case in CASES if case.name == "phi3-longrope")
CONFIGURATIONS: Mapping[str, tuple[str, Keys]] = {
    **{name: (case.kind, dict(case.changes)) for name, case in _CASES.items()},
    "bert": ("Bert", {}),
    "granite-4": ("GraniteMoeHybrid", {
        "layer_types": ["full_attention"] * 3, "num_local_experts": 0, "num_experts_per_tok": 0,
        "mamba_n_heads": 8, "position_embedding_type": "rope",
    }),
}  # fmt: skip
"""By family: the configuration's class, and changes of `TINY`."""
LIVE: Mapping[str, Keys] = {
    **{name: {**_WINDOW, "layer_types": None} for name in ("qwen2", "qwen3", "qwen2_moe")},
    **{name: {"layer_types": None} for name in ("gemma2", "gemma3", "gemma4")},
    "granite-4": {"time_step_limit": None},  # It is infinite, which JSON has not.
    "qwen3_moe": {"use_sliding_window": True, "sliding_window": 5},
    "smollm3": {
        "use_sliding_window": True, "sliding_window": 5, "layer_types": None,
        "no_rope_layers": None,
    },
    "zaya": {"layer_types": ["hybrid_sliding", "hybrid", "hybrid"], "sliding_window": 5},
}  # fmt: skip
"""What lets keys count that would be idle otherwise."""
OTHER: Keys = {
    "layer_types": ["other"], "mlp_only_layers": [1], "no_rope_layers": [0],
    "num_key_value_heads": 1, "rope_parameters": {"rope_type": "other"},
}  # fmt: skip
"""Values that differ, of what is neither a number nor a switch."""


def families(name: str) -> str:
    return name.partition("-")[0]


def files(name: str, folder: Path) -> tuple[type[Any], Keys]:
    """The class of transformers, and what it saves; the weights are two tensors, never read."""
    import transformers

    kind, changes = CONFIGURATIONS[name]
    kept = {**TINY, **changes}
    configuration = getattr(transformers, f"{kind}Config")
    saved = json.loads(configuration(**kept).to_json_string(use_diff=False))
    names = ["embeddings.word_embeddings"] if name == "bert" else ["model.norm"]
    names += [] if name == "bert" else ["model.embed_tokens"]
    tensors = {f"{it}.weight": ("F32", np.ones((1, 32), np.float32)) for it in names}
    write_file(folder / "model.safetensors", tensors)
    return configuration, saved | LIVE.get(name, {})


_KEY_HEADS = "num_key_value_heads"


def read(name: str, folder: Path, config: Keys) -> Any:
    """What the family makes of a configuration, by the door that everybody takes."""
    (folder / "config.json").write_text(json.dumps(config))
    family = get_family(families(name))
    source = open_source(SourceTable(path=folder), family.spread)
    model: Any = family.open_model(source, Cut((), max_tokens=16))
    return model.config


def tried(name: str, folder: Path, config: Keys) -> Any:
    try:
        return read(name, folder, config)
    except SourceError as refusal:
        return refusal


def changed(key: str, value: Any, kind: str) -> Any:
    if key in OTHER:
        return OTHER[key]
    if isinstance(value, bool) or (value is None and "bool" in kind):
        return not value
    if isinstance(value, (int, float)) or (value is None and ("int" in kind or "float" in kind)):
        return (value or 0) + 2
    return "other"


def harmless(name: str) -> set[str]:
    # RoPE that depends on the trained length, a key's only use, is in test_rope.
    length = {"max_position_embeddings"} if name not in ("bert", "phi3") else set()
    return {*HARMLESS, *OWN_HARMLESS.get(name, {}), *length}


def test_every_family_is_here() -> None:
    assert {families(name) for name in CONFIGURATIONS} == set(FAMILIES)


@pytest.mark.drawn
@pytest.mark.parametrize("name", CONFIGURATIONS)
class TestKeys:
    def test_another_value_is_read_or_refused(self, name: str, tmp_path: Path) -> None:
        configuration, saved = files(name, tmp_path)
        right, ignored = read(name, tmp_path, saved), []
        for field in fields(configuration):
            other = changed(field.name, saved.get(field.name), str(field.type))
            if tried(name, tmp_path, saved | {field.name: other}) == right:
                ignored.append(field.name)
        assert set(ignored) - harmless(name) == set()
        # The lists have nothing that counts.
        own = OWN_HARMLESS.get(name, {}).keys()
        assert own <= set(ignored)

    def test_null_is_no_default(self, name: str, tmp_path: Path) -> None:
        """Where transformers refuses it; null for false, and for as many key heads, says so."""
        configuration, saved = files(name, tmp_path)
        right, taken = read(name, tmp_path, saved), []
        for field in fields(configuration):
            value = saved.get(field.name)
            if "None" in str(field.type) or "Optional" in str(field.type) or value is None:
                continue
            found = tried(name, tmp_path, saved | {field.name: None})
            falsy = not value and found == right
            if not isinstance(found, SourceError) and not falsy and field.name != _KEY_HEADS:
                taken.append(field.name)
        assert set(taken) - harmless(name) == set()

    def test_no_key_is_transformers_default(self, name: str, tmp_path: Path) -> None:
        """A head that neither file nor key tells is the embedding's, for nothing else is there."""
        configuration, saved = files(name, tmp_path)
        for field in fields(configuration):
            if field.name in harmless(name) | {"tie_word_embeddings"} or field.name not in saved:
                continue
            without = {key: value for key, value in saved.items() if key != field.name}
            found = tried(name, tmp_path, without)
            if not isinstance(found, SourceError):
                default = configuration.from_dict(without).to_dict()[field.name]
                assert found == tried(name, tmp_path, without | {field.name: default}), field.name

    @pytest.mark.parametrize("key", ["is_causal", "is_encoder_decoder", "transformers_weights"])
    def test_keys_of_all_models(self, name: str, key: str, tmp_path: Path) -> None:
        """They are read of any configuration."""
        _, saved = files(name, tmp_path)
        plain = {"is_causal": name != "bert", "is_encoder_decoder": False}
        value = plain.get(key, "model.safetensors")
        right = read(name, tmp_path, saved)
        assert read(name, tmp_path, saved | {key: value}) == right
        other = "other.safetensors" if isinstance(value, str) else not value
        with pytest.raises(SourceError, match=f"{key} (is )?'?{other}"):
            read(name, tmp_path, saved | {key: other})


@pytest.mark.parametrize(
    ("name", "key"),
    [("llama", "rms_norm_eps"), ("gemma4", "rms_norm_eps"), ("bert", "layer_norm_eps"),
     ("zaya", "rms_norm_eps"), ("qwen3", "head_dim"), ("gemma2", "query_pre_attn_scalar")],
)  # fmt: skip
def test_null_is_named(name: str, key: str, tmp_path: Path) -> None:
    _, saved = files(name, tmp_path)
    with pytest.raises(SourceError, match=f"config.json has (none of .*, )?{key}( null)?"):
        read(name, tmp_path, saved | {key: None})


@pytest.mark.parametrize("key", ["rope_theta", "truncate"])
def test_null_in_a_table_is_named(key: str, tmp_path: Path) -> None:
    _, saved = files("llama", tmp_path)
    table = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 500.0, "beta_fast": None}
    assert read("llama", tmp_path, saved | {"rope_parameters": table}).rotaries
    with pytest.raises(SourceError, match=f"has rope_parameters.{key} null, which is no value"):
        read("llama", tmp_path, saved | {"rope_parameters": table | {key: None}})


def test_null_that_means_something(tmp_path: Path) -> None:
    _, saved = files("llama", tmp_path)
    config = read("llama", tmp_path, saved | {"head_dim": None, _KEY_HEADS: None})
    assert (config.head, config.kv_heads, config.heads) == (8, 4, 4)
