"""Faults of a Llama block and of a head slice: edits of the ANE form, and its weights."""

from __future__ import annotations

from typing import Any

import torch

from tests.battery.fault import HEAD, Fault, Put, borrowed, both, edit, exchanged, unique, weight

_TURN_Q = "rotate(self.q_proj(h).reshape(c.kv_heads, c.heads // c.kv_heads, c.head, -1), cos, sin)"
_TURN_K = "rotate(self.k_proj(h).reshape(c.kv_heads, 1, c.head, -1), cos, sin)"
_Q, _K = _TURN_Q.removeprefix("rotate("), _TURN_K.removeprefix("rotate(")
_V = "self.v_proj(h).reshape(c.kv_heads, 1, c.head, -1)"
_SOFTMAX = "torch.softmax(q.transpose(2, 3) @ k + mask, dim=-1)"
_MIXED = "mixed = v @ weights.transpose(2, 3)"
_MERGED = "mixed.reshape(1, c.heads * c.head, -1, 1)"
_SILU = "nn.functional.silu(self.gate_proj(h))"
_FED = f"{_SILU} * self.up_proj(h)"
_X = "x = x + self.attention(self.attention_norm(x), cos, sin, mask, write)"
_KEYS = "keys = self.k_cache * kept + k @ write"
_VALUES = "values = self.v_cache * kept + v @ write"
_KEPT = "kept = 1 - write.sum(dim=2, keepdim=True)"
_NORM = "scaled_to_unit(x, self.root_epsilon)"


def rope(q: str | None, k: str | None = None) -> Put:
    """Another RoPE of queries and keys; `{}` stands for what is turned, with its tables."""
    puts = [
        edit("attention", turn, new.format(inner.removesuffix(", cos, sin)")))
        for turn, inner, new in ((_TURN_Q, _Q, q), (_TURN_K, _K, q if k is None else k))
        if new
    ]
    return both(*puts)


def gain(factor: str) -> Put:
    """The block's contribution times a factor."""
    return both(
        edit("forward", _X, f"x0 = x\n    {_X}"),
        edit("forward", "return x + fed", f"return x0 + (x - x0 + fed) * ({factor})"),
    )


def norm(new: str, at: str = "attention_norm|ffn_norm") -> Put:
    """Another formula in place of the unit norm."""
    return edit("forward", _NORM, new, at)


def _unit(x: str) -> str:
    return f"{x} * torch.rsqrt(({x} * {x}).mean(dim=1, keepdim=True) + self.root_epsilon ** 2)"


ROPE = [
    Fault("rope-none", "RoPE", "no position enters", rope("{}")),
    Fault("rope-queries-only", "RoPE", "keys are not turned", rope(None, "{}")),
    Fault("rope-keys-only", "RoPE", "queries are not turned", rope("{}", "")),
    Fault("rope-sign", "RoPE", "turned the other way", rope("rotate({}, cos, -sin)")),
    Fault("rope-key-sign", "RoPE", "keys turned the other way", rope(None, "rotate({}, cos, -sin)")),
    Fault("rope-pairs", "RoPE", "adjacent pairs in place of halves", rope("adjacent({}, cos, sin)")),
    Fault("rope-key-pairs", "RoPE", "keys in adjacent pairs", rope(None, "adjacent({}, cos, sin)")),
    Fault("rope-cosine-only", "RoPE", "the sine is left out", rope("rotate({}, cos, sin * 0)")),
    Fault("rope-doubled", "RoPE", "turned twice", rope("rotate(rotate({}, cos, sin), cos, sin)")),
    Fault("rope-swapped-tables", "RoPE", "cosine and sine exchanged", rope("rotate({}, sin, cos)")),
    Fault(
        "rope-half", "RoPE", "only the first half of the pairs turns",
        rope("(lambda x: rotate(x, cos * _h(x) + 1 - _h(x), sin * _h(x)))({})".replace(
            "_h(x)", "(torch.arange(x.shape[2]) % (x.shape[2] // 2) < x.shape[2] // 4)"
            ".to(x.dtype).reshape(1, 1, -1, 1)")),
    ),
    Fault(
        "rope-first-pair", "RoPE", "the fastest pair does not turn",
        rope("(lambda x: rotate(x, cos * _h(x) + 1 - _h(x), sin * _h(x)))({})".replace(
            "_h(x)", "(torch.arange(x.shape[2]) % (x.shape[2] // 2) > 0)"
            ".to(x.dtype).reshape(1, 1, -1, 1)")),
    ),
    Fault(
        "rope-first-key-head", "RoPE", "only the first key head turns",
        rope(None, "(lambda x: torch.cat([rotate(x[:1], cos, sin), x[1:]]))({})"),
    ),
    Fault("rope-values", "RoPE", "values are turned too",
          edit("attention", _V, f"rotate({_V}, cos, sin)")),
    Fault("rope-neighbour", "RoPE", "queries have the next position's angles",
          rope("rotate({}, back(cos, 3), back(sin, 3))", "")),
]  # fmt: skip

