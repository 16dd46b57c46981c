"""Every key of a configuration, of every family that has it, read wrongly by the converted side.

A key has a row for each wrong value, in both directions where a file can have both; a shard is in a
row if its family has the key. What is not here is refused when a shard is opened, for the file has
no such tensor, or another shape: the sizes, and a bias, norm, expert or head that a file has not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from pytest_ane.models.families.decoder._forms import BlockWeights
from pytest_ane.models.families.gemma4._forms import RouterWeights as Gemma4Router
from pytest_ane.models.families.zaya._forms import MixtureWeights as ZayaMixture
from tests.battery.fault import Fault, Put, edit, faults, unique
from tests.battery.reading import (
    angles,
    based,
    converted,
    doubled,
    embedded,
    exchanged,
    faster,
    halved,
    heads,
    layers,
    mixture,
    named,
    parts,
    read,
    rectified,
    set_to,
    tiled,
    unscaled,
    weights,
    windows,
)
from tests.battery.tiny import PREFIX
from tests.models.families.rotary import plain_rotary


def _of(*cases: str, shard: str = "L01") -> tuple[str, ...]:
    """Shards of tiny checkpoints, by names of the tests' cases; another shard after a colon."""
    return tuple(f"{PREFIX}{case}" if ":" in case else f"{PREFIX}{case}:{shard}" for case in cases)


def _rows(
    kind: str, shards: tuple[str, ...], *rows: tuple[str, str, Put], equivalent: str = ""
) -> list[Fault]:
    """Faults of one key: name, what is read wrongly, and how; the reason where none has effect."""
    same = dict.fromkeys(shards, equivalent) if equivalent else {}
    fields = {"place": "reading", "equivalent": same}
    return faults(
        f"key: {kind}", shards, *((f"key-{n}", what, put, fields) for n, what, put in rows)
    )


def _models(*cases: str) -> tuple[str, ...]:
    """Whole models, for what their hosts embed."""
    return tuple(f"{PREFIX}{case}" for case in cases)


_SMOLLM2 = ("smollm2:L01",)
_SILU = (
    "llama", "mistral-window", "phi3-window", "qwen2", "qwen3", "smollm3", "granite",
)  # fmt: skip
_MIXED = ("mixtral", "qwen3-moe", "qwen2-moe")
_GEMMAS = ("gemma2-caps", "gemma3")
_GEMMA4 = ("gemma4:L00.attn", "gemma4:L01.attn")
_DECODERS = (*_SILU, *_MIXED, *_GEMMAS)
"""One of each of the twelve."""
_FEW = ("llama", "qwen3", "gemma2-caps", "mixtral")
"""Of what no configuration of theirs can say, and the decoder core computes for all alike."""
_TURNED = _of(*_DECODERS, *_GEMMA4, "zaya-window:L00", "zaya-angles:L02")
_NORM_OFFSETS = _of(*_DECODERS, "gemma4:L00.attn")
_BIASED = _of(
    "llama-tied-mqa-biases", "qwen2", "qwen2-moe", "qwen3-yarn-biases", "smollm3-window-biases",
    "granite-biases-tied",
)  # fmt: skip
_WINDOWED = _of(
    "mistral-window", "mixtral-window", "phi3-window", "qwen2-window-tied", "qwen3-yarn-biases",
    "qwen2-moe-window-steps:L02", "smollm3-window-biases:L00", "gemma2-caps:L00", "gemma3",
    "gemma4:L00.attn", "zaya-window:L00",
)  # fmt: skip
_UNWINDOWED = _of(
    "llama", "mistral-no-window", "mixtral", "phi3-longrope", "qwen2", "qwen3", "qwen3-moe",
    "qwen2-moe", "smollm3", "granite", "gemma2-caps", "gemma3:L05", "gemma4:L01.attn", "zaya:L02",
)  # fmt: skip
_PATTERNED = _of(
    "qwen2-window-tied:L00", "zaya-window:L00", "qwen2-moe-window-steps:L02", "qwen3-yarn-biases",
    "smollm3-window-biases:L00", "gemma2-caps:L00", "gemma3:L04", "gemma4:L00.attn",
)  # fmt: skip
_GROUPED = _of(*_DECODERS, "gemma4:L00.attn", "zaya:L02")
_SPLIT = _of(
    "llama", "mistral-window", "mixtral", "phi3-window", "qwen2", "qwen2-moe", "smollm3",
    "granite", "gemma2-caps",
)  # fmt: skip
"""Without norms of heads, which have their size, a file takes any number that fits the rows."""
_EXPERTS = _of(*_MIXED, "gemma4:L00.p0", "gemma4:L00.p7", "zaya:L03")
_HEAD = _of(*_DECODERS, "gemma4", "zaya", shard="head.0")
_UNTIED = _of(
    "llama", "mistral-window", "mixtral", "phi3-window", "qwen2", "qwen3", "qwen3-moe", "qwen2-moe",
    "smollm3-window-biases", "granite", "gemma4-untied", "zaya-untied-mqa-bf16", shard="head.0",
)  # fmt: skip
_CAPPED = _of("gemma2-caps", "gemma3-linear-bf16", "gemma4-values-cap-bf16", shard="head.0")


