"""Rewritings that compute the same: every gate should pass them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.battery.attention import MERGED, MIXED, SOFTMAX, TURN_K, TURN_Q, V, rope
from tests.battery.blocks import FED, NORM, SILU, X, norm
from tests.battery.fault import BLOCKS, HEAD, Fault, Modules, Put, both, edit, unique, weight
from tests.battery.host import masks
from tests.battery.interface import scheme

_ZAYA, _EXPERTS = ("zaya:L02",), ("zaya:L01",)
_GEMMA = ("gemma4:L00.attn", "gemma4:L05.attn")
_PACKS = ("gemma4:L00.p0", "gemma4:L00.p7")
_S = "(q.transpose(2, 3) @ k + mask)"


def _right(module: nn.Module, _: Modules) -> None:
    """As it is."""


def _benign(name: str, what: str, put: Put, shards: tuple[str, ...] = BLOCKS, **more: Any) -> Fault:
    return Fault(name, "benign", what, put, shards, benign=True, **more)


def _permuted_hidden(module: nn.Module, _: Modules) -> None:
    """The network's inner channels in another order, in all three matrices."""
    gate, up, down = (module.get_submodule(f"{n}_proj") for n in ("gate", "up", "down"))
    order = torch.randperm(gate.weight.shape[0], generator=torch.Generator().manual_seed(1))
    for part, axis in ((gate, 0), (up, 0), (down, 1)):
        part.weight = nn.Parameter(part.weight.index_select(axis, order), requires_grad=False)


def _folded(module: Any, _: Modules) -> None:
    """The norms' weights in the projections that follow."""
    for scale, parts in ((module.attention_norm, "qkv"), (module.ffn_norm, ("gate", "up"))):
        for name in parts:
            part = module.get_submodule(f"{name}_proj")
            folded = part.weight * scale.weight.reshape(1, -1, 1, 1)
            part.weight = nn.Parameter(folded, requires_grad=False)
        scale.weight = nn.Parameter(torch.ones_like(scale.weight), requires_grad=False)


def _folded_head(module: Any, _: Modules) -> None:
    folded = module.head.weight * module.norm.weight.reshape(1, -1, 1, 1)
    module.head.weight = nn.Parameter(folded, requires_grad=False)
    module.norm.weight = nn.Parameter(torch.ones_like(module.norm.weight), requires_grad=False)


def _fused(module: Any, _: Modules) -> None:
    """Queries, keys and values of one convolution."""
    from pytest_ane.models.families._ane import pointwise

    parts = [module.q_proj, module.k_proj, module.v_proj]
    module.sizes = [len(part.weight) for part in parts]
    module.qkv_proj = pointwise(torch.cat([p.weight.detach() for p in parts])[:, :, 0, 0])
    for name in "qkv":
        delattr(module, f"{name}_proj")
    edit("attention", f"q = {TURN_Q}",
         "pq, pk, pv = torch.split(self.qkv_proj(h), self.sizes, dim=1)\n    "
         "q = rotate(pq.reshape(c.kv_heads, c.heads // c.kv_heads, c.head, -1), cos, sin)",
         )(module, _)  # fmt: skip
    edit("attention", "self.k_proj(h)", "pk")(module, _)
    edit("attention", "self.v_proj(h)", "pv")(module, _)


def _scaled_pair(first: str, second: str, factor: float) -> Put:
    return both(weight(f"{first}.weight", lambda w: w * factor),
                weight(f"{second}.weight", lambda w: w / factor))  # fmt: skip


def _experts_exchanged(module: Any, _: Modules) -> None:
    """Experts 0 and 1 and their places in the router exchanged."""
    order = [1, 0, *range(2, len(module.experts) + 1)]
    module.experts = nn.ModuleList(module.experts[i] for i in order[:-1])
    last = module.router.last
    last.weight = nn.Parameter(last.weight[order], requires_grad=False)
    balancing = module.router.balancing
    module.router.balancing = nn.Parameter(balancing[:, order], requires_grad=False)