MASK = [
    Fault("mask-none", "mask", "every slot is seen", edit("attention", " + mask, dim", ", dim")),
    Fault("mask-weak", "mask", "the mask is -5", edit("attention", "+ mask,", "+ mask * 0.0005,")),
    Fault("mask-future", "mask", "the next position is seen too",
          edit("attention", "+ mask,", "+ shifted(mask, 3),")),
    Fault("mask-not-self", "mask", "a position does not see itself",
          edit("attention", "+ mask,", "+ mask + write * -1e4,")),
    Fault("mask-after-softmax", "mask", "masked weights are dropped without a new sum",
          edit("attention", _SOFTMAX,
               "torch.softmax(q.transpose(2, 3) @ k, dim=-1) * (1 + mask * 1e-4)")),
    Fault("mask-window-64", "mask", "a window of 64 positions",
          edit("attention", "+ mask,", "+ mask + _old * -1e4,".replace(
              "_old", "(places(write) - 63 - torch.arange(write.shape[3], dtype=write.dtype)"
              ".reshape(1, 1, 1, -1)).clamp(0, 1)"))),
    Fault("mask-window-200", "mask", "a window of 200 positions",
          edit("attention", "+ mask,", "+ mask + _old * -1e4,".replace(
              "_old", "(places(write) - 199 - torch.arange(write.shape[3], dtype=write.dtype)"
              ".reshape(1, 1, 1, -1)).clamp(0, 1)"))),
    Fault("mask-first-hidden", "mask", "position 0, the attention sink, is hidden",
          edit("attention", "+ mask,", "+ mask - slots(write, 0, 0) * 1e4,")),
    Fault("mask-first-head", "mask", "the first group of heads has no mask",
          edit("attention", "+ mask,",
               "+ mask * (torch.arange(c.kv_heads) > 0).to(mask.dtype).reshape(-1, 1, 1, 1),")),
    Fault("mask-scaled", "mask", "the mask enters before a scale of 1/2000",
          edit("attention", "q.transpose(2, 3) @ k + mask",
               "(q.transpose(2, 3) @ k * 2000 + mask) * 0.0005"), cause="wrong function"),
]  # fmt: skip

