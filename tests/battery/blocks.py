"""Faults of a Llama block besides attention: network, norms, residual path, lengths."""

from __future__ import annotations

import torch

from tests.battery.attention import SOFTMAX
from tests.battery.fault import Fault, Put, both, edit, exchanged, unique, weight

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

NORMS = [
    Fault("norm-squares", "norms", "squares before it scales: they overflow fp16 above 256",
          norm(unit("x")), fp16=True, cause="fp16"),
    Fault("norm-squares-x8", "norms", "x is scaled by 8 before its squares: above 32",
          norm(unit("(x * 8)")), fp16=True, cause="fp16"),
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
    Fault("norm-plus-1", "norms", "1 added to the weight",
          norm(f"(self.weight + 1) / self.weight * {NORM}")),
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
    Fault("norm-clipped-50", "norms", "states are clipped at 50 before their norm",
          norm("scaled_to_unit(x.clamp(-50, 50), self.root_epsilon)", "ffn_norm")),
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
          edit("forward", X, "x = x + 0 * self.attention(self.attention_norm(x), cos, sin, mask, "
               "write)")),
    Fault("channels-plus-0.2", "residual", "0.2 added to every channel",
          edit("forward", "return x + fed", "return x + fed + 0.2")),
    Fault("channels-shifted", "residual", "the contribution is one channel off",
          edit("forward", "return x + fed", "return x + shifted(fed, 1)")),
    Fault("channels-last", "residual", "the last 16 channels get nothing",
          edit("forward", "return x + fed", "return x + fed * (torch.arange(fed.shape[1]) < "
               "fed.shape[1] - 16).to(fed.dtype).reshape(1, -1, 1, 1)")),
    Fault("output-clipped", "residual", "the output is clipped at 20",
          edit("forward", "return x + fed", "return (x + fed).clamp(-20, 20)")),
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
          edit("attention", SOFTMAX, "torch.cat([write[:, :, :1].expand(c.kv_heads, c.heads // "
               "c.kv_heads, 1, -1), _s[:, :, 1:]], dim=2)".replace("_s", SOFTMAX))),
]  # fmt: skip


FAULTS = unique([*FEED_FORWARD, *NORMS, *RESIDUAL, *LENGTH])
