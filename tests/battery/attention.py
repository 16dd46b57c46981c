"""Faults of a Llama block's attention: RoPE, mask, cache, heads."""

from __future__ import annotations

import torch

from tests.battery.fault import Fault, Put, both, edit, exchanged, unique, weight

TURN_Q = "rotate(self.q_proj(h).reshape(c.kv_heads, c.heads // c.kv_heads, c.head, -1), cos, sin)"
TURN_K = "rotate(self.k_proj(h).reshape(c.kv_heads, 1, c.head, -1), cos, sin)"
Q, K = TURN_Q.removeprefix("rotate("), TURN_K.removeprefix("rotate(")
V = "self.v_proj(h).reshape(c.kv_heads, 1, c.head, -1)"
SOFTMAX = "torch.softmax(q.transpose(2, 3) @ k + mask, dim=-1)"
MIXED = "mixed = v @ weights.transpose(2, 3)"
MERGED = "mixed.reshape(1, c.heads * c.head, -1, 1)"
KEYS = "keys = self.k_cache * kept + k @ write"
VALUES = "values = self.v_cache * kept + v @ write"
KEPT = "kept = 1 - write.sum(dim=2, keepdim=True)"


def rope(q: str | None, k: str | None = None) -> Put:
    """Another RoPE of queries and keys; `{}` stands for what is turned, with its tables."""
    puts = [
        edit("attention", turn, new.format(inner.removesuffix(", cos, sin)")))
        for turn, inner, new in ((TURN_Q, Q, q), (TURN_K, K, q if k is None else k))
        if new
    ]
    return both(*puts)


def head_size(w: torch.Tensor) -> int:
    """Channels of a head of a model whose query heads are as wide as its states together."""
    return {576: 64}.get(w.shape[0], w.shape[0] // 4)


def zeroed(w: torch.Tensor, axis: int, first: int, count: int) -> torch.Tensor:
    w.narrow(axis, first, count).zero_()
    return w


ROPE = [
    Fault("rope-none", "RoPE", "no position enters", rope("{}")),
    Fault("rope-queries-only", "RoPE", "keys are not turned", rope(None, "{}")),
    Fault("rope-keys-only", "RoPE", "queries are not turned", rope("{}", "")),
    Fault("rope-sign", "RoPE", "turned the other way", rope("rotate({}, cos, -sin)")),
    Fault("rope-key-sign", "RoPE", "keys turned the other way",
          rope(None, "rotate({}, cos, -sin)")),
    Fault("rope-pairs", "RoPE", "adjacent pairs in place of halves",
          rope("adjacent({}, cos, sin)")),
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
          edit("attention", V, f"rotate({V}, cos, sin)")),
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
          edit("attention", SOFTMAX,
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
               edit("seen", KEPT, f"{KEPT}\n    old_keys, old_values = self.k_cache * 1, "
                    "self.v_cache * 1"))),
    Fault("cache-not-stored", "cache", "nothing is stored",
          both(edit("seen", "self.k_cache[:] = keys", "self.k_cache[:] = self.k_cache * 1"),
               edit("seen", "self.v_cache[:] = values", "self.v_cache[:] = self.v_cache * 1"))),
    Fault("cache-keys-not-stored", "cache", "keys are not stored",
          edit("seen", "self.k_cache[:] = keys", "self.k_cache[:] = self.k_cache * 1")),
    Fault("cache-values-not-stored", "cache", "values are not stored",
          edit("seen", "self.v_cache[:] = values", "self.v_cache[:] = self.v_cache * 1")),
    Fault("cache-adds", "cache", "a slot that is written again keeps what it had",
          edit("seen", KEPT, "kept = 1")),
    Fault("cache-adds-values", "cache", "a slot of the values keeps what it had",
          edit("seen", VALUES, "values = self.v_cache + v @ write")),
    Fault("cache-lost-from-128", "cache", "slots from 128 on are lost",
          edit("seen", KEPT, f"{KEPT} - slots(write, 128)")),
    Fault("cache-lost-from-200", "cache", "keys are lost from slot 200 on",
          edit("seen", KEYS, "keys = self.k_cache * kept * (1 - slots(write, 200)) + k @ write")),
    Fault("cache-last-slot", "cache", "the last slot is never written",
          edit("seen", KEPT, f"{KEPT}\n    write = write * (1 - slots(write, "
               "write.shape[3] - 1))"),
          equivalent={"tiny": "attention spreads over all 256 keys"}),
    Fault("cache-first-slot", "cache", "the first slot is lost after its call",
          edit("seen", KEPT, "kept = (1 - write.sum(dim=2, keepdim=True)) * slots(write, 1)")),
    Fault("cache-ring", "cache", "a ring of 128 slots",
          edit("seen", KEPT, "write = torch.cat([write[..., :128] + write[..., 128:], "
               f"write[..., 128:] * 0], dim=3)\n    {KEPT}")),
    Fault("cache-next-slot", "cache", "written one slot too far",
          edit("seen", KEPT, f"write = shifted(write, 3)\n    {KEPT}")),
    Fault("cache-decays", "cache", "what is stored loses 1 % a call",
          edit("seen", KEPT, "kept = 0.99 - write.sum(dim=2, keepdim=True) * 0.99")),
    Fault("cache-coarse-values", "cache", "values are stored in steps of 1/4",
          edit("seen", VALUES,
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
          edit("seen", KEPT, f"{KEPT} - slots(write, 96, 103)"
               " * (1 - write.sum(dim=2, keepdim=True))")),
]  # fmt: skip

