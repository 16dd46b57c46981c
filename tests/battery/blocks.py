"""Faults of a Llama block besides attention: network, norms, residual path, lengths."""

from __future__ import annotations

import torch

from tests.battery.attention import SOFTMAX
from tests.battery.fault import BLOCKS, Fault, Put, both, edit, exchanged, faults, unique, weight

SILU = "nn.functional.silu(self.gate_proj(h))"
FED = f"{SILU} * self.up_proj(h)"
X = "x = x + self.attention(self.attention_norm(x), cos, sin, mask, write)"
NORM = "scaled_to_unit(x, self.root_epsilon)"


def gain(factor: str) -> Put:
    """The block's contribution times a factor."""
    return both(
        edit("forward", X, f"x0 = x\n    {X}"),
        edit("forward", "return x + fed", f"return x0 + (x - x0 + fed) * ({factor})"),
    )


def norm(new: str, at: str = "attention_norm|ffn_norm") -> Put:
    """Another formula in place of the unit norm."""
    return edit("forward", NORM, new, at)


def unit(x: str) -> str:
    return f"{x} * torch.rsqrt(({x} * {x}).mean(dim=1, keepdim=True) + self.root_epsilon ** 2)"


def _activation(name: str, formula: str, what: str) -> Fault:
    return Fault(name, "feed-forward", what,
                 edit("forward", SILU, f"(lambda x: {formula})(self.gate_proj(h))"))  # fmt: skip


FEED_FORWARD = [
    _activation("gelu", "F.gelu(x)", "GELU in place of SiLU"),
    _activation("gelu-tanh", "F.gelu(x, approximate='tanh')", "GELU by tanh in place of SiLU"),
    _activation("quick-gelu", "x * torch.sigmoid(1.702 * x)", "quick GELU in place of SiLU"),
    _activation("hard-swish", "x * (x + 3).clamp(0, 6) / 6", "hard swish in place of SiLU"),
    _activation("relu", "torch.relu(x)", "ReLU in place of SiLU"),
    _activation("sigmoid", "torch.sigmoid(x)", "a sigmoid in place of SiLU"),
    _activation("mish", "x * torch.tanh(F.softplus(x))", "Mish in place of SiLU"),
    _activation("swish-1.25", "x * torch.sigmoid(1.25 * x)", "SiLU with a factor of 1.25 inside"),
    _activation("silu-clipped", "F.silu(x.clamp(-2, 2))", "gates clipped at 2"),
    Fault("gate-up", "feed-forward", "gate and up exchanged",
          exchanged("gate_proj.weight", "up_proj.weight")),
    Fault("gate-missing", "feed-forward", "no gate", edit("forward", f"{SILU} * ", "")),
    Fault("up-missing", "feed-forward", "no up projection",
          edit("forward", FED, SILU)),
    Fault("silu-both", "feed-forward", "SiLU on up as well",
          edit("forward", "* self.up_proj(h)", "* F.silu(self.up_proj(h))")),
    Fault("silu-late", "feed-forward", "SiLU of the product",
          edit("forward", FED, "F.silu(self.gate_proj(h) * self.up_proj(h))")),
    Fault("up-plus-1", "feed-forward", "1 added to up",
          edit("forward", "* self.up_proj(h)", "* (self.up_proj(h) + 1)")),
    Fault("feed-parallel", "feed-forward", "the network reads what entered the block",
          edit("forward", X + "\n        h = self.ffn_norm(x)".replace("        ", "    "),
               "h = self.ffn_norm(x)\n    " + X)),
    Fault("feed-x1.1", "feed-forward", "the network's output times 1.1",
          edit("forward", "return x + fed", "return x + fed * 1.1")),
    Fault("feed-negated", "feed-forward", "the network's output is subtracted",
          edit("forward", "return x + fed", "return x - fed")),
    Fault("feed-unnormed", "feed-forward", "up reads states without their norm's weight",
          edit("forward", "* self.up_proj(h)", "* self.up_proj(h / self.ffn_norm.weight)")),
]  # fmt: skip

