"""Faults of a Llama block's attention: RoPE, mask, cache, heads."""

from __future__ import annotations

import torch

from tests.battery.fault import BLOCKS, Put, both, edit, exchanged, faults, unique, weight

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


ROPE = faults(
    "RoPE", BLOCKS,
    ("rope-none", "no position enters", rope("{}")),
    ("rope-queries-only", "keys are not turned", rope(None, "{}")),
    ("rope-keys-only", "queries are not turned", rope("{}", "")),
    ("rope-sign", "turned the other way", rope("rotate({}, cos, -sin)")),
    ("rope-key-sign", "keys turned the other way", rope(None, "rotate({}, cos, -sin)")),
    ("rope-pairs", "adjacent pairs in place of halves", rope("adjacent({}, cos, sin)")),
    ("rope-key-pairs", "keys in adjacent pairs", rope(None, "adjacent({}, cos, sin)")),
    ("rope-cosine-only", "the sine is left out", rope("rotate({}, cos, sin * 0)")),
    ("rope-doubled", "turned twice", rope("rotate(rotate({}, cos, sin), cos, sin)")),
    ("rope-swapped-tables", "cosine and sine exchanged", rope("rotate({}, sin, cos)")),
    ("rope-half", "only the first half of the pairs turns",
     rope("(lambda x: rotate(x, cos * _h(x) + 1 - _h(x), sin * _h(x)))({})".replace("_h(x)",
     "(torch.arange(x.shape[2]) % (x.shape[2] // 2) < x.shape[2] // 4)"
     ".to(x.dtype).reshape(1, 1, -1, 1)"))),
    ("rope-first-pair", "the fastest pair does not turn",
     rope("(lambda x: rotate(x, cos * _h(x) + 1 - _h(x), sin * _h(x)))({})".replace("_h(x)",
     "(torch.arange(x.shape[2]) % (x.shape[2] // 2) > 0).to(x.dtype).reshape(1, 1, -1, 1)"))),
    ("rope-first-key-head", "only the first key head turns",
     rope(None, "(lambda x: torch.cat([rotate(x[:1], cos, sin), x[1:]]))({})")),
    ("rope-values", "values are turned too", edit("attention", V, f"rotate({V}, cos, sin)")),
    ("rope-neighbour", "queries have the next position's angles",
     rope("rotate({}, back(cos, 3), back(sin, 3))", "")),
)  # fmt: skip

MASK = faults(
    "mask", BLOCKS,
    ("mask-none", "every slot is seen", edit("attention", " + mask, dim", ", dim")),
    ("mask-weak", "the mask is -5", edit("attention", "+ mask,", "+ mask * 0.0005,")),
    ("mask-future", "the next position is seen too",
     edit("attention", "+ mask,", "+ shifted(mask, 3),")),
    ("mask-not-self", "a position does not see itself",
     edit("attention", "+ mask,", "+ mask + write * -1e4,")),
    ("mask-after-softmax", "masked weights are dropped without a new sum", edit("attention",
     SOFTMAX, "torch.softmax(q.transpose(2, 3) @ k, dim=-1) * (1 + mask * 1e-4)")),
    ("mask-window-64", "a window of 64 positions", edit("attention", "+ mask,",
     "+ mask + _old * -1e4,".replace("_old",
     "(places(write) - 63 - torch.arange(write.shape[3], dtype=write.dtype)"
     ".reshape(1, 1, 1, -1)).clamp(0, 1)"))),
    ("mask-window-200", "a window of 200 positions", edit("attention", "+ mask,",
     "+ mask + _old * -1e4,".replace("_old",
     "(places(write) - 199 - torch.arange(write.shape[3], dtype=write.dtype)"
     ".reshape(1, 1, 1, -1)).clamp(0, 1)"))),
    ("mask-first-hidden", "position 0, the attention sink, is hidden",
     edit("attention", "+ mask,", "+ mask - slots(write, 0, 0) * 1e4,")),
    ("mask-first-head", "the first group of heads has no mask", edit("attention", "+ mask,",
     "+ mask * (torch.arange(c.kv_heads) > 0).to(mask.dtype).reshape(-1, 1, 1, 1),")),
    ("mask-scaled", "the mask enters before a scale of 1/2000", edit("attention",
     "q.transpose(2, 3) @ k + mask", "(q.transpose(2, 3) @ k * 2000 + mask) * 0.0005"),
     {"cause": "wrong function"}),
)  # fmt: skip