CACHE = [
    Fault("cache-late", "cache", "a call does not see its own keys and values",
          both(edit("seen", "return keys, values",
                    "return old_keys * kept, old_values * kept"),
               edit("seen", _KEPT, f"{_KEPT}\n    old_keys, old_values = self.k_cache * 1, "
                    "self.v_cache * 1"))),
    Fault("cache-not-stored", "cache", "nothing is stored",
          both(edit("seen", "self.k_cache[:] = keys", "self.k_cache[:] = self.k_cache * 1"),
               edit("seen", "self.v_cache[:] = values", "self.v_cache[:] = self.v_cache * 1"))),
    Fault("cache-keys-not-stored", "cache", "keys are not stored",
          edit("seen", "self.k_cache[:] = keys", "self.k_cache[:] = self.k_cache * 1")),
    Fault("cache-values-not-stored", "cache", "values are not stored",
          edit("seen", "self.v_cache[:] = values", "self.v_cache[:] = self.v_cache * 1")),
    Fault("cache-adds", "cache", "a slot that is written again keeps what it had",
          edit("seen", _KEPT, "kept = 1")),
    Fault("cache-adds-values", "cache", "a slot of the values keeps what it had",
          edit("seen", _VALUES, "values = self.v_cache + v @ write")),
    Fault("cache-lost-from-128", "cache", "slots from 128 on are lost",
          edit("seen", _KEPT, f"{_KEPT} - slots(write, 128)")),
    Fault("cache-lost-from-200", "cache", "keys are lost from slot 200 on",
          edit("seen", _KEYS, "keys = self.k_cache * kept * (1 - slots(write, 200)) + k @ write")),
    Fault("cache-last-slot", "cache", "the last slot is never written",
          edit("seen", _KEPT, f"{_KEPT}\n    write = write * (1 - slots(write, write.shape[3] - 1))")),
    Fault("cache-first-slot", "cache", "the first slot is lost after its call",
          edit("seen", _KEPT, "kept = (1 - write.sum(dim=2, keepdim=True)) * slots(write, 1)")),
    Fault("cache-ring", "cache", "a ring of 128 slots",
          edit("seen", _KEPT, "write = torch.cat([write[..., :128] + write[..., 128:], "
               f"write[..., 128:] * 0], dim=3)\n    {_KEPT}")),
    Fault("cache-next-slot", "cache", "written one slot too far",
          edit("seen", _KEPT, f"write = shifted(write, 3)\n    {_KEPT}")),
    Fault("cache-decays", "cache", "what is stored loses 1 % a call",
          edit("seen", _KEPT, "kept = 0.99 - write.sum(dim=2, keepdim=True) * 0.99")),
    Fault("cache-coarse-values", "cache", "values are stored in steps of 1/4",
          edit("seen", _VALUES,
               "values = self.v_cache * kept + (torch.round(v * 4) * 0.25) @ write")),
    Fault("cache-exchanged", "cache", "keys and values are stored in each other's place",
          both(edit("seen", "self.k_cache[:] = keys", "self.k_cache[:] = values"),
               edit("seen", "self.v_cache[:] = values", "self.v_cache[:] = keys"))),
    Fault("cache-heads", "cache", "heads are stored in reverse",
          edit("seen", "self.v_cache[:] = values", "self.v_cache[:] = values.flip(0)")),
    Fault("cache-first-of-call", "cache", "of a call only the first position is stored",
          edit("seen", "self.v_cache[:] = values",
               "self.v_cache[:] = self.v_cache * kept + v[..., :1] @ write[:, :, :1]")),
    Fault("cache-clipped", "cache", "stored keys are clipped at 4",
          edit("seen", "self.k_cache[:] = keys", "self.k_cache[:] = keys.clamp(-4, 4)")),
    Fault("cache-middle", "cache", "slots 96 to 103 are zero",
          edit("seen", _KEPT, f"{_KEPT} - slots(write, 96, 103)"
               " * (1 - write.sum(dim=2, keepdim=True))")),
]  # fmt: skip