ATTENTION = [
    Fault("heads-tiled", "attention", "query heads grouped by the wrong key head",
          edit("attention", TURN_Q, TURN_Q.replace(
              "reshape(c.kv_heads, c.heads // c.kv_heads, c.head, -1)",
              "reshape(c.heads // c.kv_heads, c.kv_heads, c.head, -1).transpose(0, 1)"))),
    Fault("heads-merged", "attention", "heads leave in another order than they came",
          edit("attention", MERGED, MERGED.replace("mixed.", "mixed.transpose(0, 1)."))),
    Fault("heads-rolled", "attention", "queries are rolled by one head",
          weight("q_proj.weight", lambda w: w.roll(head_size(w), 0))),
    Fault("heads-values", "attention", "values of key heads are reversed",
          edit("attention", V, f"{V}.flip(0)")),
    Fault("heads-dead", "attention", "one head gives zero",
          weight("o_proj.weight", lambda w: zeroed(w, 1, 0, head_size(w)))),
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
          edit("attention", SOFTMAX,
               "torch.softmax((q.transpose(2, 3) @ k) * 0.6931472 + mask, dim=-1)")),
    Fault("softmax-sink", "attention", "a sink of score 0 takes part of every row",
          edit("attention", SOFTMAX, "torch.softmax(torch.cat([_s, _s[..., :1] * 0], dim=3), "
               "dim=-1)[..., :-1]".replace("_s", "(q.transpose(2, 3) @ k + mask)"))),
    Fault("softmax-cap", "attention", "scores are capped at 5",
          edit("attention", "q.transpose(2, 3) @ k", "torch.tanh(q.transpose(2, 3) @ k / 5) * 5")),
    Fault("softmax-sigmoid", "attention", "a sigmoid in place of the softmax",
          edit("attention", SOFTMAX, "torch.sigmoid(q.transpose(2, 3) @ k + mask)")),
    Fault("attention-uniform", "attention", "all scores are equal",
          edit("attention", "q.transpose(2, 3) @ k", "q.transpose(2, 3) @ k * 0")),
    Fault("attention-x0.9", "attention", "attention's output is 0.9 of it",
          edit("attention", MIXED, f"{MIXED} * 0.9")),
    Fault("attention-no-mean", "attention", "the mean value is taken out",
          edit("attention", MIXED, "mixed = (v - v.mean(dim=2, keepdim=True)) "
               "@ weights.transpose(2, 3)")),
    Fault("output-transposed", "attention", "the output projection is transposed",
          weight("o_proj.weight", lambda w: w.transpose(0, 1).contiguous())),
    Fault("keys-for-values", "attention", "values are the keys",
          edit("attention", MIXED, "mixed = k @ weights.transpose(2, 3)")),
    Fault("queries-from-values", "attention", "keys and values exchanged",
          exchanged("k_proj.weight", "v_proj.weight")),
]  # fmt: skip


FAULTS = unique([*ROPE, *MASK, *CACHE, *ATTENTION])