CACHE = faults(
    "cache", BLOCKS,
    ("cache-late", "a call does not see its own keys and values", both(edit("seen",
     "return keys, values", "return old_keys * kept, old_values * kept"), edit("seen", KEPT,
     f"{KEPT}\n    old_keys, old_values = self.k_cache * 1, self.v_cache * 1"))),
    ("cache-not-stored", "nothing is stored", both(edit("seen", "self.k_cache[:] = keys",
     "self.k_cache[:] = self.k_cache * 1"), edit("seen", "self.v_cache[:] = values",
     "self.v_cache[:] = self.v_cache * 1"))),
    ("cache-keys-not-stored", "keys are not stored",
     edit("seen", "self.k_cache[:] = keys", "self.k_cache[:] = self.k_cache * 1")),
    ("cache-values-not-stored", "values are not stored",
     edit("seen", "self.v_cache[:] = values", "self.v_cache[:] = self.v_cache * 1")),
    ("cache-adds", "a slot that is written again keeps what it had",
     edit("seen", KEPT, "kept = 1")),
    ("cache-adds-values", "a slot of the values keeps what it had",
     edit("seen", VALUES, "values = self.v_cache + v @ write")),
    ("cache-lost-from-128", "slots from 128 on are lost",
     edit("seen", KEPT, f"{KEPT} - slots(write, 128)")),
    ("cache-lost-from-200", "keys are lost from slot 200 on",
     edit("seen", KEYS, "keys = self.k_cache * kept * (1 - slots(write, 200)) + k @ write")),
    ("cache-last-slot", "the last slot is never written",
     edit("seen", KEPT, f"{KEPT}\n    write = write * (1 - slots(write, write.shape[3] - 1))"),
     {"equivalent": {"tiny": "attention spreads over all 256 keys"}}),
    ("cache-first-slot", "the first slot is lost after its call",
     edit("seen", KEPT, "kept = (1 - write.sum(dim=2, keepdim=True)) * slots(write, 1)")),
    ("cache-ring", "a ring of 128 slots", edit("seen", KEPT,
     "write = torch.cat([write[..., :128] + write[..., 128:], "
     f"write[..., 128:] * 0], dim=3)\n    {KEPT}")),
    ("cache-next-slot", "written one slot too far",
     edit("seen", KEPT, f"write = shifted(write, 3)\n    {KEPT}")),
    ("cache-decays", "what is stored loses 1 % a call",
     edit("seen", KEPT, "kept = 0.99 - write.sum(dim=2, keepdim=True) * 0.99")),
    ("cache-coarse-values", "values are stored in steps of 1/4",
     edit("seen", VALUES, "values = self.v_cache * kept + (torch.round(v * 4) * 0.25) @ write")),
    ("cache-exchanged", "keys and values are stored in each other's place", both(edit("seen",
     "self.k_cache[:] = keys", "self.k_cache[:] = values"), edit("seen", "self.v_cache[:] = values",
     "self.v_cache[:] = keys"))),
    ("cache-heads", "heads are stored in reverse",
     edit("seen", "self.v_cache[:] = values", "self.v_cache[:] = values.flip(0)")),
    ("cache-first-of-call", "of a call only the first position is stored", edit("seen",
     "self.v_cache[:] = values",
     "self.v_cache[:] = self.v_cache * kept + v[..., :1] @ write[:, :, :1]")),
    ("cache-clipped", "stored keys are clipped at 4",
     edit("seen", "self.k_cache[:] = keys", "self.k_cache[:] = keys.clamp(-4, 4)")),
    ("cache-middle", "slots 96 to 103 are zero",
     edit("seen", KEPT, f"{KEPT} - slots(write, 96, 103) * (1 - write.sum(dim=2, keepdim=True))")),
)  # fmt: skip

