"""Configurations and tensors of files, as transformers reads them.

A checkpoint's names go through transformers' own conversion mapping. Synthetic weights have the
names and shapes that transformers would save.

GGUF files go through its tables of keys and names, and its changes of tensors. Its own load expands
a whole file, at minutes and gigabytes; here a layer's tensors are expanded, by the `gguf` library.
What its tables leave out is added by llama.cpp's names for it (`gguf-py/gguf/constants.py`): scaled
angles, heads of any size, windows, experts, Granite's multipliers, and the families that it does
not read.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pytest_ane.mlprogram.errors import AneError, SourceError
from pytest_ane.models.sources import Source
from pytest_ane.models.sources.tokenizer import quiet


class Tensors:
    """A file's tensors by a model's parameters; `SourceError` when one is read that it lacks."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def meet(self, model: Any) -> None:
        """Look at a whole model; change what no configuration says, such as angles of a file."""

    def fill(self, model: Any, module: nn.Module, *, deep: bool = True) -> None:
        """Read the tensors that a module still lacks, and unless not `deep` its parts."""
        for home in lacking(model, module, deep=deep):
            path, _, kind = home.rpartition(".")
            owner = model.get_submodule(path)
            before = getattr(owner, kind)
            values = self.read(home, tuple(before.shape))
            setattr(owner, kind, parameter(values) if isinstance(before, nn.Parameter) else values)

    def fill_experts(self, model: Any, experts: Any) -> None:
        """Have a layer's experts be read one by one, whenever one is asked for."""
        for home in lacking(model, experts):
            kind = home.rpartition(".")[2]
            name, shape = self.bank(model, home), tuple(getattr(experts, kind).shape)
            delattr(experts, kind)
            setattr(experts, kind, Bank(partial(self.expert, name, shape)))

    def rows(self, model: Any, table: Any, index: Sequence[int]) -> Tensor:
        """Rows of the embedding or of the head, which may be the same table."""
        height, width = table.weight.shape
        return torch.from_numpy(self.source.rows(self.table(model, table), index, width, height))

    def read(self, home: str, shape: tuple[int, ...]) -> Tensor:
        raise NotImplementedError

    def table(self, model: Any, table: Any) -> str:
        raise NotImplementedError

    def bank(self, model: Any, home: str) -> str:
        raise NotImplementedError

    def expert(self, name: str, shape: tuple[int, ...], expert: int) -> Tensor:
        """One slice of a stored tensor `[E, rows, columns]`."""
        count, height, width = shape
        index = range(expert * height, (expert + 1) * height)
        return torch.from_numpy(self.source.rows(name, index, width, count * height))


def made_from(table: Mapping[str, Any], source: Source, model: Any = None) -> Any:
    """The configuration that transformers makes of a table."""
    from transformers import CONFIG_MAPPING

    table = table if "model_type" in table else table.get("text_config", table)
    kind = table.get("model_type")
    if model is None and kind not in CONFIG_MAPPING:
        raise SourceError(
            f"{source.label}: transformers has no model of type {kind!r}, so there is no reference."
        )
    of = CONFIG_MAPPING[kind] if model is None else model.config_class
    # What a model returns is asked for by name here.
    told = {key: value for key, value in table.items() if key != "return_dict"}
    with refusing(f"{source.label}: transformers does not take its configuration"), quiet():
        config = of.from_dict(told)
        # It matters in training alone, and must be in the vocabulary.
        config.pad_token_id = config.get_text_config().pad_token_id = None
        return config


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Let whatever transformers raises be a `SourceError` that begins so."""
    try:
        yield
    except (AneError, MemoryError):
        raise
    except Exception as error:
        why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise SourceError(
            f"{what} ({why:.300}); correct its configuration, or name another reference."
        ) from error


def class_of(path: str) -> Any:
    """What `transformers.LlamaForCausalLM` names; `SourceError` for what is no model's class."""
    try:
        found = resolve_name(path)
        _ = found.config_class
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise SourceError(
            f"The reference {path!r} is no class of a transformers model ({error}); name one as "
            "'transformers.LlamaForCausalLM'."
        ) from error
    return found