ATTENTION = [
    Fault("heads-tiled", "attention", "query heads grouped by the wrong key head",
          edit("attention", _TURN_Q, _TURN_Q.replace(
              "reshape(c.kv_heads, c.heads // c.kv_heads, c.head, -1)",
              "reshape(c.heads // c.kv_heads, c.kv_heads, c.head, -1).transpose(0, 1)"))),
    Fault("heads-merged", "attention", "heads leave in another order than they came",
          edit("attention", _MERGED, _MERGED.replace("mixed.", "mixed.transpose(0, 1)."))),
    Fault("heads-rolled", "attention", "queries are rolled by one head",
          weight("q_proj.weight", lambda w: w.roll(_head(w), 0))),
    Fault("heads-values", "attention", "values of key heads are reversed",
          edit("attention", _V, f"{_V}.flip(0)")),
    Fault("heads-dead", "attention", "one head gives zero",
          weight("o_proj.weight", lambda w: _zeroed(w, 1, 0, _head(w)))),
    Fault("scale-missing", "attention", "scores are not scaled",
          edit("attention", "q.transpose(2, 3) @ k", "q.transpose(2, 3) @ k * c.head ** 0.5")),
    Fault("scale-twice", "attention", "scores are scaled twice",
          edit("attention", "q.transpose(2, 3) @ k", "q.transpose(2, 3) @ k * c.head ** -0.5")),
    Fault("scale-1.2", "attention", "scores are 1.2 times too large",
          edit("attention", "q.transpose(2, 3) @ k", "q.transpose(2, 3) @ k * 1.2")),
    Fault("scale-0.9", "attention", "scores are 0.9 of what they should be",
          edit("attention", "q.transpose(2, 3) @ k", "q.transpose(2, 3) @ k * 0.9")),
    Fault("softmax-axis", "attention", "the softmax runs over queries",
          edit("attention", "mask, dim=-1", "mask, dim=-2")),
    Fault("softmax-base-2", "attention", "the softmax has base 2",
          edit("attention", _SOFTMAX,
               "torch.softmax((q.transpose(2, 3) @ k) * 0.6931472 + mask, dim=-1)")),
    Fault("softmax-sink", "attention", "a sink of score 0 takes part of every row",
          edit("attention", _SOFTMAX, "torch.softmax(torch.cat([_s, _s[..., :1] * 0], dim=3), "
               "dim=-1)[..., :-1]".replace("_s", "(q.transpose(2, 3) @ k + mask)"))),
    Fault("softmax-cap", "attention", "scores are capped at 5",
          edit("attention", "q.transpose(2, 3) @ k", "torch.tanh(q.transpose(2, 3) @ k / 5) * 5")),
    Fault("softmax-sigmoid", "attention", "a sigmoid in place of the softmax",
          edit("attention", _SOFTMAX, "torch.sigmoid(q.transpose(2, 3) @ k + mask)")),
    Fault("attention-uniform", "attention", "all scores are equal",
          edit("attention", "q.transpose(2, 3) @ k", "q.transpose(2, 3) @ k * 0")),
    Fault("attention-x0.9", "attention", "attention's output is 0.9 of it",
          edit("attention", _MIXED, f"{_MIXED} * 0.9")),
    Fault("attention-no-mean", "attention", "the mean value is taken out",
          edit("attention", _MIXED, "mixed = (v - v.mean(dim=2, keepdim=True)) "
               "@ weights.transpose(2, 3)")),
    Fault("output-transposed", "attention", "the output projection is transposed",
          weight("o_proj.weight", lambda w: w.transpose(0, 1).contiguous())),
    Fault("keys-for-values", "attention", "values are the keys",
          edit("attention", _MIXED, "mixed = k @ weights.transpose(2, 3)")),
    Fault("queries-from-values", "attention", "keys and values exchanged",
          exchanged("k_proj.weight", "v_proj.weight")),
]  # fmt: skip


def _activation(name: str, formula: str, what: str) -> Fault:
    return Fault(name, "feed-forward", what,
                 edit("forward", _SILU, f"(lambda x: {formula})(self.gate_proj(h))"))  # fmt: skip