FAULTS = unique([
    _benign("right", "as it is", _right, (
        *BLOCKS, *HEAD, "smollm2:L07", "zaya:L00", *_ZAYA, *_EXPERTS, "zaya:L03", *_GEMMA, *_PACKS,
        "gemma4:head.0")),
    _benign("scale-on-scores", "scores are scaled, not queries", both(
        weight("q_proj.weight", lambda w: w * 8),
        edit("attention", "q.transpose(2, 3) @ k", "(q.transpose(2, 3) @ k) * 0.125"))),
    _benign("scale-on-keys", "keys are scaled, not queries", _scaled_pair(
        "q_proj", "k_proj", 8.0)),
    _benign("scale-shared", "queries and keys are scaled alike", _scaled_pair(
        "q_proj", "k_proj", 2.0)),
    _benign("up-down", "up is doubled, down halved", _scaled_pair("up_proj", "down_proj", 2.0)),
    _benign("value-output", "values are halved, the output doubled", _scaled_pair(
        "v_proj", "o_proj", 0.5)),
    _benign("norm-folded", "the norms' weights are in the projections", _folded),
    _benign("head-folded", "the final norm's weights are in the projection", _folded_head, HEAD),
    _benign("qkv-fused", "queries, keys and values are one convolution", _fused),
    _benign("hidden-permuted", "inner channels of the network in another order", _permuted_hidden),
    _benign("silu-sigmoid", "SiLU as x sigmoid(x)",
            edit("forward", SILU, "(lambda g: g * torch.sigmoid(g))(self.gate_proj(h))")),
    _benign("silu-tanh", "SiLU by tanh", edit(
        "forward", SILU,
        "(lambda g: g * 0.5 * (1 + torch.tanh(g * 0.5)))(self.gate_proj(h))")),
    _benign("up-first", "the product in the other order", edit(
        "forward", FED, f"self.up_proj(h) * {SILU}")),
    _benign("softmax-by-hand", "exp(s - max) / sum", edit(
        "attention", SOFTMAX, f"(lambda e: e / e.sum(dim=-1, keepdim=True))(torch.exp({_S} - "
        f"{_S}.amax(dim=-1, keepdim=True)))")),
    _benign("softmax-shifted", "the softmax of scores minus their largest", edit(
        "attention", SOFTMAX, f"torch.softmax({_S} - {_S}.amax(dim=-1, keepdim=True), dim=-1)")),
    _benign("mask-x3", "the mask is -30,000", edit("attention", "+ mask,", "+ mask * 3,")),
    _benign("host-mask-x3", "the host's mask is -30,000", masks(3), BLOCKS[:2], place="host"),
    _benign("engine", "palettes by coremltools' own engine", scheme(engine="coremltools"),
            (*BLOCKS[:1], *HEAD), place="scheme"),
    _benign("mask-where", "masked scores are replaced", edit(
        "attention", "q.transpose(2, 3) @ k + mask",
        "torch.where(mask < -1, mask, q.transpose(2, 3) @ k)")),
    _benign("mask-first", "the mask is added first", edit(
        "attention", "q.transpose(2, 3) @ k + mask", "mask + q.transpose(2, 3) @ k")),
    _benign("rope-by-hand", "RoPE half by half", rope(
        "(lambda x: torch.cat([x.chunk(2, 2)[0] * cos.chunk(2, 2)[0] - x.chunk(2, 2)[1] * "
        "sin.chunk(2, 2)[0], x.chunk(2, 2)[1] * cos.chunk(2, 2)[1] + x.chunk(2, 2)[0] * "
        "sin.chunk(2, 2)[1]], dim=2))({})")),
    _benign("rope-negated-twice", "queries and keys both times -1", rope("-rotate({}, cos, sin)")),
    _benign("heads-expanded", "keys are repeated for their queries", edit(
        "attention", "weights = torch.softmax(", "k = k.expand(-1, c.heads // c.kv_heads, -1, -1)"
        "\n    weights = torch.softmax(")),
    _benign("mixed-transposed", "weights times values, then transposed", edit(
        "attention", MIXED, "mixed = (weights @ v.transpose(2, 3)).transpose(2, 3)")),
    _benign("merged-by-heads", "heads are joined by concatenation", edit(
        "attention", MERGED, "torch.cat([mixed[i : i + 1].reshape(1, "
        "c.heads // c.kv_heads * c.head, -1, 1) for i in range(c.kv_heads)], dim=1)")),
    _benign("values-late", "values are computed before keys", both(
        edit("attention", f"q = {TURN_Q}", f"v = {V}\n    q = {TURN_Q}"),
        edit("attention", f"k = {TURN_K}\n    v = {V}", f"k = {TURN_K}"))),
    _benign("norm-root", "divided by a root", norm(
        "(lambda s: s / torch.sqrt((s * s).mean(dim=1, keepdim=True) + (self.root_epsilon / "
        "x.abs().amax(dim=1, keepdim=True).clamp(min=6.2e-5)) ** 2))"
        "(x / x.abs().amax(dim=1, keepdim=True).clamp(min=6.2e-5))")),
    _benign("norm-mean-by-sum", "a sum over C in place of the mean", norm(
        "(lambda s: s * torch.rsqrt((s * s / x.shape[1]).sum(dim=1, keepdim=True) + "
        "(self.root_epsilon / x.abs().amax(dim=1, keepdim=True).clamp(min=6.2e-5)) ** 2))"
        "(x / x.abs().amax(dim=1, keepdim=True).clamp(min=6.2e-5))")),
    _benign("norm-halved", "states are halved before the norm, epsilon with them", norm(
        "scaled_to_unit(x * 0.5, self.root_epsilon * 0.5)")),
    _benign("norm-weight-first", "the weight is multiplied last", norm(
        f"(self.weight * {NORM}) / self.weight", "attention_norm")),
    _benign("residual-order", "the residual is added last", edit(
        "forward", "return x + fed", "return fed + x")),
    _benign("residual-apart", "the contribution is summed before it is added", both(
        edit("forward", X, f"x0 = x\n    {X}"),
        edit("forward", "return x + fed", "return x0 + ((x - x0) + fed)"))),
    _benign("cache-where", "slots are replaced by a choice", edit(
        "seen", "keys = self.k_cache * kept + k @ write",
        "keys = torch.where(kept.expand(k.shape[0], 1, k.shape[2], -1) > 0.5, self.k_cache * 1, "
        "k @ write)")),
    _benign("down-in-two", "down in two halves that are added", edit(
        "forward", f"self.down_proj({FED})",
        f"(lambda a, w, n: F.conv2d(a[:, :n], w[:, :n]) + F.conv2d(a[:, n:], w[:, n:]))({FED}, "
        "self.down_proj.weight, self.down_proj.weight.shape[1] // 2)"), BLOCKS[:1]),
    _benign("queries-by-product", "queries as a matrix product", edit(
        "attention", "self.q_proj(h)",
        "(self.q_proj.weight[:, :, 0, 0] @ h[:, :, :, 0])"), BLOCKS[:1]),
    _benign("zaya-experts-exchanged", "two experts and their routes are exchanged",
            _experts_exchanged, _EXPERTS),
    _benign("zaya-softmax", "the router's softmax by hand", edit(
        "forward", "torch.softmax(self.last(inner) + self.balancing, dim=1)",
        "(lambda e: e / e.sum(dim=1, keepdim=True))(torch.exp(self.last(inner) + self.balancing - "
        "(self.last(inner) + self.balancing).amax(dim=1, keepdim=True)))", "router"), _EXPERTS),
    _benign("zaya-summed", "experts are summed from the last on", edit(
        "mixed", "mixed = weighted[0]", "weighted = weighted[::-1]\n    mixed = weighted[0]"),
        _EXPERTS),
    _benign("zaya-fc", "the experts' first matrices doubled in up, the second halved", both(
        *(weight(f"experts.{n}.fc1.weight", lambda w: torch.cat(
            [w[: len(w) // 2], w[len(w) // 2 :] * 2])) for n in range(8)),
        *(weight(f"experts.{n}.fc2.weight", lambda w: w * 0.5) for n in range(8))), _EXPERTS),
    _benign("zaya-merge", "the residual is merged in another order", edit(
        "forward", "x * self.residual_scale + self.residual_bias + given * self.scale + self.bias",
        "given * self.scale + (self.bias + self.residual_bias) + x * self.residual_scale",
        "merge"), _ZAYA),  # Of experts, coremltools fuses it into a batch_norm of two types.
    _benign("zaya-scale-late", "scores are scaled, not queries", both(
        edit("forward", " * c.head**-0.5", ""),
        edit("forward", "q.transpose(2, 3) @ keys.transpose(2, 3)",
             "(q.transpose(2, 3) @ keys.transpose(2, 3)) * c.head**-0.5")), _ZAYA),
    _benign("gemma-gelu", "GELU written out", edit(
        "summed", "activated(self.gate(h), self.activation)",
        "(lambda g: g * 0.5 * (1 + torch.tanh(0.7978845608 * (g + 0.044715 * g * g * g))))"
        "(self.gate(h))", "{pack}"), _PACKS),
    _benign("gemma-weight-late", "weights are on the product, not on the gate", both(
        edit("summed", "weighted(activated(self.gate(h), self.activation), weights)",
             "activated(self.gate(h), self.activation)", "{pack}"),
        edit("summed", "gate * self.up(h)", "weighted(gate * self.up(h), weights)", "{pack}")),
            _PACKS),
    _benign("gemma-softmax", "the softmax of shifted scores", edit(
        "forward", "torch.softmax(q.transpose(2, 3) @ keys + mask, dim=-1)",
        "torch.softmax((q.transpose(2, 3) @ keys + mask) * 1.0, dim=-1)"), _GEMMA),
    _benign("gemma-mixed", "weights times values, then transposed", edit(
        "forward", "(values @ weights.transpose(2, 3))",
        "(weights @ values.transpose(2, 3)).transpose(2, 3)"), _GEMMA),
])  # fmt: skip