NORMS = faults(
    "norms", BLOCKS,
    ("norm-squares", "squares before it scales: they overflow fp16 above 256", norm(unit("x")),
     {"fp16": True, "cause": "fp16"}),
    ("norm-squares-x8", "x is scaled by 8 before its squares: above 32", norm(unit("(x * 8)")),
     {"fp16": True, "cause": "fp16"}),
    ("norm-sum", "a sum of squares that is divided afterwards overflows",
     norm("x * torch.rsqrt((x * x * 16).sum(dim=1, keepdim=True) / (16 * x.shape[1]) + "
     "self.root_epsilon ** 2)"), {"fp16": True, "cause": "fp16"}),
    ("norm-epsilon-0.01", "epsilon is 0.01", norm("scaled_to_unit(x, 0.1)")),
    ("norm-epsilon-outside", "epsilon is added to the root, 0.03",
     norm("(x / (1 / torch.rsqrt((x * x).mean(dim=1, keepdim=True) + 1e-5) + 0.03))")),
    ("norm-missing", "attention reads states that are not normed",
     edit("forward", "self.attention_norm(x)", "x")),
    ("norm-feed-missing", "the network reads states that are not normed",
     edit("forward", "self.ffn_norm(x)", "x")),
    ("norm-no-weight", "the attention norm has no weight",
     weight("attention_norm.weight", torch.ones_like)),
    ("norm-feed-no-weight", "the network's norm has no weight",
     weight("ffn_norm.weight", torch.ones_like)),
    ("norm-exchanged", "the two norms are exchanged",
     exchanged("attention_norm.weight", "ffn_norm.weight")),
    ("norm-layer", "LayerNorm: the mean is taken out",
     norm("scaled_to_unit(x - x.mean(dim=1, keepdim=True), self.root_epsilon)")),
    ("norm-plus-1", "1 added to the weight", norm(f"(self.weight + 1) / self.weight * {NORM}")),
    ("norm-mean-size", "the mean magnitude in place of the root mean square",
     norm("(x / (x.abs().mean(dim=1, keepdim=True) + 1e-5))")),
    ("norm-largest", "divided by the largest magnitude only",
     norm("(x / x.abs().amax(dim=1, keepdim=True) * 4)")),
    ("norm-half", "the mean square of half of the channels",
     norm("(x * torch.rsqrt((x[:, ::2] * x[:, ::2]).mean(dim=1, keepdim=True) + 1e-5))")),
    ("norm-over-T", "the mean square is of all positions of the call",
     norm("(x * torch.rsqrt((x * x).mean(dim=(1, 2), keepdim=True) + 1e-5))")),
    ("norm-clipped", "states are clipped at 100 before their norm",
     norm("scaled_to_unit(x.clamp(-100, 100), self.root_epsilon)", "attention_norm")),
    ("norm-clipped-50", "states are clipped at 50 before their norm",
     norm("scaled_to_unit(x.clamp(-50, 50), self.root_epsilon)", "ffn_norm")),
    ("norm-shifted", "the norm's weights are one channel off",
     weight("attention_norm.weight", lambda w: w.roll(1, 1))),
)  # fmt: skip

RESIDUAL = faults(
    "residual", BLOCKS,
    ("residual-attention", "attention's residual path is dropped",
     edit("forward", "x = x + self.attention(", "x = self.attention(")),
    ("residual-feed", "the network's residual path is dropped",
     edit("forward", "return x + fed", "return fed")),
    ("residual-doubled", "the residual path is doubled",
     edit("forward", "return x + fed", "return x * 2 + fed")),
    ("residual-0.9", "the residual path times 0.9",
     edit("forward", "return x + fed", "return x * 0.9 + fed")),
    ("residual-normed", "the normed states are carried on",
     edit("forward", "return x + fed", "return h + fed")),
    ("output-doubled", "the output is doubled",
     edit("forward", "return x + fed", "return (x + fed) * 2")),
    ("output-0.9", "the output times 0.9",
     edit("forward", "return x + fed", "return (x + fed) * 0.9")),
    ("contribution-zero", "nothing is added", gain("0")),
    ("contribution-negated", "the contribution is subtracted", gain("-1")),
    ("contribution-x1.5", "the contribution times 1.5", gain("1.5")),
    ("contribution-x0.95", "the contribution times 0.95", gain("0.95")),
    ("contribution-x1.04", "the contribution times 1.04", gain("1.04")),
    ("attention-no-add", "attention's output is left out", edit("forward", X,
     "x = x + 0 * self.attention(self.attention_norm(x), cos, sin, mask, write)")),
    ("channels-plus-0.2", "0.2 added to every channel",
     edit("forward", "return x + fed", "return x + fed + 0.2")),
    ("channels-shifted", "the contribution is one channel off",
     edit("forward", "return x + fed", "return x + shifted(fed, 1)")),
    ("channels-last", "the last 16 channels get nothing", edit("forward", "return x + fed",
     "return x + fed * (torch.arange(fed.shape[1]) < "
     "fed.shape[1] - 16).to(fed.dtype).reshape(1, -1, 1, 1)")),
    ("output-clipped", "the output is clipped at 20",
     edit("forward", "return x + fed", "return (x + fed).clamp(-20, 20)")),
)  # fmt: skip

LENGTH = faults(
    "flexible length", BLOCKS,
    ("T-1", "wrong at T = 1", gain("1 + 0.5 * between(length(x), 1, 1)")),
    ("T-not-1", "wrong at every T but 1", gain("1 + 0.5 * between(length(x), 2, 4096)")),
    ("T-2-to-4", "wrong at T = 2 to 4", gain("1 + 0.5 * between(length(x), 2, 4)")),
    ("T-3", "wrong at T = 3", gain("1 - 0.5 * between(length(x), 3, 3)")),
    ("T-17-to-31", "wrong at T = 17 to 31", gain("1 + 0.5 * between(length(x), 17, 31)")),
    ("T-40-to-63", "wrong at T = 40 to 63", gain("1 + 0.5 * between(length(x), 40, 63)")),
    ("T-64", "wrong at the largest T", gain("1 + 0.5 * between(length(x), 64, 64)")),
    ("position-128", "wrong from position 128 on",
     gain("1 + 0.2 * between(places(write), 128, 4096)")),
    ("position-250", "wrong from position 250 on",
     gain("1 + 0.5 * between(places(write), 250, 4096)")),
    ("position-0", "wrong at position 0 only", gain("1 + 0.5 * between(places(write), 0, 0)")),
    ("position-odd", "wrong in slots 33 to 63", gain("1 + 0.2 * between(places(write), 33, 63)")),
    ("call-first", "the first position of a call sees only itself", edit("attention", SOFTMAX,
     "torch.cat([write[:, :, :1].expand(c.kv_heads, c.heads // "
     "c.kv_heads, 1, -1), _s[:, :, 1:]], dim=2)".replace("_s", SOFTMAX))),
)  # fmt: skip


FAULTS = unique([*FEED_FORWARD, *NORMS, *RESIDUAL, *LENGTH])