FEED_FORWARD = [
    _activation("gelu", "F.gelu(x)", "GELU in place of SiLU"),
    _activation("gelu-tanh", "F.gelu(x, approximate='tanh')", "GELU by tanh in place of SiLU"),
    _activation("quick-gelu", "x * torch.sigmoid(1.702 * x)", "quick GELU in place of SiLU"),
    _activation("hard-swish", "x * (x + 3).clamp(0, 6) / 6", "hard swish in place of SiLU"),
    _activation("relu", "torch.relu(x)", "ReLU in place of SiLU"),
    _activation("sigmoid", "torch.sigmoid(x)", "a sigmoid in place of SiLU"),
    _activation("mish", "x * torch.tanh(F.softplus(x))", "Mish in place of SiLU"),
    _activation("swish-1.1", "x * torch.sigmoid(1.1 * x)", "SiLU with a factor of 1.1 inside"),
    _activation("silu-clipped", "F.silu(x.clamp(-2, 2))", "gates clipped at 2"),
    Fault("gate-up", "feed-forward", "gate and up exchanged",
          exchanged("gate_proj.weight", "up_proj.weight")),
    Fault("gate-missing", "feed-forward", "no gate", edit("forward", f"{_SILU} * ", "")),
    Fault("up-missing", "feed-forward", "no up projection",
          edit("forward", _FED, _SILU)),
    Fault("silu-both", "feed-forward", "SiLU on up as well",
          edit("forward", "* self.up_proj(h)", "* F.silu(self.up_proj(h))")),
    Fault("silu-late", "feed-forward", "SiLU of the product",
          edit("forward", _FED, "F.silu(self.gate_proj(h) * self.up_proj(h))")),
    Fault("up-plus-1", "feed-forward", "1 added to up",
          edit("forward", "* self.up_proj(h)", "* (self.up_proj(h) + 1)")),
    Fault("feed-parallel", "feed-forward", "the network reads what entered the block",
          edit("forward", _X + "\n        h = self.ffn_norm(x)".replace("        ", "    "),
               "h = self.ffn_norm(x)\n    " + _X)),
    Fault("feed-x1.1", "feed-forward", "the network's output times 1.1",
          edit("forward", "return x + fed", "return x + fed * 1.1")),
    Fault("feed-negated", "feed-forward", "the network's output is subtracted",
          edit("forward", "return x + fed", "return x - fed")),
    Fault("feed-unnormed", "feed-forward", "up reads states without their norm's weight",
          edit("forward", "* self.up_proj(h)", "* self.up_proj(h / self.ffn_norm.weight)")),
]  # fmt: skip

NORMS = [
    Fault("norm-squares", "norms", "squares before it scales: they overflow fp16 above 256",
          norm(_unit("x")), fp16=True, cause="fp16"),
    Fault("norm-squares-x8", "norms", "x is scaled by 8 before its squares: above 32",
          norm(_unit("(x * 8)")), fp16=True, cause="fp16"),
    Fault("norm-sum", "norms", "a sum of squares that is divided afterwards overflows",
          norm("x * torch.rsqrt((x * x * 16).sum(dim=1, keepdim=True) / (16 * x.shape[1]) + "
               "self.root_epsilon ** 2)"), fp16=True, cause="fp16"),
    Fault("norm-epsilon-0.01", "norms", "epsilon is 0.01", norm("scaled_to_unit(x, 0.1)")),
    Fault("norm-epsilon-outside", "norms", "epsilon is added to the root, 0.03",
          norm("(x / (1 / torch.rsqrt((x * x).mean(dim=1, keepdim=True) + 1e-5) + 0.03))")),
    Fault("norm-missing", "norms", "attention reads states that are not normed",
          edit("forward", "self.attention_norm(x)", "x")),
    Fault("norm-feed-missing", "norms", "the network reads states that are not normed",
          edit("forward", "self.ffn_norm(x)", "x")),
    Fault("norm-no-weight", "norms", "the attention norm has no weight",
          weight("attention_norm.weight", torch.ones_like)),
    Fault("norm-feed-no-weight", "norms", "the network's norm has no weight",
          weight("ffn_norm.weight", torch.ones_like)),
    Fault("norm-exchanged", "norms", "the two norms are exchanged",
          exchanged("attention_norm.weight", "ffn_norm.weight")),
    Fault("norm-layer", "norms", "LayerNorm: the mean is taken out",
          norm("scaled_to_unit(x - x.mean(dim=1, keepdim=True), self.root_epsilon)")),
    Fault("norm-plus-1", "norms", "1 added to the weight", norm(f"(self.weight + 1) / self.weight * {_NORM}")),
    Fault("norm-mean-size", "norms", "the mean magnitude in place of the root mean square",
          norm("(x / (x.abs().mean(dim=1, keepdim=True) + 1e-5))")),
    Fault("norm-largest", "norms", "divided by the largest magnitude only",
          norm("(x / x.abs().amax(dim=1, keepdim=True) * 4)")),
    Fault("norm-half", "norms", "the mean square of half of the channels",
          norm("(x * torch.rsqrt((x[:, ::2] * x[:, ::2]).mean(dim=1, keepdim=True) + 1e-5))")),
    Fault("norm-over-T", "norms", "the mean square is of all positions of the call",
          norm("(x * torch.rsqrt((x * x).mean(dim=(1, 2), keepdim=True) + 1e-5))")),
    Fault("norm-clipped", "norms", "states are clipped at 100 before their norm",
          norm("scaled_to_unit(x.clamp(-100, 100), self.root_epsilon)", "attention_norm")),
    Fault("norm-clipped-2000", "norms", "states are clipped at 2,000 before their norm",
          norm("scaled_to_unit(x.clamp(-2000, 2000), self.root_epsilon)", "ffn_norm")),
    Fault("norm-shifted", "norms", "the norm's weights are one channel off",
          weight("attention_norm.weight", lambda w: w.roll(1, 1))),
]  # fmt: skip

