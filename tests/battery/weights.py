"""Faults of weights before conversion, and of a head slice."""

from __future__ import annotations

import torch

from tests.battery.attention import zeroed
from tests.battery.blocks import NORM, unit
from tests.battery.fault import HEAD, Fault, borrowed, edit, unique, weight


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
          weight("gate_proj.weight", lambda w: zeroed(w, 0, w.shape[0] // 3, w.shape[0] // 3))),
    Fault("weights-zero-columns", "weights", "an eighth of the value's columns is zero",
          weight("v_proj.weight", lambda w: zeroed(w, 1, 0, w.shape[1] // 8))),
    Fault("weights-v-0.9", "weights", "values times 0.9",
          weight("v_proj.weight", lambda w: w * 0.9)),
    Fault("weights-k-1.3", "weights", "keys times 1.3", weight("k_proj.weight", lambda w: w * 1.3)),
    Fault("weights-clipped", "weights", "all matrices are clipped at 2.5 deviations",
          weight(_MATRICES, lambda w: _clipped(w, 2.5))),
    Fault("weights-4-bits", "weights", "all matrices are rounded to 4 bits before the build",
          weight(_MATRICES, lambda w: _rounded(w, 4))),
    Fault("weights-4-bits-down", "weights", "down is rounded to 4 bits before the build",
          weight("down_proj.weight", lambda w: _rounded(w, 4))),
    Fault("weights-3-bit-mantissa", "weights", "all matrices are rounded to a mantissa of 3 bits",
          weight(_MATRICES, _short_mantissa)),
    Fault("weights-small-zero", "weights", "magnitudes below a third of a deviation are zero",
          weight(_MATRICES, lambda w: torch.where(w.abs() < w.std() / 3, 0.0, w))),
    Fault("weights-interleaved", "weights", "queries and keys have the file's own row order",
          weight("q_proj.weight|k_proj.weight", _interleaved)),
    Fault("weights-key-interleaved", "weights", "keys have the file's own row order",
          weight("k_proj.weight", _interleaved)),
    Fault("weights-negated-row", "weights", "the largest row of down is negated",
          weight("down_proj.weight", lambda w: w * torch.where(
              w.square().sum(1, keepdim=True) == w.square().sum(1).max(), -1.0, 1.0))),
    Fault("weights-noise", "weights", "noise of 10 % on up",
          weight("up_proj.weight", lambda w: w + 0.1 * w.std() * torch.randn(
              w.shape, generator=torch.Generator().manual_seed(3)))),
]  # fmt: skip

HEADS = [
    Fault("head-no-norm", "heads", "no final norm", edit("forward", "self.norm(x)", "x"), HEAD),
    Fault("head-no-weight", "heads", "the final norm has no weight",
          weight("norm.weight", torch.ones_like), HEAD),
    Fault("head-squares", "heads", "the final norm squares before it scales",
          edit("forward", NORM, unit("x"), "norm"), HEAD, fp16=True, cause="fp16"),
    Fault("head-layer-norm", "heads", "LayerNorm in place of RMSNorm",
          edit("forward", NORM,
               "scaled_to_unit(x - x.mean(dim=1, keepdim=True), self.root_epsilon)", "norm"), HEAD),
    Fault("head-rolled", "heads", "rows are one token off",
          weight("head.weight", lambda w: w.roll(1, 0)), HEAD),
    Fault("head-neighbour", "heads", "the rows of slice 0",
          borrowed("head.weight", "head.0"), HEAD),
    Fault("head-reversed", "heads", "channels are reversed",
          weight("head.weight", lambda w: w.flip(1)), HEAD),
    Fault("head-last-rows", "heads", "the last quarter of the rows is zero",
          weight("head.weight", lambda w: zeroed(w, 0, w.shape[0] * 3 // 4, w.shape[0] // 4)),
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

FAULTS = unique([*WEIGHTS, *HEADS])