def _reversed_experts(c: Any, w: Any) -> Any:
    """A router's rows stand for the experts in the opposite order; ZAYA's last is none of them."""
    if isinstance(w, Gemma4Router):
        return replace(w, projection=w.projection.flip(0), expert_scale=w.expert_scale.flip(0))
    if isinstance(w, ZayaMixture):
        order = [*range(c.mixture.experts - 1, -1, -1), c.mixture.experts]
        r = w.router
        return replace(w, router=replace(r, last=r.last[order], balancing=r.balancing[order]))
    return replace(w, router=w.router.flip(0)) if isinstance(w, BlockWeights) else w


def _shifted(c: Any) -> dict[str, Any]:
    """Every layer has the window of the next; ZAYA's attention has every other layer."""
    step = 2 if c.family == "zaya" else 1
    after = [*c.layers[step:], *c.layers[:step]]
    return {
        "layers": tuple(
            replace(own, window=other.window) for own, other in zip(c.layers, after, strict=True)
        )
    }


def _swapped(layer: Any) -> Any:
    return replace(layer, rotary=1 - layer.rotary)


def _neighbours(right: Any, name: str, index: int) -> Any:
    read = getattr(right, name)
    return read(index) if name == "head" else read(max(index - 1, 0))


def _dead(c: Any, w: Any) -> Any:
    return replace(w, down=w.down.scaled(0)) if isinstance(w, BlockWeights) else w


def _unnormed(c: Any, w: Any) -> Any:
    return (torch.ones_like(w[0]), w[1]) if isinstance(w, tuple) else w


_SAME_GELU = "the two differ by at most 0.0005, less than fp16 rounds what they are given"
_ALL_OF = "experts.0|experts.1|experts.2|experts.3"
ROPE = [
    *_rows("RoPE base", _TURNED,
        ("theta-up", "the base is ten times what it is", based(10.0)),
        ("theta-down", "the base is a tenth of what it is", based(0.1))),
    *_rows("RoPE base", _SMOLLM2,
        ("theta-1000", "the base is 1,000", unscaled(1000.0))),
    *_rows("RoPE scaling", _of("llama-llama3", "llama-linear", "llama-yarn", "qwen3-yarn-biases"),
        ("scaling-dropped", "scaled angles are taken as plain", unscaled(500.0))),
    *_rows("RoPE scaling", _of("phi3-longrope"),
        ("longrope-dropped", "LongRoPE's are taken as plain", unscaled(500.0))),
    *_rows("RoPE scaling", _of("gemma3-linear-bf16:L00"),
        ("scaling-gemma3", "the far angles are taken as plain", read(
            lambda c: {"rotaries": (plain_rotary(12, 900.0), c.rotaries[1])}))),
    *_rows("RoPE scaling", _of("gemma4-values-cap-bf16:L01.attn"),
        ("scaling-gemma4", "the factor of proportional RoPE is not read", faster(2.0))),
    *_rows("RoPE scaling", _of("zaya-angles:L02"),
        ("scaling-zaya", "scaled angles are taken as plain", unscaled(300.0))),
    *_rows("RoPE scaling", _TURNED,
        ("scaling-added", "plain angles are taken as scaled by 4", faster(0.25))),
    *_rows("RoPE scaling", _of("llama-yarn", "llama-yarn-options", "phi3-longrope"),
        ("attention-factor-dropped", "the factor of cosines and sines is not read", angles(
            lambda r: replace(r, factor=1.0)))),
    *_rows("RoPE scaling", _of(*_FEW),
        ("attention-factor-added", "cosines and sines are 1.2 times as large", angles(
            lambda r: replace(r, factor=1.2)))),
    *_rows("partial RoPE", _of("llama", "phi3-window", "qwen2", "gemma2-caps", "mixtral"),
        ("partial-added", "half of a head turns, and all does", angles(halved))),
    *_rows("partial RoPE", _of("phi3-longrope"),
        ("partial-dropped", "all of a head turns, and half does", angles(
            lambda r: plain_rotary(2 * r.channels, 500.0)))),
    *_rows("partial RoPE", _of("zaya:L02"),
        ("partial-zaya", "all of a head turns, and half does", angles(doubled)),
        ("partial-zaya-quarter", "a quarter of a head turns, and half does", angles(halved))),
    *_rows("partial RoPE", _of("gemma4-values-cap-bf16:L01.attn"),
        ("partial-gemma4", "all of a global head turns, and half does", read(
            lambda c: {"rotaries": (c.rotaries[0], plain_rotary(16, 900.0))}))),
    *_rows("layers that turn", _of(*_FEW, "granite"),
        ("unturned", "no layer turns", layers(lambda layer: replace(layer, rotary=None)))),
    *_rows("layers that turn", _of("smollm3:L03", "smollm3-window-biases:L00"),
        ("turned", "layers turn that do not", layers(lambda layer: replace(layer, rotary=0)))),
    *_rows("layers that turn", _of("gemma3:L01", "gemma3:L05"),
        ("rotary-exchanged", "near layers have the far angles, and far ones the near", layers(
            _swapped))),
]  # fmt: skip

