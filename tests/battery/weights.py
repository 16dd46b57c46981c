"""Faults of weights before conversion, and of a head slice."""

from __future__ import annotations

import torch

from tests.battery.attention import zeroed
from tests.battery.blocks import NORM, unit
from tests.battery.fault import BLOCKS, HEAD, borrowed, edit, faults, unique, weight


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


def _short_mantissa(w: torch.Tensor) -> torch.Tensor:
    """To 3 bits of mantissa, as fp8."""
    mantissa, exponent = torch.frexp(w)
    return torch.ldexp(torch.round(mantissa * 8) / 8, exponent)


_MATRICES = "|".join(f"{n}_proj.weight" for n in ("q", "k", "v", "o", "gate", "up", "down"))

WEIGHTS = faults(
    "weights", BLOCKS,
    ("weights-neighbour-q", "queries of the block before", borrowed("q_proj.weight", "L00")),
    ("weights-neighbour-down", "the down projection of the block before",
     borrowed("down_proj.weight", "L00")),
    ("weights-neighbour-norm", "the network's norm of the block before",
     borrowed("ffn_norm.weight", "L00")),
    ("weights-rolled", "up is rolled by one row", weight("up_proj.weight", lambda w: w.roll(1, 0))),
    ("weights-reversed", "columns of down are reversed",
     weight("down_proj.weight", lambda w: w.flip(1))),
    ("weights-zero-rows", "rows 16 to 31 of gate are zero",
     weight("gate_proj.weight", lambda w: zeroed(w, 0, w.shape[0] // 3, w.shape[0] // 3))),
    ("weights-zero-columns", "an eighth of the value's columns is zero",
     weight("v_proj.weight", lambda w: zeroed(w, 1, 0, w.shape[1] // 8))),
    ("weights-v-0.9", "values times 0.9", weight("v_proj.weight", lambda w: w * 0.9)),
    ("weights-k-1.3", "keys times 1.3", weight("k_proj.weight", lambda w: w * 1.3)),
    ("weights-clipped", "all matrices are clipped at 2.5 deviations",
     weight(_MATRICES, lambda w: _clipped(w, 2.5))),
    ("weights-4-bits", "all matrices are rounded to 4 bits before the build",
     weight(_MATRICES, lambda w: _rounded(w, 4))),
    ("weights-4-bits-down", "down is rounded to 4 bits before the build",
     weight("down_proj.weight", lambda w: _rounded(w, 4))),
    ("weights-3-bit-mantissa", "all matrices are rounded to a mantissa of 3 bits",
     weight(_MATRICES, _short_mantissa)),
    ("weights-small-zero", "magnitudes below a third of a deviation are zero",
     weight(_MATRICES, lambda w: torch.where(w.abs() < w.std() / 3, 0.0, w))),
    ("weights-interleaved", "queries and keys have the file's own row order",
     weight("q_proj.weight|k_proj.weight", _interleaved)),
    ("weights-key-interleaved", "keys have the file's own row order",
     weight("k_proj.weight", _interleaved)),
    ("weights-negated-row", "the largest row of down is negated", weight("down_proj.weight",
     lambda w: w * torch.where(w.square().sum(1, keepdim=True) == w.square().sum(1).max(), -1.0,
     1.0))),
    ("weights-noise", "noise of 10 % on up", weight("up_proj.weight",
     lambda w: w + 0.1 * w.std() * torch.randn(w.shape,
     generator=torch.Generator().manual_seed(3)))),
)  # fmt: skip

HEADS = faults(
    "heads", HEAD,
    ("head-no-norm", "no final norm", edit("forward", "self.norm(x)", "x")),
    ("head-no-weight", "the final norm has no weight", weight("norm.weight", torch.ones_like)),
    ("head-squares", "the final norm squares before it scales",
     edit("forward", NORM, unit("x"), "norm"), {"fp16": True, "cause": "fp16"}),
    ("head-layer-norm", "LayerNorm in place of RMSNorm", edit("forward", NORM,
     "scaled_to_unit(x - x.mean(dim=1, keepdim=True), self.root_epsilon)", "norm")),
    ("head-rolled", "rows are one token off", weight("head.weight", lambda w: w.roll(1, 0))),
    ("head-neighbour", "the rows of slice 0", borrowed("head.weight", "head.0")),
    ("head-reversed", "channels are reversed", weight("head.weight", lambda w: w.flip(1))),
    ("head-last-rows", "the last quarter of the rows is zero",
     weight("head.weight", lambda w: zeroed(w, 0, w.shape[0] * 3 // 4, w.shape[0] // 4))),
    ("head-cap", "a soft cap of 15",
     edit("forward", "self.head(self.norm(x))", "torch.tanh(self.head(self.norm(x)) / 15) * 15")),
    ("head-x0.9", "logits times 0.9",
     edit("forward", "self.head(self.norm(x))", "self.head(self.norm(x)) * 0.9")),
    ("head-x1.2", "logits times 1.2",
     edit("forward", "self.head(self.norm(x))", "self.head(self.norm(x)) * 1.2")),
    ("head-bias", "1 added to every logit",
     edit("forward", "self.head(self.norm(x))", "self.head(self.norm(x)) + 1")),
    ("head-swapped", "the first and the second half of the rows exchanged",
     weight("head.weight", lambda w: w.roll(w.shape[0] // 2, 0))),
    ("head-T-1", "wrong at T = 1", edit("forward", "self.head(self.norm(x))",
     "self.head(self.norm(x)) * (1 + 0.3 * between(length(x), 1, 1))")),
    ("head-4-bits", "rows are rounded to 4 bits before the build",
     weight("head.weight", lambda w: _rounded(w, 4))),
    ("head-norm-0.9", "the final norm's weights times 0.9",
     weight("norm.weight", lambda w: w * 0.9)),
)  # fmt: skip

FAULTS = unique([*WEIGHTS, *HEADS])