class PublishedTensors(Tensors):
    """A checkpoint's tensors, or made-up ones; `root` begins a text's among other models."""

    def __init__(self, source: Source, root: str) -> None:
        super().__init__(source)
        self._root, self._text = root, root
        self._homes: dict[str, str] = {}
        self._alone = False

    def fill(self, model: Any, module: nn.Module, *, deep: bool = True) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import convert_and_load_state_dict_in_model
        from transformers.modeling_utils import LoadStateDictConfig

        if not (wanted := set(lacking(model, module, deep=deep))):
            return
        read = {
            self._known(name): torch.from_numpy(self.source.tensor(name, shape))
            for name, shape in self._stored(model, wanted)
        }
        plan = LoadStateDictConfig(
            dtype=torch.float32, weight_mapping=get_model_conversion_mapping(model)
        )
        with quiet():
            found, _ = convert_and_load_state_dict_in_model(model, read, plan)
        if missing := wanted & found.missing_keys:
            raise lacks(self.source, missing)

    def table(self, model: Any, table: Any) -> str:
        # A head that a file has is its own; of synthetic weights the configuration tells.
        tied = self.source.synthetic and model.config.get_text_config().tie_word_embeddings
        shared = lacking(model, model.get_input_embeddings())
        return self._first(model, shared if tied else [*lacking(model, table), *shared])

    def bank(self, model: Any, home: str) -> str:
        return self._first(model, [home])

    def _first(self, model: Any, wanted: Sequence[str]) -> str:
        for home in wanted:
            for name, _ in self._stored(model, {home}):
                return name
        raise lacks(self.source, wanted)

    def meet(self, model: Any) -> None:
        """Find the parameter of each tensor, by what a checkpoint of the model calls it."""
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import (
            WeightConverter,
            WeightRenaming,
            rename_source_key,
        )

        if self._homes:
            return
        state = model.state_dict()
        # A text's model of its own has no such root.
        if not any(name.startswith(self._root) for name in state):
            self._text = "model."
        self._alone = not any("language_model." in name for name in state)
        mapping = get_model_conversion_mapping(model)
        renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
        converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
        rules = renamings, converters, model.base_model_prefix, state
        self._homes = {n: rename_source_key(self._known(n), *rules)[0] for n in self.source.names}

    def _known(self, name: str) -> str:
        """A tensor as this model calls it; older savers put the text's below all else."""
        name = name.replace(self._root, self._text, 1)
        return name.removeprefix("language_model.") if self._alone else name

    def _stored(self, model: Any, wanted: Collection[str]) -> Iterator[tuple[str, tuple[int, ...]]]:
        if self.source.synthetic:
            from transformers.core_model_loading import revert_weight_conversion

            state = {name: value for name, value in model.state_dict().items() if name in wanted}
            for name, value in revert_weight_conversion(model, state).items():
                yield name.replace(self._text, self._root, 1), tuple(value.shape)
            return
        for name, home in self._homes.items():
            if home in wanted:
                yield name, self.source.shape(name)


def lacking(model: Any, module: nn.Module, *, deep: bool = True) -> list[str]:
    """Names within the model of a module's tensors that are not there yet."""
    path = next(path for path, each in model.named_modules() if each is module)
    return [
        f"{path}.{name}"
        for name, value in module.state_dict().items()
        if value.is_meta and (deep or "." not in name)
    ]


class Bank:
    """A tensor `[E, ...]` with something for each expert, read when it is asked for."""

    def __init__(self, read: Callable[[int], Tensor]) -> None:
        self._read = read

    def __getitem__(self, expert: Any) -> Tensor:
        return self._read(int(expert))


def parameter(values: Any) -> nn.Parameter:
    return nn.Parameter(torch.as_tensor(values), requires_grad=False)


def lacks(source: Source, missing: Collection[str]) -> SourceError:
    return SourceError(
        f"{source.label}: lacks what transformers' {min(missing)!r} is made of ({len(missing)} "
        "such in all); fetch the files again."
    )


_KINDS: Mapping[str, str] = {
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
}
"""transformers' names of architectures that llama.cpp calls otherwise."""
_KEYS: Mapping[str, str] = {
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "attention.scale": "attention_multiplier",
    "logit_scale": "logits_scaling",
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "rope.freq_base": "rope_theta",
}
"""What transformers' tables leave out."""
_GEMMA4_KEYS: Mapping[str, str] = {
    "attention.key_length": "global_head_dim",
    "attention.key_length_swa": "head_dim",
    "expert_used_count": "top_k_experts",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
    "attention.shared_kv_layers": "num_kv_shared_layers",
}
_ROPE: Mapping[str, str] = {
    "rope.scaling.type": "rope_type",
    "rope.scaling.factor": "factor",
    "rope.scale_linear": "factor",
    "rope.scaling.attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
}
_THETA = 10_000.0
"""RoPE's base where a file has none (`llama-model.cpp`)."""
_LARGEST_GEMMAS = (46, 62)
"""Layers of Gemma 2 and 3 27B, whose scores llama.cpp divides by an even share of the width."""
_TYPES = "token_types.weight"
_SLIDING = {True: "sliding_attention", False: "full_attention"}