ATTENTION = [
    *_rows("soft caps", _of("gemma2-caps"),
        ("score-cap-dropped", "scores have no cap", set_to(score_cap=None)),
        ("score-cap-doubled", "the cap of scores is twice as large", set_to(score_cap=4.0))),
    *_rows("soft caps", _of("llama", "qwen3", "mixtral", "gemma3", "gemma4:L00.attn"),
        ("score-cap-added", "scores have a cap", set_to(score_cap=1.0))),
    *_rows("soft caps", _CAPPED,
        ("logit-cap-dropped", "logits have no cap", set_to(logit_cap=None)),
        ("logit-cap-doubled", "the cap of logits is twice as large", set_to(logit_cap=6.0))),
    *_rows("soft caps", _of("llama", "granite", "gemma3", "gemma4", "zaya", shard="head.0"),
        ("logit-cap-added", "logits have a cap", set_to(logit_cap=1.0))),
    *_rows("window", _WINDOWED,
        ("window-dropped", "every position is seen", windows(lambda w: None)),
        ("window-halved", "the window is half as wide", windows(lambda w: w and w // 2)),
        ("window-wider", "the window is one wider", windows(lambda w: w and w + 1))),
    *_rows("window", _UNWINDOWED,
        ("window-added", "a window where there is none", windows(lambda w: w or 4))),
    *_rows("window pattern", _PATTERNED,
        ("window-pattern", "each layer has the window of the next", read(_shifted))),
    *_rows("query scale", _of(*_DECODERS, *_GEMMA4),
        ("scale-up", "scores are divided by the root of half a head", read(
            lambda c: {"scale": c.scale * 2**0.5})),
        ("scale-down", "scores are divided by the root of two heads", read(
            lambda c: {"scale": c.scale * 0.5**0.5}))),
    *_rows("head count", _GROUPED,
        ("groups", "query heads take the keys in turn, not in groups", parts(tiled)),
    ),
    *_rows("head count", _SPLIT,
        ("heads-up", "twice as many heads of half the size", heads(2)),
        ("heads-down", "half as many heads of twice the size", heads(-2))),
    *_rows("head norms", _of("qwen3", "qwen3-moe", "gemma3", *_GEMMA4),
        ("head-norms-dropped", "queries and keys are not normed", set_to(head_norms=False))),
    *_rows("head norms", _of(*_GEMMA4),
        ("value-norms-dropped", "values are not normed", set_to(value_norms=False))),
    *_rows("head norms", _of(*_FEW),
        ("value-norms-added", "values are normed", set_to(value_norms=True))),
    *_rows("head norms", _of("gemma4-values-cap-bf16:L01.attn"),
        ("values-are-keys", "values are the keys, and have weights of their own", layers(
            lambda layer: replace(layer, shared=True)))),
    *_rows("biases", _BIASED,
        ("biases-dropped", "no projection has its bias", set_to(biases=()))),
    *_rows("biases", _of("llama-tied-mqa-biases", "smollm3-window-biases", "granite-biases-tied",
                               "qwen3-yarn-biases"),
        ("biases-qkv", "of biases only those of queries, keys and values", set_to(
            biases=("q", "k", "v")))),
    *_rows("biases", _of("qwen2", "qwen2-moe"),
        ("biases-qk", "values have no bias", set_to(biases=("q", "k")))),
]  # fmt: skip

NETWORK = [
    *_rows("activation", _of(*_SILU, *_MIXED),
        ("gelu", "GELU in place of SiLU", set_to(activation="gelu_pytorch_tanh"))),
    *_rows("activation", _of(*_GEMMAS, "gemma4:L00.p0", "gemma4:L00.p7"),
        ("silu", "SiLU in place of GELU", set_to(activation="silu"))),
    *_rows("activation", _of(*_DECODERS, "gemma4:L00.p0", "gemma4:L00.p7"),
        ("relu", "ReLU in place of SiLU or GELU", converted(rectified))),
    *_rows("activation", _of("zaya:L03"),
        ("relu-zaya", "ReLU in place of SiLU in every expert", converted(edit(
            "forward", "F.silu(gate)", "F.relu(gate)", _ALL_OF))),
        ("gelu-zaya", "GELU in place of SiLU in every expert", converted(edit(
            "forward", "F.silu(gate)", "F.gelu(gate)", _ALL_OF)))),
    *_rows("activation", _of("bert-plain", "bert-minilm:L00"),
        ("bert-relu", "ReLU in place of GELU", set_to(activation="relu"))),
    *_rows("activation", _of("bert-no-types-relu"),
        ("bert-gelu", "GELU in place of ReLU", set_to(activation="erf"))),
    *_rows("activation", _of("bert-plain"),
        ("bert-tanh", "GELU by tanh in place of the error function", set_to(activation="tanh")),
        equivalent=_SAME_GELU),
    *_rows("activation", _of("bert-pre-training-tanh"),
        ("bert-erf", "GELU by the error function in place of tanh", set_to(activation="erf")),
        equivalent=_SAME_GELU),
    *_rows("norm offset", _NORM_OFFSETS,
        ("norm-offset", "norms compute x (1 + w) for x w, or x w for x (1 + w)", named(
            lambda n: {"norm_offset": 1.0 - n.norm_offset}))),
    *_rows("norm offset", _HEAD,
        ("norm-offset-head", "the last norm likewise", named(
            lambda n: {"norm_offset": 1.0 - n.norm_offset}))),
    *_rows("epsilon", _of(*_DECODERS, "gemma4:L00.attn", "zaya:L02", "bert-plain") + _SMOLLM2,
        ("epsilon", "epsilon is 0.5", set_to(epsilon=0.5))),
    *_rows("norms around", _of(*_GEMMAS, "gemma4:L00.attn"),
        ("post-norms-dropped", "what halves give is not normed", set_to(post_norms=False))),
    *_rows("multipliers", _of("granite", "granite-biases-tied"),
        ("residual-dropped", "what halves give is added whole", set_to(residual_scale=1.0))),
    *_rows("multipliers", _of(*_FEW),
        ("residual-added", "of what halves give 0.22 is added", set_to(residual_scale=0.22))),
    *_rows("multipliers", _of("granite:head.0"),
        ("logits-dropped", "logits are not divided", set_to(logit_scale=1.0))),
    *_rows("multipliers", _of(*_FEW, shard="head.0"),
        ("logits-added", "logits are divided by 8", set_to(logit_scale=0.125))),
    *_rows("top-k normalisation", _of("mixtral", "qwen3-moe-normalized-steps",
                                      "qwen2-moe-window-steps", "gemma4:L00.p0"),
        ("shares-of-all", "shares of the chosen do not sum to 1", mixture(normalized=False))),
    *_rows("top-k normalisation", _of("qwen3-moe", "qwen2-moe"),
        ("shares-of-chosen", "shares of the chosen sum to 1", mixture(normalized=True))),
    *_rows("experts", _of(*_MIXED, "gemma4:L00.p0", "gemma4:L00.p7"),
        ("top-more", "one more expert is chosen", read(
            lambda c: {"mixture": replace(c.mixture, top=c.mixture.top + 1)})),
        ("top-fewer", "one expert fewer is chosen", read(
            lambda c: {"mixture": replace(c.mixture, top=c.mixture.top - 1)}))),
    *_rows("experts", _EXPERTS,
        ("experts-reversed", "experts are numbered from the last on", parts(_reversed_experts))),
    *_rows("experts", _of("qwen2-moe"),
        ("shared-dropped", "the shared expert is left out", mixture(shared=None))),
]  # fmt: skip

TENSORS = [
    *_rows("tied head", _UNTIED,
        ("tied", "the head is the embedding's, and has rows of its own", set_to(tied=True))),
    *_rows("order of rows", _of(*_FEW, "granite") + _SMOLLM2,
        ("paired", "rows of queries and keys are in pairs, or not, as the file has them not",
         named(lambda n: {"paired": not n.paired}))),
    *_rows("order of rows", _of("phi3-window"),
        ("fused-gate-up", "of the fused two the second is the gate", named(
            lambda n: {"fused": (n.fused[0], n.fused[1][::-1])})),
        ("fused-keys-values", "of the fused three values come before keys", named(
            lambda n: {"fused": (("q", "v", "k"), n.fused[1])}))),
    *_rows("names", _of("llama", "qwen3", "gemma2-caps") + _SMOLLM2,
        ("gate-up", "gate and up are exchanged", exchanged("gate", "up"))),
    *_rows("names", _of(*_MIXED),
        ("expert-gate-up", "gates and ups of experts are exchanged", exchanged(
            "expert_gate", "expert_up"))),
    *_rows("names", _of(*_FEW) + _SMOLLM2,
        ("keys-values", "keys and values are exchanged", exchanged("k", "v"))),
    *_rows("names", _of(*_FEW, "gemma4:L00.p7") + _SMOLLM2,
        ("norms-exchanged", "the norms before both halves are exchanged", exchanged(
            "attention_norm", "ffn_norm"))),
    *_rows("names", _of(*_GEMMAS, "gemma4:L00.attn"),
        ("post-norm", "the norm behind attention is the one behind the network", exchanged(
            "attention_post_norm", "ffn_post_norm"))),
    *_rows("names", _of(*_FEW) + _SMOLLM2,
        ("neighbour", "the neighbour's weights", weights(_neighbours))),
    *_rows("names", _SMOLLM2,
        ("dead", "the network adds nothing", parts(_dead))),
    *_rows("names", (*_of(*_FEW, "gemma4", "zaya", shard="head.0"), "smollm2:head.1"),
        ("final-norm", "the last norm has no weight", parts(_unnormed))),
]  # fmt: skip

BERT = [
    *_rows("head count", _of("bert-plain"),
        ("bert-heads-up", "twice as many heads of half the size", set_to(heads=8)),
        ("bert-heads-down", "half as many heads of twice the size", set_to(heads=2))),
    *_rows("pooling", _of("bert-minilm:pooling"),
        ("bert-first", "the first position in place of the mean", set_to(pooling="cls"))),
    *_rows("pooling", _of("bert-bge:pooling"),
        ("bert-mean", "the mean in place of the first position", set_to(pooling="mean"))),
    *_rows("pooling", _of("bert-minilm:pooling", "bert-bge:pooling"),
        ("bert-unit-dropped", "the embedding's norm is not 1", set_to(normalized=False))),
    *_rows("pooling", _of("bert-e5-not-normalized:pooling"),
        ("bert-unit-added", "the embedding's norm is 1", set_to(normalized=True))),
]  # fmt: skip


def _embedding(name: str, what: str, models: tuple[str, ...], put: Put, kind: str) -> Fault:
    return Fault(
        f"key-{name}", f"key: {kind}", what, put, models, "reading", "behaviour", "embedding"
    )


EMBEDDING = [
    _embedding("embedding-dropped", "rows are not multiplied",
               _models("gemma2-caps", "gemma3", "gemma4", "granite"),
               set_to(embedding_scale=1.0), "embedding scale"),
    _embedding("embedding-added", "rows are multiplied by the root of the width",
               _models(*(n for n in _DECODERS if not n.startswith(("gemma", "granite")))),
               set_to(embedding_scale=32**0.5), "embedding scale"),
    _embedding("embedding-zaya", "rows are as the table has them", _models("zaya"),
               embedded(lambda model, ids: model.weights._rows("embedding", ids)),
               "embedding scale"),
    _embedding("bert-types", "rows lack that of the first type",
               _models("bert-minilm"), set_to(types=0), "embedding scale"),
    _embedding("next-token", "every token is read as the next one",
               ("smollm2", *_models(*_DECODERS, "gemma4", "zaya", "bert-minilm")),
               embedded(lambda model, ids: model.embed([i + 1 for i in ids])), "tokens"),
]  # fmt: skip


FAULTS = unique([*ROPE, *ATTENTION, *NETWORK, *TENSORS, *BERT, *EMBEDDING])