RESIDUAL = [
    Fault("residual-attention", "residual", "attention's residual path is dropped",
          edit("forward", "x = x + self.attention(", "x = self.attention(")),
    Fault("residual-feed", "residual", "the network's residual path is dropped",
          edit("forward", "return x + fed", "return fed")),
    Fault("residual-doubled", "residual", "the residual path is doubled",
          edit("forward", "return x + fed", "return x * 2 + fed")),
    Fault("residual-0.9", "residual", "the residual path times 0.9",
          edit("forward", "return x + fed", "return x * 0.9 + fed")),
    Fault("residual-normed", "residual", "the normed states are carried on",
          edit("forward", "return x + fed", "return h + fed")),
    Fault("output-doubled", "residual", "the output is doubled",
          edit("forward", "return x + fed", "return (x + fed) * 2")),
    Fault("output-0.9", "residual", "the output times 0.9",
          edit("forward", "return x + fed", "return (x + fed) * 0.9")),
    Fault("contribution-zero", "residual", "nothing is added", gain("0")),
    Fault("contribution-negated", "residual", "the contribution is subtracted", gain("-1")),
    Fault("contribution-x1.5", "residual", "the contribution times 1.5", gain("1.5")),
    Fault("contribution-x0.95", "residual", "the contribution times 0.95", gain("0.95")),
    Fault("contribution-x1.04", "residual", "the contribution times 1.04", gain("1.04")),
    Fault("attention-no-add", "residual", "attention's output is left out",
          edit("forward", _X, "x = x + 0 * self.attention(self.attention_norm(x), cos, sin, mask, "
               "write)")),
    Fault("channels-plus-0.02", "residual", "0.02 added to every channel",
          edit("forward", "return x + fed", "return x + fed + 0.02")),
    Fault("channels-shifted", "residual", "the contribution is one channel off",
          edit("forward", "return x + fed", "return x + shifted(fed, 1)")),
    Fault("channels-last", "residual", "the last 16 channels get nothing",
          edit("forward", "return x + fed", "return x + fed * (torch.arange(fed.shape[1]) < "
               "fed.shape[1] - 16).to(fed.dtype).reshape(1, -1, 1, 1)")),
    Fault("output-clipped", "residual", "the output is clipped at 500",
          edit("forward", "return x + fed", "return (x + fed).clamp(-500, 500)"),
          equivalent={"smollm2:L01": "nothing but massive probes gets so large"}),
]  # fmt: skip

LENGTH = [
    Fault("T-1", "flexible length", "wrong at T = 1",
          gain("1 + 0.5 * between(length(x), 1, 1)")),
    Fault("T-not-1", "flexible length", "wrong at every T but 1",
          gain("1 + 0.5 * between(length(x), 2, 4096)")),
    Fault("T-2-to-4", "flexible length", "wrong at T = 2 to 4",
          gain("1 + 0.5 * between(length(x), 2, 4)")),
    Fault("T-3", "flexible length", "wrong at T = 3",
          gain("1 - 0.5 * between(length(x), 3, 3)")),
    Fault("T-17-to-31", "flexible length", "wrong at T = 17 to 31",
          gain("1 + 0.5 * between(length(x), 17, 31)")),
    Fault("T-40-to-63", "flexible length", "wrong at T = 40 to 63",
          gain("1 + 0.5 * between(length(x), 40, 63)")),
    Fault("T-64", "flexible length", "wrong at the largest T",
          gain("1 + 0.5 * between(length(x), 64, 64)")),
    Fault("position-128", "flexible length", "wrong from position 128 on",
          gain("1 + 0.2 * between(places(write), 128, 4096)")),
    Fault("position-250", "flexible length", "wrong from position 250 on",
          gain("1 + 0.5 * between(places(write), 250, 4096)")),
    Fault("position-0", "flexible length", "wrong at position 0 only",
          gain("1 + 0.5 * between(places(write), 0, 0)")),
    Fault("position-odd", "flexible length", "wrong in slots 33 to 63",
          gain("1 + 0.2 * between(places(write), 33, 63)")),
    Fault("call-first", "flexible length", "the first position of a call sees only itself",
          edit("attention", _SOFTMAX, "torch.cat([write[:, :, :1].expand(c.kv_heads, c.heads // "
               "c.kv_heads, 1, -1), _s[:, :, 1:]], dim=2)".replace("_s", _SOFTMAX))),
]  # fmt: skip


