"""Faults of ZAYA1 and Gemma 4 shards in small configurations of the families."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.battery.fault import Fault, Put, both, edit, unique, weight

_Z_ATTENTION, _Z_MIXTURE = ("zaya:L02",), ("zaya:L01",)
_PUBLISHED = ("zaya1:L03",)
_ONE_CHOSEN = "torch.where(self.chosen(shares + self.balancing), shares, self.zero)"
_SLIDING, _GLOBAL = ("gemma4:L00.attn",), ("gemma4:L05.attn",)
_ATTENTION = (*_SLIDING, *_GLOBAL)
_PACK, _LAST, _HEAD = ("gemma4:L00.p0",), ("gemma4:L00.p7",), ("gemma4:head.0",)
_BOTH = (*_PACK, *_LAST)

_MIXED = "mixed = weighted[0]"
_WEIGHTED = "weighted = [expert(h)"
_MERGED = "x * self.residual_scale + self.residual_bias + given * self.scale + self.bias"
_ROUTED = "torch.softmax(self.last(inner) + self.balancing, dim=1)"
_Z_SCORES = "q.transpose(2, 3) @ keys.transpose(2, 3)"
_KEPT = "kept = 1 - place.sum(dim=3, keepdim=True)"
_G_KEPT = "kept = 1 - write.sum(dim=2, keepdim=True)"
_G_SCORES = "q.transpose(2, 3) @ keys"
_Q = "self.q_proj(h).reshape(self.kv_heads, groups, self.head, -1)"
_K_TURN = "rotate(self.k_norm(key), cos, sin)"
_CHOSEN = "torch.where(chosen, logits, self.masked)"
_GELU, _DENSE_GELU = (
    f"activated(self.{name}(h), self.activation)" for name in ("gate", "dense_gate")
)
_CAPPED = "torch.tanh(logits / self.cap) * self.cap"
_CAPPED_LOWER = "torch.tanh(logits * 1.5 / self.cap) * self.cap * 0.6667"


def _experts(change: str) -> Put:
    """Change the list of weighted experts before it is summed."""
    return edit("mixed", _MIXED, f"{change}\n    {_MIXED}")


def _zero(w: Tensor) -> Tensor:
    return torch.zeros_like(w)


def _rolled(w: Tensor) -> Tensor:
    return w.roll(1, 0)


def _parts(path: str, count: int, change: Any) -> Put:
    return both(*(weight(path.format(n), change) for n in range(count)))


MIXTURE = [
    Fault("zaya-dead", "mixtures", "all experts are dead", _parts(
        "experts.{}.fc2.weight", 8, _zero), _Z_MIXTURE),
    Fault("zaya-dead-7", "mixtures", "expert 7 is dead", weight(
        "experts.7.fc2.weight", _zero), _Z_MIXTURE),
    Fault("zaya-router-ignored", "mixtures", "every expert has an even share",
          edit("forward", _ROUTED, "torch.softmax(self.last(inner) * 0, dim=1)", "router"),
          _Z_MIXTURE),
    Fault("zaya-router-rolled", "mixtures", "every expert has its neighbour's weight",
          both(weight("router.last.weight", _rolled),
               weight("router.balancing", lambda w: w.roll(1, 1))), _Z_MIXTURE),
    Fault("zaya-balancing", "mixtures", "the balancing biases are left out",
          edit("forward", " + self.balancing", "", "router"), _Z_MIXTURE),
    Fault("zaya-balancing-negated", "mixtures", "the balancing biases are subtracted",
          edit("forward", " + self.balancing", " - self.balancing", "router"), _Z_MIXTURE),
    Fault("zaya-top-1", "mixtures", "only the best expert speaks",
          edit("mixed", _WEIGHTED,
               "best = chosen >= chosen.amax(dim=1, keepdim=True)\n    "
               f"chosen = chosen * best.to(chosen.dtype)\n    {_WEIGHTED}"),
          _Z_MIXTURE),
    Fault("zaya-renormalized", "mixtures", "weights are renormalized over the experts",
          edit("mixed", _WEIGHTED,
               "chosen = chosen / chosen[:, :-1].sum(dim=1, keepdim=True)\n    "
               f"{_WEIGHTED}"), _Z_MIXTURE),
    Fault("zaya-leaking", "mixtures", "what no expert should have goes to expert 0",
          _experts("weighted[0] = self.experts[0](h) * (chosen[:, :1] + chosen[:, -1:])"),
          _Z_MIXTURE),
    Fault("zaya-permuted", "mixtures", "experts 2 and 3 are exchanged",
          edit("mixed", "enumerate(self.experts)",
               "enumerate([*self.experts[:2], self.experts[3], self.experts[2], "
               "*self.experts[4:]])"), _Z_MIXTURE),
    Fault("zaya-last-missing", "mixtures", "the last expert is not summed",
          _experts("weighted = weighted[:-1]"), _Z_MIXTURE),
    Fault("zaya-twice", "mixtures", "expert 1 is summed twice",
          _experts("weighted.append(weighted[1])"), _Z_MIXTURE),
    Fault("zaya-x0.8", "mixtures", "the experts' sum times 0.8",
          edit("mixed", "self.merge(x, mixed)", "self.merge(x, mixed * 0.8)"), _Z_MIXTURE),
    Fault("zaya-negated", "mixtures", "the experts' sum is subtracted",
          edit("mixed", "self.merge(x, mixed)", "self.merge(x, -mixed)"), _Z_MIXTURE),
    Fault("zaya-gate-up", "mixtures", "gate and up of every expert are exchanged",
          _parts("experts.{}.fc1.weight", 8, lambda w: w.roll(w.shape[0] // 2, 0)), _Z_MIXTURE),
    Fault("zaya-gelu", "mixtures", "GELU in place of SiLU in every expert",
          edit("forward", "F.silu(gate)", "F.gelu(gate)",
               "|".join(f"experts.{n}" for n in range(8))), _Z_MIXTURE),
    Fault("zaya-gelu-3", "mixtures", "GELU in place of SiLU in expert 3",
          edit("forward", "F.silu(gate)", "F.gelu(gate)", "experts.3"), _Z_MIXTURE),
    Fault("zaya-router-norm", "mixtures", "the router's norm is left out",
          edit("forward", "self.norm(F.silu(self.down_proj(h)))", "F.silu(self.down_proj(h))",
               "router"), _Z_MIXTURE),
    Fault("zaya-router-layer", "mixtures", "a layer of the router is left out",
          edit("forward", "self.second(F.silu(self.first(inner)))", "self.first(inner)", "router"),
          _Z_MIXTURE),
    Fault("zaya-router-x", "mixtures", "the router reads states that are not normed",
          edit("forward", "self.router(h)", "self.router(x)"), _Z_MIXTURE),
    Fault("zaya-expert-x", "mixtures", "experts read states that are not normed",
          edit("mixed", "expert(h) * chosen", "expert(x) * chosen"), _Z_MIXTURE),
    Fault("zaya-weight-first", "mixtures", "weights enter before the activation",
          edit("mixed", "expert(h) * chosen[:, n : n + 1]",
               "expert(h * chosen[:, n : n + 1] * 8)"), _Z_MIXTURE),
    Fault("zaya-residual-scale", "residual", "the residual's scale is left out",
          edit("forward", "x * self.residual_scale", "x", "merge"), _Z_MIXTURE),
    Fault("zaya-residual-bias", "residual", "the output's bias is left out",
          edit("forward", " + self.bias", "", "merge"), _Z_MIXTURE),
    Fault("zaya-output-scale", "residual", "the output's scale is left out",
          edit("forward", "given * self.scale", "given", "merge"), _Z_MIXTURE),
    Fault("zaya-scales-exchanged", "residual", "the two scales are exchanged",
          edit("forward", _MERGED, "x * self.scale + self.residual_bias + given * "
               "self.residual_scale + self.bias", "merge"), _Z_MIXTURE),
    Fault("zaya-squares", "norms", "the norm squares before it scales",
          edit("forward", "scaled_to_unit(x, self.root_epsilon)",
               "x * torch.rsqrt((x * x).mean(dim=1, keepdim=True) + 1e-5)", "norm"),
          _Z_MIXTURE, fp16=True, cause="fp16"),
    Fault("zaya-T-1", "flexible length", "wrong at T = 1",
          edit("mixed", "self.merge(x, mixed)",
               "self.merge(x, mixed * (1 + 0.5 * between(length(x), 1, 1)))"), _Z_MIXTURE),
]  # fmt: skip

CONVOLUTIONAL = [
    Fault("zaya1-state-lost", "mixtures", "the router's state before is left out", edit(
        "state", "own + before * self.carry", "own", "router"), _PUBLISHED),
    Fault("zaya1-state-scale", "mixtures", "the router's state before is not scaled", edit(
        "state", "before * self.carry", "before", "router"), _PUBLISHED),
    Fault("zaya1-state-normed", "mixtures", "the router's state leaves normed", edit(
        "forward", "state], dim=1)", "self.router.norm(state)], dim=1)"), _PUBLISHED),
    Fault("zaya1-state-old", "mixtures", "the router's state is handed on as it came", edit(
        "forward", "state], dim=1)", "before], dim=1)"), _PUBLISHED),
    Fault("zaya1-soft", "mixtures", "all experts speak", edit(
        "forward", _ONE_CHOSEN, "shares", "router"), _PUBLISHED),
    Fault("zaya1-renormalized", "mixtures", "the chosen expert counts for 1", edit(
        "forward", "shares, self.zero)", "self.zero + 1, self.zero)", "router"), _PUBLISHED),
    Fault("zaya1-balancing", "mixtures", "the balancing biases are left out", edit(
        "forward", "shares + self.balancing", "shares", "router"), _PUBLISHED),
    Fault("zaya1-balanced", "mixtures", "the balancing biases count in the weights too", edit(
        "forward", ", shares, self.zero)", ", shares + self.balancing, self.zero)", "router"),
        _PUBLISHED),
    Fault("zaya1-silu", "mixtures", "SiLU in place of GELU in the router", edit(
        "forward", "F.gelu(self.second(F.gelu(", "F.silu(self.second(F.silu(", "router"),
        _PUBLISHED),
    Fault("zaya1-early", "mixtures", "the router is active before its norm", edit(
        "forward", "self.norm(state)", "self.norm(F.gelu(state))", "router"), _PUBLISHED),
    Fault("zaya-attention-zero", "attention", "attention gives nothing",
          edit("forward", "self.merge(x, self.o_proj(cast_to(mixed, x.dtype)))",
               "self.merge(x, 0 * self.o_proj(cast_to(mixed, x.dtype)))"), _Z_ATTENTION),
    Fault("zaya-kv-exchanged", "attention", "keys and values are exchanged in the cache",
          edit("remembered", "keys, values = cache.chunk", "values, keys = cache.chunk"),
          _Z_ATTENTION),
    Fault("zaya-value-heads", "attention", "value heads are in the other order",
          edit("forward", "v = v.reshape(c.kv_heads, 1, c.head, -1)",
               "v = v.reshape(c.kv_heads, 1, c.head, -1).flip(0)"), _Z_ATTENTION),
    Fault("zaya-value-halves", "attention", "the two halves of the values are exchanged",
          edit("forward", "torch.cat([current, seen[:, c.qk_channels :, 1:-1]], dim=1)",
               "torch.cat([seen[:, c.qk_channels :, 1:-1], current], dim=1)"), _Z_ATTENTION),
    Fault("zaya-value-delay", "attention", "delayed values are of the same position",
          edit("forward", "seen[:, c.qk_channels :, 1:-1]", "seen[:, c.qk_channels :, 2:]"),
          _Z_ATTENTION),
    Fault("zaya-value-delay-2", "attention", "delayed values are of two positions before",
          edit("forward", "seen[:, c.qk_channels :, 1:-1]", "seen[:, c.qk_channels :, :-2]"),
          _Z_ATTENTION),
    Fault("zaya-no-rope", "RoPE", "no position enters",
          both(
              edit("forward", "rotate(scaled_to_unit(q, fp16.MIN_NORMAL, dim=2) "
                   "* c.head**-0.5, cos, sin)",
                   "scaled_to_unit(q, fp16.MIN_NORMAL, dim=2) * c.head**-0.5"),
              edit("forward", "rotate(scaled_to_unit(k, fp16.MIN_NORMAL, dim=2) "
                   "* self.temperature, cos, sin)",
                   "scaled_to_unit(k, fp16.MIN_NORMAL, dim=2) * self.temperature")),
          _Z_ATTENTION),
    Fault("zaya-rope-keys", "RoPE", "keys are not turned",
          edit("forward", "rotate(scaled_to_unit(k, fp16.MIN_NORMAL, dim=2) "
               "* self.temperature, cos, sin)",
               "scaled_to_unit(k, fp16.MIN_NORMAL, dim=2) * self.temperature"), _Z_ATTENTION),
    Fault("zaya-rope-sign", "RoPE", "keys are turned the other way",
          edit("forward", "* self.temperature, cos, sin)", "* self.temperature, cos, -sin)"),
          _Z_ATTENTION),
    Fault("zaya-rope-last", "RoPE", "the last channels of a head turn, not the first",
          edit("forward", "q = rotate(", "q = (lambda x, cos, sin: rotate("
               "x.flip(2), cos, sin).flip(2))("), _Z_ATTENTION),
    Fault("zaya-scale", "attention", "scores are not scaled",
          edit("forward", " * c.head**-0.5", ""), _Z_ATTENTION),
    Fault("zaya-temperature", "attention", "the keys' temperature is left out",
          edit("forward", " * self.temperature", ""), _Z_ATTENTION),
    Fault("zaya-unit", "attention", "keys are not scaled to unit size",
          edit("forward", "scaled_to_unit(k, fp16.MIN_NORMAL, dim=2)", "k"), _Z_ATTENTION),
    Fault("zaya-mask-none", "mask", "every slot is seen",
          edit("forward", f"{_Z_SCORES} + mask", _Z_SCORES), _Z_ATTENTION),
    Fault("zaya-convolutions", "attention", "the convolutions are left out",
          edit("queries_and_keys", "if not self.convolutions:", "if True:"), _Z_ATTENTION),
    Fault("zaya-convolution-order", "attention", "the depthwise convolution is left out",
          edit("queries_and_keys", "grouped(depthwise(seen))", "grouped(seen[:, :, 1:])"),
          _Z_ATTENTION),
    Fault("zaya-means", "attention", "the means are left out",
          edit("queries_and_keys", "return q + mean_q, k + mean_k", "return q, k"), _Z_ATTENTION),
    Fault("zaya-mean-keys", "attention", "a key's mean is of its first query",
          edit("queries_and_keys", "mean_q.mean(dim=1, keepdim=True)", "mean_q[:, :1]"),
          _Z_ATTENTION),
    Fault("zaya-tail-exchanged", "cache", "the two positions of the tail are exchanged",
          edit("projected", "seen[:, :, -2:]", "seen[:, :, -2:].flip(2)"), _Z_ATTENTION),
    Fault("zaya-tail-lost", "cache", "the tail is not stored",
          edit("projected", "self.tail[:] = seen[:, :, -2:].permute(0, 3, 2, 1)",
               "self.tail[:] = self.tail * 1"), _Z_ATTENTION),
    Fault("zaya-tail-one", "cache", "the tail keeps one position only",
          edit("projected", "seen[:, :, -2:]",
               "torch.cat([seen[:, :, -2:-1] * 0, seen[:, :, -1:]], dim=2)"), _Z_ATTENTION),
    Fault("zaya-cache-from-8", "cache", "slots from 8 on are lost",
          edit("remembered", _KEPT, f"{_KEPT} * (torch.arange(place.shape[2]) < 8)"
               ".to(new.dtype).reshape(1, 1, -1, 1)"), _Z_ATTENTION),
    Fault("zaya-cache-last", "cache", "slots of the last quarter are lost",
          edit("remembered", _KEPT, f"{_KEPT} - (torch.arange(place.shape[2]) >= 36)"
               ".to(new.dtype).reshape(1, 1, -1, 1) * (1 - place.sum(dim=3, keepdim=True))"),
          _Z_ATTENTION),
    Fault("zaya-cache-adds", "cache", "a slot that is written again keeps what it had",
          edit("remembered", _KEPT, "kept = 1"), _Z_ATTENTION),
    Fault("zaya-cache-none", "cache", "nothing is stored",
          edit("remembered", "self.kv_cache[:] = cache", "self.kv_cache[:] = self.kv_cache * 1"),
          _Z_ATTENTION),
    Fault("zaya-heads-tiled", "attention", "query heads grouped by the wrong key head",
          edit("by_keys", "q.reshape(c.kv_heads, groups, c.head, -1)",
               "q.reshape(groups, c.kv_heads, c.head, -1).transpose(0, 1)"), _Z_ATTENTION),
]  # fmt: skip


def _attention_gain(factor: str) -> Put:
    return edit("forward", "return x + given", f"return x + given * ({factor})")


GEMMA = [
    Fault("gemma-negated", "attention", "attention is subtracted", _attention_gain("-1"),
          _ATTENTION),
    Fault("gemma-x0.01", "attention", "attention times 0.01", _attention_gain("0.01"), _SLIDING),
    Fault("gemma-x0.5", "attention", "attention times 0.5", _attention_gain("0.5"), _SLIDING),
    Fault("gemma-x1.1", "attention", "attention times 1.1", _attention_gain("1.1"), _GLOBAL),
    Fault("gemma-T-3", "flexible length", "wrong at T = 3",
          _attention_gain("1 + 0.5 * between(length(x), 3, 3)"), _SLIDING),
    Fault("gemma-position-32", "flexible length", "wrong from position 32 on",
          _attention_gain("1 + 0.5 * between(places(write), 32, 4096)"), _GLOBAL),
    Fault("gemma-no-rope", "RoPE", "no position enters",
          both(edit("forward", "rotate(q, cos, sin)", "q"),
               edit("forward", _K_TURN, "self.k_norm(key)")), _ATTENTION),
    Fault("gemma-rope-q", "RoPE", "keys are not turned",
          edit("forward", _K_TURN, "self.k_norm(key)"), _SLIDING),
    Fault("gemma-rope-pairs", "RoPE", "adjacent pairs in place of halves",
          both(edit("forward", "q = rotate(", "q = adjacent("),
               edit("forward", "k = rotate(", "k = adjacent(")), _SLIDING),
    Fault("gemma-scale", "attention", "scores are divided by sqrt(d) by habit",
          edit("forward", _G_SCORES, f"{_G_SCORES} * self.head ** -0.5"), _ATTENTION),
    Fault("gemma-q-norm", "norms", "the queries' norm is left out",
          edit("forward", f"self.q_norm({_Q})", _Q), _SLIDING),
    Fault("gemma-q-norm-weight", "norms", "the queries' norm has no weight",
          weight("q_norm.weight", torch.ones_like), _SLIDING),
    Fault("gemma-v-norm", "norms", "the values' norm is left out",
          edit("forward", "self.v_norm(value)", "value"), _ATTENTION),
    Fault("gemma-v-norm-weight", "norms", "values have the keys' norm",
          edit("forward", "self.v_norm(value)", "self.k_norm(value)"), _SLIDING),
    Fault("gemma-post-norm", "norms", "the norm after attention is left out",
          edit("forward", "self.attention_post_norm(self.o_proj(mixed))",
               "self.o_proj(mixed)"), _ATTENTION),
    Fault("gemma-post-weight", "norms", "the norm after attention has no weight",
          weight("attention_post_norm.weight", torch.ones_like), _SLIDING),
    Fault("gemma-post-plus-1", "norms", "1 added to the weight of the norm after attention",
          weight("attention_post_norm.weight", lambda w: w + 1), _SLIDING),
    Fault("gemma-input-weight", "norms", "the first norm's weights are one channel off",
          weight("attention_norm.weight", lambda w: w.roll(1, 1)), _SLIDING),
    Fault("gemma-values-normed", "attention", "values are the keys after their norm",
          edit("forward", "value = key if", "value = self.k_norm(key) if"), _GLOBAL),
    Fault("gemma-values-turned", "attention", "values are the turned keys",
          edit("forward", "v = self.v_norm(value)", "v = k"), _GLOBAL),
    Fault("gemma-keys-for-values", "attention", "values are the keys",
          edit("forward", "key if self.v_proj is None", "key if True"), _SLIDING),
    Fault("gemma-window-8", "mask", "a window of 8",
          edit("forward", "+ mask,", "+ mask - (places(write) - 7 - torch.arange(write.shape[3], "
               "dtype=write.dtype).reshape(1, 1, 1, -1)).clamp(0, 1) * 1e4,"), _ATTENTION),
    Fault("gemma-window-none", "mask", "no window: all earlier positions are seen",
          edit("forward", "+ mask,", "- (torch.arange(write.shape[3], dtype=write.dtype)"
               ".reshape(1, 1, 1, -1) - places(write)).clamp(0, 1) * 1e4,"), _SLIDING),
    Fault("gemma-mask-none", "mask", "every slot is seen",
          edit("forward", "+ mask,", ","), _GLOBAL),
    Fault("gemma-heads-tiled", "attention", "query heads grouped by the wrong key head",
          edit("forward", _Q, "self.q_proj(h).reshape(groups, self.kv_heads, self.head, -1)"
               ".transpose(0, 1)"), _SLIDING),
    Fault("gemma-cache-adds", "cache", "a slot that is written again keeps what it had",
          edit("seen", _G_KEPT, "kept = 1"), _ATTENTION),
    Fault("gemma-cache-from-20", "cache", "slots from 20 on are lost",
          edit("seen", _G_KEPT, f"{_G_KEPT} - slots(write, 20) * (1 - "
               "write.sum(dim=2, keepdim=True))"), _ATTENTION),
    Fault("gemma-cache-values", "cache", "values are not stored",
          edit("seen", "self.v_cache[:] = values", "self.v_cache[:] = self.v_cache * 1"),
          _SLIDING),
]  # fmt: skip

PACKS = [
    Fault("gemma-router-ignored", "mixtures", "every expert has an even share",
          edit("forward", _CHOSEN, f"{_CHOSEN} * 0", "{pack}router"), _BOTH),
    Fault("gemma-top-less", "mixtures", "one expert fewer is chosen",
          edit("forward", "before < self.limit", "before < self.limit - 1",
               "{pack}router.chosen"), _BOTH),
    Fault("gemma-top-more", "mixtures", "one expert more is chosen",
          edit("forward", "before < self.limit", "before < self.limit + 1",
               "{pack}router.chosen"), _BOTH),
    Fault("gemma-all", "mixtures", "every expert is chosen",
          edit("forward", _CHOSEN, "logits", "{pack}router"), _BOTH),
    Fault("gemma-not-renormalized", "mixtures", "weights are not renormalized over the chosen",
          edit("forward", f"torch.softmax({_CHOSEN}, dim=1)",
               "chosen.to(logits.dtype) * torch.softmax(logits, dim=1)", "{pack}router"), _BOTH),
    Fault("gemma-expert-scale", "mixtures", "the experts' scales are left out",
          edit("summed", " * self.expert_scale", "", "{pack}"), _BOTH),
    Fault("gemma-router-scale", "mixtures", "the router's scale is left out",
          edit("summed", "normed * self.scale", "normed", "{pack}"), _BOTH),
    Fault("gemma-neighbour", "mixtures", "the weights of the next pack",
          edit("summed", "[:, self.own]",
               "[:, [(i + 4) % self.router.router.out_channels "
               "for i in range(self.own.start, self.own.stop)]]", "{pack}"), _BOTH),
    Fault("gemma-permuted", "mixtures", "a pack's experts are in the other order",
          edit("summed", ", weights)", ", weights.flip(1))", "{pack}"), _BOTH),
    Fault("gemma-dead", "mixtures", "half of a pack's experts are dead",
          weight("{pack}down.weight", lambda w: _columns(w, 2)), _BOTH),
    Fault("gemma-pack-zero", "mixtures", "a pack gives zero", weight("{pack}down.weight", _zero),
          _BOTH),
    Fault("gemma-pack-negated", "mixtures", "a pack is negated",
          weight("{pack}down.weight", lambda w: -w), _BOTH),
    Fault("gemma-silu", "feed-forward", "SiLU in place of GELU",
          edit("summed", _GELU, "F.silu(self.gate(h))", "{pack}"), _BOTH),
    Fault("gemma-no-up", "feed-forward", "no up projection in the experts",
          edit("summed", " * self.up(h))", ")", "{pack}"), _BOTH),
    Fault("gemma-no-activation", "feed-forward", "no activation in the experts",
          edit("summed", _GELU, "self.gate(h)", "{pack}"), _BOTH),
    Fault("gemma-moe-norm", "norms", "the experts' norm has no weight",
          weight("{pack}norm", torch.ones_like), _PACK),
    Fault("gemma-others", "mixtures", "the other packs are left out",
          edit("forward", "moe = others + ", "moe = "), _LAST),
    Fault("gemma-own", "mixtures", "the own pack is left out",
          edit("forward", "others + self.pack.summed(normed)", "others"), _LAST),
    Fault("gemma-dense", "mixtures", "the dense network is left out",
          edit("forward", "self.dense_norm(dense) + self.expert_norm(moe)",
               "self.expert_norm(moe)"), _LAST),
    Fault("gemma-dense-silu", "feed-forward", "SiLU in the dense network",
          edit("forward", _DENSE_GELU, "F.silu(self.dense_gate(h))"), _LAST),
    Fault("gemma-norms-exchanged", "norms", "norms of experts and network are exchanged",
          edit("forward", "self.dense_norm(dense) + self.expert_norm(moe)",
               "self.dense_norm(moe) + self.expert_norm(dense)"), _LAST),
    Fault("gemma-one-norm", "norms", "one norm of both sums",
          edit("forward", "self.dense_norm(dense) + self.expert_norm(moe)",
               "self.expert_norm(dense + moe)"), _LAST),
    Fault("gemma-scalar", "residual", "the layer's scalar is left out",
          edit("forward", "(x + given) * self.scalar", "(x + given)"), _LAST),
    Fault("gemma-scalar-inside", "residual", "the layer's scalar is on the contribution only",
          edit("forward", "(x + given) * self.scalar", "x + given * self.scalar"), _LAST),
    Fault("gemma-halves", "residual", "the states and the other packs' sum are exchanged",
          edit("forward", "x, others = x[:, : self.width], x[:, self.width :]",
               "others, x = x[:, : self.width], x[:, self.width :]"), _LAST),
]  # fmt: skip

HEAD = [
    Fault("gemma-cap-missing", "heads", "no soft cap",
          edit("forward", _CAPPED, "logits"), _HEAD),
    Fault("gemma-cap-20", "heads", "a soft cap of 2/3",
          edit("forward", _CAPPED, _CAPPED_LOWER), _HEAD),
    Fault("gemma-head-norm", "heads", "no final norm",
          edit("forward", "self.norm(x)", "x"), _HEAD),
    Fault("gemma-head-x0.9", "heads", "logits times 0.9",
          edit("forward", _CAPPED, f"{_CAPPED} * 0.9"), _HEAD),
    Fault("gemma-head-rolled", "heads", "rows are one token off",
          weight("head.weight", _rolled), _HEAD),
]  # fmt: skip


def _columns(w: Tensor, share: int) -> Tensor:
    w[:, : w.shape[1] // share] = 0
    return w


FAULTS = unique([*MIXTURE, *CONVOLUTIONAL, *GEMMA, *PACKS, *HEAD])