def table_of(source: Source) -> dict[str, Any]:
    """A file's metadata as transformers' configuration has it."""
    from transformers.integrations.ggml import GGUF_CONFIG_DEFAULTS_MAPPING, GGUF_CONFIG_MAPPING

    name = source.value("general.architecture")
    told = {
        key.removeprefix(f"{name}."): source.value(key)
        for key in source.keys
        if key.startswith(f"{name}.")
    }
    kind = _KINDS.get(name, name)
    if name == "llama" and told.get("expert_count"):
        kind = "mixtral"
    known = GGUF_CONFIG_MAPPING.get(kind.removesuffix("_text"), GGUF_CONFIG_MAPPING["llama"])
    keys = {**known, **_KEYS, **(_GEMMA4_KEYS if name == "gemma4" else {})}
    table: dict[str, Any] = {
        new: told[key] for key, new in keys.items() if new and key in told and "rope" not in key
    }
    table |= GGUF_CONFIG_DEFAULTS_MAPPING.get(kind, {})
    table |= {"model_type": kind, "pad_token_id": None}
    table["tie_word_embeddings"] = "output.weight" not in source.names
    if "vocab_size" not in table:
        table["vocab_size"] = len(source.value("tokenizer.ggml.tokens"))
    if kind in ("mixtral", "granite"):
        table["num_local_experts"] = table.pop("num_experts", 0)
    biased = "blk.0.attn_q.bias" in source.names
    table |= {"attention_bias": biased, "qkv_bias": biased}
    table["mlp_bias"] = "blk.0.ffn_gate.bias" in source.names
    table["sliding_window"] = table.get("sliding_window") or None
    head = table.get("head_dim") or table["hidden_size"] // table["num_attention_heads"]
    table["rope_parameters"] = _rope(source, told, head)
    special = {"gemma2": _gemma, "gemma3": _gemma3, "gemma4": _gemma4, "bert": _bert}
    if name in special:
        special[name](table, told, source, head)
    return table


def _rope(source: Source, told: Mapping[str, Any], head: int) -> dict[str, Any]:
    rope = {new: told[key] for key, new in _ROPE.items() if told.get(key)}
    if rope.get("rope_type", "linear") == "linear":
        rope["rope_type"] = "linear" if "factor" in rope else "default"
    rope["rope_theta"] = told.get("rope.freq_base", _THETA)
    if (turned := told.get("rope.dimension_count", head)) != head:
        rope["partial_rotary_factor"] = turned / head
    for length in ("short", "long"):
        if (name := f"rope_factors_{length}.weight") in source.names:
            factors = source.tensor(name, source.shape(name))
            rope |= {"rope_type": "longrope", f"{length}_factor": factors.tolist()}
    if rope["rope_type"] == "longrope":
        rope.setdefault("attention_factor", 1.0)
    return rope


def _gemma(table: dict[str, Any], told: Mapping[str, Any], source: Source, head: int) -> None:
    even = table["hidden_size"] / table["num_attention_heads"]
    largest = table["num_hidden_layers"] in _LARGEST_GEMMAS
    table["query_pre_attn_scalar"] = even if largest else head
    table.setdefault("sliding_window", 4096)
    if table["sliding_window"] is None:
        del table["sliding_window"]


def _gemma3(table: dict[str, Any], told: Mapping[str, Any], source: Source, head: int) -> None:
    layers = table["num_hidden_layers"]
    pattern = told.get("attention.sliding_window_pattern", 6)
    if not isinstance(pattern, list):
        pattern = [bool((i + 1) % pattern) for i in range(layers)]
    windowed = table["sliding_window"] is not None
    _gemma(table, told, source, head)
    table["layer_types"] = [_SLIDING[bool(slides) and windowed] for slides in pattern]
    table["rope_parameters"] = _two_kinds(table["rope_parameters"], told)


def _gemma4(table: dict[str, Any], told: Mapping[str, Any], source: Source, head: int) -> None:
    slides = [bool(each) for each in told["attention.sliding_window_pattern"]]
    heads = table["num_key_value_heads"]
    of = dict(zip(slides, heads if isinstance(heads, list) else [heads] * len(slides), strict=True))
    far = next((i for i, near in enumerate(slides) if not near), None)
    table |= {
        "layer_types": [_SLIDING[near] for near in slides],
        "num_key_value_heads": of.get(True, of.get(False)),
        "num_global_key_value_heads": of.get(False, of.get(True)),
        "attention_k_eq_v": far is not None and f"blk.{far}.attn_v.weight" not in source.names,
        "enable_moe_block": True,
        "final_logit_softcapping": table.get("final_logit_softcapping", 30.0),
    }
    rope = _two_kinds({"rope_theta": told.get("rope.freq_base", _THETA)}, told)
    # Over all of a global head, whose pairs the file's divisors turn less, or not at all.
    rope["full_attention"] |= {"rope_type": "proportional", "partial_rotary_factor": 1.0}
    table["rope_parameters"] = rope