def _head(w: torch.Tensor) -> int:
    """Channels of a head of a model whose query heads are as wide as its states together."""
    return {576: 64}.get(w.shape[0], w.shape[0] // 4)


def _zeroed(w: torch.Tensor, axis: int, first: int, count: int) -> torch.Tensor:
    w.narrow(axis, first, count).zero_()
    return w


def _rounded(w: torch.Tensor, bits: int) -> torch.Tensor:
    """To integers of some bits with one scale."""
    scale = w.abs().max() / (2 ** (bits - 1) - 1)
    return torch.round(w / scale) * scale


def _clipped(w: torch.Tensor, deviations: float) -> torch.Tensor:
    limit = float(w.std() * deviations)
    return w.clamp(-limit, limit)


def _interleaved(w: torch.Tensor) -> torch.Tensor:
    """Rows of halves back to adjacent pairs: what a file that is not converted back has."""
    head = 64 if w.shape[1] == 576 else w.shape[1] // 4
    return w.reshape(-1, 2, head // 2, *w.shape[1:]).transpose(1, 2).reshape(w.shape)


def _spread(w: torch.Tensor, **_: Any) -> torch.Tensor:
    """To 3 bits of mantissa, as fp8."""
    mantissa, exponent = torch.frexp(w)
    return torch.ldexp(torch.round(mantissa * 8) / 8, exponent)


_MATRICES = "|".join(f"{n}_proj.weight" for n in ("q", "k", "v", "o", "gate", "up", "down"))

WEIGHTS = [
    Fault("weights-neighbour-q", "weights", "queries of the block before",
          borrowed("q_proj.weight", "L00")),
    Fault("weights-neighbour-down", "weights", "the down projection of the block before",
          borrowed("down_proj.weight", "L00")),
    Fault("weights-neighbour-norm", "weights", "the network's norm of the block before",
          borrowed("ffn_norm.weight", "L00")),
    Fault("weights-rolled", "weights", "up is rolled by one row",
          weight("up_proj.weight", lambda w: w.roll(1, 0))),
    Fault("weights-reversed", "weights", "columns of down are reversed",
          weight("down_proj.weight", lambda w: w.flip(1))),
    Fault("weights-zero-rows", "weights", "rows 16 to 31 of gate are zero",
          weight("gate_proj.weight", lambda w: _zeroed(w, 0, w.shape[0] // 3, w.shape[0] // 3))),
    Fault("weights-zero-columns", "weights", "an eighth of the value's columns is zero",
          weight("v_proj.weight", lambda w: _zeroed(w, 1, 0, w.shape[1] // 8))),
    Fault("weights-v-0.9", "weights", "values times 0.9", weight("v_proj.weight", lambda w: w * 0.9)),
    Fault("weights-k-1.3", "weights", "keys times 1.3", weight("k_proj.weight", lambda w: w * 1.3)),
    Fault("weights-clipped", "weights", "all matrices are clipped at 2.5 deviations",
          weight(_MATRICES, lambda w: _clipped(w, 2.5))),
    Fault("weights-4-bits", "weights", "all matrices are rounded to 4 bits before the build",
          weight(_MATRICES, lambda w: _rounded(w, 4))),
    Fault("weights-5-bits-down", "weights", "down is rounded to 5 bits before the build",
          weight("down_proj.weight", lambda w: _rounded(w, 5))),
    Fault("weights-3-bit-mantissa", "weights", "all matrices are rounded to a mantissa of 3 bits",
          weight(_MATRICES, _spread)),
    Fault("weights-small-zero", "weights", "magnitudes below a third of a deviation are zero",
          weight(_MATRICES, lambda w: torch.where(w.abs() < w.std() / 3, 0.0, w))),
    Fault("weights-interleaved", "weights", "queries and keys have the file's own row order",
          weight("q_proj.weight|k_proj.weight", _interleaved)),
    Fault("weights-key-interleaved", "weights", "keys have the file's own row order",
          weight("k_proj.weight", _interleaved)),
    Fault("weights-negated-row", "weights", "the largest row of down is negated",
          weight("down_proj.weight", lambda w: w * torch.where(
              w.square().sum(1, keepdim=True) == w.square().sum(1).max(), -1.0, 1.0))),
    Fault("weights-noise", "weights", "noise of 5 % on up",
          weight("up_proj.weight", lambda w: w + 0.05 * w.std() * torch.randn(
              w.shape, generator=torch.Generator().manual_seed(3)))),
]  # fmt: skip

HEADS = [
    Fault("head-no-norm", "heads", "no final norm", edit("forward", "self.norm(x)", "x"), HEAD),
    Fault("head-no-weight", "heads", "the final norm has no weight",
          weight("norm.weight", torch.ones_like), HEAD),
    Fault("head-squares", "heads", "the final norm squares before it scales",
          edit("forward", _NORM, _unit("x"), "norm"), HEAD, fp16=True, cause="fp16"),
    Fault("head-layer-norm", "heads", "LayerNorm in place of RMSNorm",
          edit("forward", _NORM,
               "scaled_to_unit(x - x.mean(dim=1, keepdim=True), self.root_epsilon)", "norm"), HEAD),
    Fault("head-rolled", "heads", "rows are one token off",
          weight("head.weight", lambda w: w.roll(1, 0)), HEAD),
    Fault("head-neighbour", "heads", "the rows of slice 0", borrowed("head.weight", "head.0"), HEAD),
    Fault("head-reversed", "heads", "channels are reversed",
          weight("head.weight", lambda w: w.flip(1)), HEAD),
    Fault("head-last-rows", "heads", "the last quarter of the rows is zero",
          weight("head.weight", lambda w: _zeroed(w, 0, w.shape[0] * 3 // 4, w.shape[0] // 4)),
          HEAD),
    Fault("head-cap", "heads", "a soft cap of 15", edit(
        "forward", "self.head(self.norm(x))", "torch.tanh(self.head(self.norm(x)) / 15) * 15"),
        HEAD),
    Fault("head-x0.9", "heads", "logits times 0.9",
          edit("forward", "self.head(self.norm(x))", "self.head(self.norm(x)) * 0.9"), HEAD),
    Fault("head-x1.2", "heads", "logits times 1.2",
          edit("forward", "self.head(self.norm(x))", "self.head(self.norm(x)) * 1.2"), HEAD),
    Fault("head-bias", "heads", "1 added to every logit",
          edit("forward", "self.head(self.norm(x))", "self.head(self.norm(x)) + 1"), HEAD),
    Fault("head-swapped", "heads", "the first and the second half of the rows exchanged",
          weight("head.weight", lambda w: w.roll(w.shape[0] // 2, 0)), HEAD),
    Fault("head-T-1", "heads", "wrong at T = 1", edit(
        "forward", "self.head(self.norm(x))",
        "self.head(self.norm(x)) * (1 + 0.3 * between(length(x), 1, 1))"), HEAD),
    Fault("head-4-bits", "heads", "rows are rounded to 4 bits before the build",
          weight("head.weight", lambda w: _rounded(w, 4)), HEAD),
    Fault("head-norm-0.9", "heads", "the final norm's weights times 0.9",
          weight("norm.weight", lambda w: w * 0.9), HEAD),
]  # fmt: skip

FAULTS = unique([
    *ROPE, *MASK, *CACHE, *ATTENTION, *FEED_FORWARD, *NORMS, *RESIDUAL, *LENGTH, *WEIGHTS, *HEADS,
])  # fmt: skip