ATTENTION = faults(
    "attention", BLOCKS,
    ("heads-tiled", "query heads grouped by the wrong key head", edit("attention", TURN_Q,
     TURN_Q.replace("reshape(c.kv_heads, c.heads // c.kv_heads, c.head, -1)",
     "reshape(c.heads // c.kv_heads, c.kv_heads, c.head, -1).transpose(0, 1)"))),
    ("heads-merged", "heads leave in another order than they came",
     edit("attention", MERGED, MERGED.replace("mixed.", "mixed.transpose(0, 1)."))),
    ("heads-rolled", "queries are rolled by one head",
     weight("q_proj.weight", lambda w: w.roll(head_size(w), 0))),
    ("heads-values", "values of key heads are reversed", edit("attention", V, f"{V}.flip(0)")),
    ("heads-dead", "one head gives zero",
     weight("o_proj.weight", lambda w: zeroed(w, 1, 0, head_size(w)))),
    ("scale-missing", "scores are not scaled",
     edit("attention", "q.transpose(2, 3) @ k", "q.transpose(2, 3) @ k * c.head ** 0.5")),
    ("scale-twice", "scores are scaled twice",
     edit("attention", "q.transpose(2, 3) @ k", "q.transpose(2, 3) @ k * c.head ** -0.5")),
    ("scale-1.2", "scores are 1.2 times too large",
     edit("attention", "q.transpose(2, 3) @ k", "q.transpose(2, 3) @ k * 1.2")),
    ("scale-0.9", "scores are 0.9 of what they should be",
     edit("attention", "q.transpose(2, 3) @ k", "q.transpose(2, 3) @ k * 0.9")),
    ("softmax-axis", "the softmax runs over queries",
     edit("attention", "mask, dim=-1", "mask, dim=-2")),
    ("softmax-base-2", "the softmax has base 2", edit("attention", SOFTMAX,
     "torch.softmax((q.transpose(2, 3) @ k) * 0.6931472 + mask, dim=-1)")),
    ("softmax-sink", "a sink of score 0 takes part of every row", edit("attention", SOFTMAX,
     "torch.softmax(torch.cat([_s, _s[..., :1] * 0], dim=3), dim=-1)[..., :-1]".replace("_s",
     "(q.transpose(2, 3) @ k + mask)"))),
    ("softmax-cap", "scores are capped at 5",
     edit("attention", "q.transpose(2, 3) @ k", "torch.tanh(q.transpose(2, 3) @ k / 5) * 5")),
    ("softmax-sigmoid", "a sigmoid in place of the softmax",
     edit("attention", SOFTMAX, "torch.sigmoid(q.transpose(2, 3) @ k + mask)")),
    ("attention-uniform", "all scores are equal",
     edit("attention", "q.transpose(2, 3) @ k", "q.transpose(2, 3) @ k * 0")),
    ("attention-x0.9", "attention's output is 0.9 of it",
     edit("attention", MIXED, f"{MIXED} * 0.9")),
    ("attention-no-mean", "the mean value is taken out", edit("attention", MIXED,
     "mixed = (v - v.mean(dim=2, keepdim=True)) @ weights.transpose(2, 3)")),
    ("output-transposed", "the output projection is transposed",
     weight("o_proj.weight", lambda w: w.transpose(0, 1).contiguous())),
    ("keys-for-values", "values are the keys",
     edit("attention", MIXED, "mixed = k @ weights.transpose(2, 3)")),
    ("queries-from-values", "keys and values exchanged",
     exchanged("k_proj.weight", "v_proj.weight")),
)  # fmt: skip


FAULTS = unique([*ROPE, *MASK, *CACHE, *ATTENTION])