def _two_kinds(far: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    near = {"rope_type": "default", "rope_theta": told.get("rope.freq_base_swa", _THETA)}
    return {"sliding_attention": near, "full_attention": {"rope_type": "default", **far}}


def _bert(table: dict[str, Any], told: Mapping[str, Any], source: Source, head: int) -> None:
    # A DistilBERT, which has no types, is one whose types add nothing.
    table["type_vocab_size"] = source.shape(_TYPES)[0] if _TYPES in source.names else 1
    del table["rope_parameters"]


class GGUFTensors(Tensors):
    """A file's tensors by the parameters of transformers that they make up."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._architecture = source.value("general.architecture")
        self._names: dict[str, list[str]] = {}

    def meet(self, model: Any) -> None:
        from transformers.modeling_gguf_pytorch_utils import get_gguf_hf_weights_map

        if not self._names:
            self._process = _processor(self._architecture, model)
            # Without the model's parts, each of which it would look through again.
            names = SimpleNamespace(
                config=model.config.get_text_config(),
                state_dict=model.state_dict,
                named_children=tuple,
            )
            homes = get_gguf_hf_weights_map(names, self._process, self._architecture)
            homes |= _unlisted(model)
            self._homes = {name.removesuffix(".weight"): home for name, home in homes.items()}
            self._names = defaultdict(list)
            for name, home in self._homes.items():
                self._names[home].append(name)
        if (factors := "rope_freqs.weight") in self.source.names:
            divisors = torch.from_numpy(self.source.tensor(factors, self.source.shape(factors)))
            for name, buffer in model.named_buffers():
                far = "rotary_emb." in name and ".sliding" not in name
                if far and buffer.shape == divisors.shape:
                    buffer /= divisors

    def read(self, home: str, shape: tuple[int, ...]) -> Tensor:
        if home.endswith("token_type_embeddings.weight") and _TYPES not in self.source.names:
            return torch.zeros(shape)
        made: dict[str, Tensor] = {}
        for name in self._stored(home):
            given = self._process.process(
                self._read(name),
                name,
                tensor_key_mapping=self._homes,
                parsed_parameters={"tensors": made},
            )
            if given.name is not None:
                made[home] = torch.from_numpy(np.ascontiguousarray(given.weights))
        # Older converters leave axes of 1 out.
        return made[home].reshape(shape)

    def table(self, model: Any, table: Any) -> str:
        untied = table is not model.get_input_embeddings() and "output.weight" in self.source.names
        return "output.weight" if untied else "token_embd.weight"

    def bank(self, model: Any, home: str) -> str:
        (name,) = self._stored(home)
        return name

    def _stored(self, home: str) -> list[str]:
        known = {*self.source.names}
        names = [n if n.endswith((".bias", ".scale")) else f"{n}.weight" for n in self._names[home]]
        if not names or not {n if n in known else _fused(n)[0] for n in names} <= known:
            raise lacks(self.source, [home])
        return names

    def _read(self, name: str) -> Any:
        if name in self.source.names:
            return self.source.tensor(name, self.source.shape(name))
        whole, part = _fused(name)
        return np.split(self.source.tensor(whole, self.source.shape(whole)), 3)[part]


def _fused(name: str) -> tuple[str, int]:
    """The tensor of queries, keys and values that has one of them, and which third it is."""
    part = re.search(r"attn_([qkv])\.", name)
    return (name, 0) if part is None else (name.replace(part[0], "attn_qkv."), "qkv".index(part[1]))


def _unlisted(model: Any) -> dict[str, str]:
    """Of Gemma 4, whose factors the `gguf` library's table of names leaves out."""
    own = {
        "router.scale": "ffn_gate_inp.scale",
        "router.per_expert_scale": "ffn_down_exps.scale",
        "layer_scalar": "layer_output_scale",
    }
    return {
        re.sub(r"model\.layers\.(\d+)\..*", rf"blk.\1.{name}", home): home
        for home in model.state_dict()
        for part, name in own.items()
        if home.endswith(f".{part}")
    }


def _processor(architecture: str, model: Any) -> Any:
    """Transformers' changes of a file's tensors, of what llama.cpp's converter changes alike."""
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

    pairs, experts = TENSOR_PROCESSORS["llama"], TENSOR_PROCESSORS["qwen2moe"]

    class Mixtral(experts):  # type: ignore[misc, valid-type]
        def process(self, weights: Any, name: str, **named: Any) -> Any:
            weights = pairs(self.config).process(weights, name).weights
            return super().process(weights, name, **named)

    of = {"smollm3": pairs, "granite": pairs, **TENSOR_PROCESSORS}
    config = model.config.get_text_config()
    kind = Mixtral if config.model_type == "mixtral" else of.get(architecture, TensorProcessor)
    return kind(config.to_dict())
