"""Kinds with states: a decoder, a ring of keys, a causal convolution, a recurrence, a chat."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.battery.brought import damage
from tests.battery.brought.kind import (
    F16,
    Array,
    Brought,
    Kind,
    Sequence_,
    angles,
    ct,
    positioned,
    rms,
    turned,
)
from tests.battery.brought.plain import flaws

C, HEADS, KV, D, SLOTS = 64, 4, 2, 16, 32


class Attention(Brought):
    """Grouped attention over a cache of keys and values, behind a norm and beside the residual."""

    slots, rotated = SLOTS, True

    def build(self) -> None:
        self.q, self.k = (self.linear(C, n * D, bias=0.3, scale=1.5) for n in (HEADS, KV))
        self.v, self.o = self.linear(C, KV * D, bias=0.3), self.linear(HEADS * D, C)
        self.gain = self.weight(C, scale=0.3, mean=1.0)
        self.state("keys", 1, self.slots, KV * D)
        self.state("values", 1, self.slots, KV * D)
        cos, sin = angles(D, self.slots + 1)
        if self.has("RoPE stands still from 16 on"):
            cos[16:], sin[16:] = cos[16], sin[16]
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)
        self.register_buffer("at", torch.arange(self.slots))
        if self.has("q and o exchanged"):
            self.q.weight.data, self.o.weight.data = self.o.weight.data, self.q.weight.data
        if self.has("bias of v missing"):
            self.v.bias.data.zero_()

    def project(self, x: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries `[1, heads, T, D]`, keys and values `[1, T, KV D]`, turned to position p."""
        t = x.shape[1]
        x = x if self.has("norm missing") else rms(x, self.gain)
        q, k, v = self.q(x).reshape(1, t, HEADS, D), self.k(x).reshape(1, t, KV, D), self.v(x)
        if self.rotated:
            cos, sin = self.cos[p : p + t, None], self.sin[p : p + t, None]
            how = {"RoPE by pairs": "pairs"}.get(self.wrong, "")
            late = p + 1 if self.has("queries turned one late") else p
            q = turned(q, self.cos[late : late + t, None], self.sin[late : late + t, None], how)
            k = turned(k, cos, sin, "sign" if self.has("keys turn the other way") else how)
        return q.transpose(1, 2), k.reshape(1, t, KV * D), v

    def attend(self, q: Tensor, bias: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """What heads `[1, heads, T, D]` see under `bias` of `[T, slots]`."""
        if self.has("keys and values exchanged"):
            keys, values = values, keys
        k, v = (y.reshape(1, -1, KV, D).transpose(1, 2) for y in (keys, values))
        if self.has("heads grouped by turns"):
            k, v = k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1)
        else:
            k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        scores = q @ k.transpose(-1, -2) * (1.0 if self.has("scale missing") else D**-0.5) + bias
        y = torch.softmax(scores, -1) @ v
        y = self.o(y.transpose(1, 2).reshape(1, -1, HEADS * D))
        return y * 1.02 if self.has("gain 1.02 of what is added") else y


def _at(condition: Tensor) -> Tensor:
    return condition.float()


class Decoder(Attention):
    """One token a call, written at `pos`, under the caller's causal mask `[1, 1, 32]`."""

    def forward(self, x: Tensor, pos: Tensor, mask: Tensor) -> Tensor:
        p = pos[0]
        q, k, v = self.project(x, p)
        if self.has("wiped at 16"):
            self.keys[:, :] = self.keys * _at(pos != 16)
            self.values[:, :] = self.values * _at(pos != 16)
        if self.has("values fade"):
            self.values[:, :] = self.values * 0.97
        old_keys, old_values = self.keys * 1.0, self.values * 1.0
        at = p
        if self.has("never written beyond 15"):
            at = torch.clamp(pos, max=15)[0]
        if self.has("last slot never written"):
            at = torch.clamp(pos, max=30)[0]
        late = torch.clamp(pos + 1, max=31)[0] if self.has("values one slot late") else at
        self.keys[:, at : at + 1] = k
        if not self.has("values never written"):
            self.values[:, late : late + 1] = v
        keys, values = self.keys, self.values
        if self.has("sees itself a call late"):
            keys, values = old_keys, old_values
        hidden = {
            "slot 13 is never seen": lambda: _at(self.at == 13),
            "sees the last 8 alone": lambda: _at(self.at <= pos - 8),
            "first slot lost from 16 on": lambda: _at(self.at == 0) * _at(pos > 15),
            "first position masked": lambda: _at(self.at == 0) * _at(pos > 0),
            "slots 20 to 23 are lost": lambda: _at(self.at >= 20) * _at(self.at < 24),
        }.get(self.wrong)
        bias = mask * 0 if self.has("mask ignored") else mask
        if hidden:
            bias = bias + hidden() * -1e4
        if self.has("mask one early"):
            bias = bias + _at(self.at == pos) * _at(pos > 0) * -1e4
        y = self.attend(q, bias, keys, values)
        if self.has("half as much from 24 on"):
            y = y * (1 - 0.5 * _at(pos > 23))
        return x + y


def _causal(p: int, slots: int = SLOTS) -> Array:
    return np.where(np.arange(slots) <= p, 0, -1e4).astype(F16)[None, None]


def _decoded(rng: np.random.Generator, few: bool = False) -> list[Sequence_]:
    """From the beginning to the last slot, and a second sequence on the used state."""
    positions = range(4) if few else [*range(SLOTS), *range(12)]
    return [positioned(rng, C, positions, mask=_causal)]


def _x(*shape: Any) -> Any:
    return ct.TensorType("x", shape, dtype=F16)


POS = ct.TensorType("pos", (1,), dtype=np.int32)

DECODER = Kind(
    "decoder",
    Decoder,
    (
        *flaws("function", "norm missing", "scale missing", "heads grouped by turns",
               "RoPE by pairs", "keys turn the other way", "queries turned one late",
               "mask ignored", "mask one early", "gain 1.02 of what is added"),
        *flaws("weights", "q and o exchanged", "bias of v missing"),
        *flaws("states", "wiped at 16", "values fade", "never written beyond 15",
               "last slot never written", "values one slot late", "values never written",
               "sees itself a call late", "keys and values exchanged", "slot 13 is never seen",
               "slots 20 to 23 are lost", "sees the last 8 alone", "first slot lost from 16 on",
               "first position masked", "RoPE stands still from 16 on",
               "half as much from 24 on"),
        *damage.PALETTES[:4],
        damage.NORM,
    ),
    lambda function, fault: [_x(1, 1, C), POS, ct.TensorType("mask", (1, 1, SLOTS), dtype=F16)],
    {"y": F16},
    lambda rng, function, few: _decoded(rng, few),
    lambda rng: _decoded(rng),
    {"nbits": 6, "granularity": "per_tensor"},
    {"mask": 'kind = "causal-mask"'},
)  # fmt: skip
RING = 16


class Ring(Attention):
    """A window of 16 in a ring: position p is in slot p mod 16; older keys weigh less."""

    slots, rotated = RING, False

    def forward(self, x: Tensor, pos: Tensor) -> Tensor:
        q, k, v = self.project(x, pos[0])
        around = 15 if self.has("wraps at 15") else RING
        slot = torch.remainder(pos, around)
        if self.has("never wraps"):
            slot = torch.clamp(pos, max=RING - 1)
        if self.has("wiped at the wrap"):
            self.keys[:, :] = self.keys * _at(slot != 0)
            self.values[:, :] = self.values * _at(slot != 0)
        at = slot[0]
        old_keys, old_values = self.keys * 1.0, self.values * 1.0
        self.keys[:, at : at + 1] = k
        self.values[:, at : at + 1] = v
        keys, values = self.keys, self.values
        if self.has("sees itself a lap late"):
            keys, values = old_keys, old_values
        filled = _at(self.at <= pos)
        if self.has("filled up to the slot alone"):
            filled = _at(self.at <= slot)
        if self.has("all count as filled"):
            filled = filled * 0 + 1
        if self.has("slot 7 is never seen"):
            filled = filled * _at(self.at != 7)
        if self.has("first slot lost in the second lap"):
            filled = filled * (1 - _at(self.at == 0) * _at(pos > RING))
        age = torch.remainder(slot - self.at + RING, RING).float()
        if self.has("ages without the ring"):
            age = (slot - self.at).abs().float()
        if self.has("window of 8"):
            filled = filled * _at(age < 8)
        slope = 0.2 if not self.has("ages weigh the other way") else -0.2
        return x + self.attend(q, (1 - filled) * -1e4 - slope * age, keys, values)


def _laps(rng: np.random.Generator, few: bool = False) -> list[Sequence_]:
    return [positioned(rng, C, range(4) if few else [*range(40), *range(12)])]


RING_KIND = Kind(
    "ring",
    Ring,
    (
        *flaws("function", "scale missing", "heads grouped by turns", "ages weigh the other way"),
        *flaws("states", "never wraps", "wraps at 15", "wiped at the wrap",
               "sees itself a lap late", "filled up to the slot alone", "all count as filled",
               "slot 7 is never seen", "first slot lost in the second lap",
               "ages without the ring", "window of 8"),
        *damage.PALETTES[:2],
    ),
    lambda function, fault: [_x(1, 1, C), POS],
    {"y": F16},
    lambda rng, function, few: _laps(rng, few),
    lambda rng: _laps(rng),
    {"nbits": 4, "granularity": "per_grouped_channel", "group_size": 8},
)  # fmt: skip
N, T, TAIL = 32, 4, 3


class Conv(Brought):
    """A gated causal convolution of four taps in depth; `[1, 32, 4]`, its tail a state."""

    def build(self) -> None:
        self.taps, self.bias = self.weight(N, 1, 4, scale=0.5), self.weight(N, scale=0.3)
        self.mix, self.gate = self.weight(2 * N, N, 1), self.weight(N, N, 1)
        self.out = self.weight(N, N, 1)
        self.state("tail", 1, N, TAIL)
        if self.has("taps reversed"):
            self.taps.data = self.taps.data.flip(-1)
        if self.has("last mixing transposed"):
            self.out.data = self.out.data.transpose(0, 1).contiguous()
        if self.has("two channels of taps exchanged"):
            self.taps.data[[2, 3]] = self.taps.data[[3, 2]].clone()

    def forward(self, x: Tensor) -> Tensor:
        inner = F.conv1d(x, self.mix)
        first, gate = inner[:, :N], inner[:, N:]
        before = self.tail * 1.0
        if self.has("tail forgotten"):
            before = before * 0
        if self.has("tail fades"):
            before = before * 0.8
        if self.has("tail clipped at 1"):
            before = before.clamp(-1, 1)
        every = torch.cat([before, first], 2)
        y = F.conv1d(every, self.taps, None if self.has("bias missing") else self.bias, groups=N)
        act = {"tanh for SiLU": torch.tanh, "no activation": lambda z: z}.get(self.wrong, F.silu)
        y = act(y)
        last = {
            "tail one early": every[:, :, -TAIL - 1 : -1],
            "tail is the beginning": every[:, :, :TAIL],
            "tail reversed": every[:, :, -TAIL:].flip(-1),
            "tail of what leaves": y[:, :, -TAIL:],
            "tail before its mixing": x[:, :, -TAIL:],
        }.get(self.wrong, every[:, :, -TAIL:])
        if not self.has("tail never written"):
            self.tail[:, :] = last
        else:
            self.tail[:, :] = before
        gate = gate if self.has("gate without sigmoid") else torch.sigmoid(gate)
        return x + F.conv1d(y * gate, self.out)


def _pieces(rng: np.random.Generator, few: bool = False) -> list[Sequence_]:
    calls = 2 if few else 8
    return [[{"x": rng.standard_normal((1, N, T)).astype(F16)} for _ in range(calls)]]


CONV = Kind(
    "conv",
    Conv,
    (
        *flaws("function", "bias missing", "tanh for SiLU", "no activation",
               "gate without sigmoid"),
        *flaws("weights", "taps reversed", "last mixing transposed",
               "two channels of taps exchanged"),
        *flaws("states", "tail forgotten", "tail fades", "tail clipped at 1", "tail one early",
               "tail is the beginning", "tail reversed", "tail of what leaves",
               "tail before its mixing", "tail never written"),
        *damage.INTEGERS[:2],
    ),
    lambda function, fault: [_x(1, N, T)],
    {"y": F16},
    lambda rng, function, few: _pieces(rng, few),
    lambda rng: _pieces(rng),
    {"linear": True, "dtype": "int8", "granularity": "per_channel"},
)  # fmt: skip


class Recurrence(Brought):
    """A selective recurrence that begins anew at position 0; `[1, 1, 64]`."""

    def build(self) -> None:
        self.take, self.give = self.linear(C, C), self.linear(C, C)
        self.step, self.into = self.linear(C, C, bias=1.0), self.linear(C, C)
        self.outof = self.linear(C, C)
        self.decay, self.skip = self.weight(C, scale=0.3, mean=-0.5), self.weight(C, scale=0.5)
        self.gain = self.weight(C, scale=0.3, mean=1.0)
        self.state("memory", 1, 1, C)
        if self.has("into and out of exchanged"):
            self.into, self.outof = self.outof, self.into
        if self.has("bias of the step missing"):
            self.step.bias.data.zero_()
        if self.has("last product transposed"):
            self.give.weight.data = self.give.weight.data.T.contiguous()

    def forward(self, x: Tensor, pos: Tensor) -> Tensor:
        z = x if self.has("norm missing") else rms(x, self.gain)
        u = self.take(z)
        step = F.softplus(self.step(z)) if not self.has("step without softplus") else (
            torch.relu(self.step(z)))  # fmt: skip
        fade = torch.exp(-step * torch.exp(self.decay))
        if self.has("no decay"):
            fade = fade * 0 + 0.95
        kept = {
            "never begins anew": lambda: _at(pos >= 0),
            "begins anew at 16 too": lambda: _at(torch.remainder(pos, 16) > 0),
            "begins anew at every call": lambda: _at(pos < 0),
            "begins anew at 1": lambda: _at(pos > 0) * _at(pos != 1),
        }.get(self.wrong, lambda: _at(pos > 0))()
        before = self.memory * kept
        after = before * fade + step * torch.tanh(self.into(z)) * u
        if self.has("memory clipped at 2"):
            after = after.clamp(-2, 2)
        if self.has("memory in steps of 1/8"):
            after = torch.floor(after * 8) / 8
        if self.has("forgets half from 20 on"):
            after = after * (1 - 0.5 * _at(pos > 19))
        if self.has("channel 5 is never kept"):
            self.memory[:, :] = after * _at(torch.arange(C) != 5)
        elif self.has("memory never written"):
            self.memory[:, :] = before
        else:
            self.memory[:, :] = after
        seen = before if self.has("answers a call late") else after
        y = seen * self.outof(z)
        if not self.has("skip missing"):
            y = y + self.skip * u
        return x + self.give(y)


def _steps(rng: np.random.Generator, few: bool = False) -> list[Sequence_]:
    return [positioned(rng, C, range(4) if few else [*range(34), *range(6)])]


RECURRENCE = Kind(
    "recurrence",
    Recurrence,
    (
        *flaws("function", "norm missing", "step without softplus", "no decay", "skip missing"),
        *flaws("weights", "into and out of exchanged", "bias of the step missing",
               "last product transposed"),
        *flaws("states", "begins anew at 16 too", "begins anew at every call", "begins anew at 1",
               "memory clipped at 2", "memory in steps of 1/8", "forgets half from 20 on",
               "channel 5 is never kept", "memory never written", "answers a call late"),
        *flaws("sequences", "never begins anew"),
        *damage.BLOCKS,
    ),
    lambda function, fault: [_x(1, 1, C), POS],
    {"y": F16},
    lambda rng, function, few: _steps(rng, few),
    lambda rng: _steps(rng),
    {"linear": True, "dtype": "int4", "granularity": "per_block", "block_size": 32},
    {"pos": 'kind = "positions"'},
)  # fmt: skip
PREFILL = 8


class Chat(Attention):
    """Prefill of 8 tokens and decode of one on one cache, causal by the position alone."""

    def build(self) -> None:
        super().build()
        self.other = self.linear(C, KV * D, bias=0.3)

    def forward(self, x: Tensor, pos: Tensor) -> Tensor:
        t = int(x.shape[1])
        decode = t == 1
        p = pos[0]
        here = "decode " if decode else "prefill "
        q, k, v = self.project(x, p)
        if self.has(here + "of other weights"):
            v = self.other(rms(x, self.gain))
        at = p
        if self.has(here + "always at the beginning"):
            at = pos[0] * 0
        if self.has(here + "one slot late"):
            at = torch.clamp(pos + 1, max=SLOTS - t)[0]
        self.keys[:, at : at + t] = k
        self.values[:, at : at + t] = v if not self.has(here + "keeps no values") else v * 0
        keys, values = self.keys, self.values
        rows = pos + torch.arange(t)
        if self.has("prefill is taken to begin at 0") and not decode:
            rows = torch.arange(t) + pos * 0
        bias = _at(self.at[None] > rows[:, None]) * -1e4
        if self.has("prefill sees ahead") and not decode:
            bias = _at(self.at[None] > rows[-1:, None]) * -1e4
        if self.has(here + "does not see the first token"):
            bias = bias + _at(self.at[None] == 0) * _at(rows[:, None] > 0) * -1e4
        if self.has("decode sees the last 8 alone") and decode:
            bias = bias + _at(self.at[None] < rows[:, None] - 7) * -1e4
        if self.has(here + "without scale"):
            q = q * D**0.5
        y = self.attend(q, bias, keys, values)
        if self.has("last row of prefill lost") and not decode:
            y = y * _at(torch.arange(t) < t - 1)[:, None]
        return x + (y * 1.05 if self.has(here + "5 % louder") else y)


def _chatted(rng: np.random.Generator, function: str, few: bool = False) -> list[Sequence_]:
    if function == "decode":
        return [positioned(rng, C, range(4) if few else [*range(SLOTS), *range(8)])]
    return [positioned(rng, C, (0, 8) if few else (0, 8, 16, 24, 0, 8), PREFILL)]


def _mixed(rng: np.random.Generator) -> list[Sequence_]:
    chat = [
        *positioned(rng, C, (0, 8), PREFILL),
        *positioned(rng, C, range(16, 20)),
        *positioned(rng, C, (20,), PREFILL),
        *positioned(rng, C, range(28, 32)),
    ]
    return [chat, *_chatted(rng, "decode"), *_chatted(rng, "prefill")]


CHAT = Kind(
    "chat",
    Chat,
    (
        *flaws("function", "decode without scale", "prefill without scale",
               "decode of other weights", "prefill of other weights", "decode 5 % louder",
               "prefill 5 % louder", "heads grouped by turns", "prefill sees ahead",
               "last row of prefill lost"),
        *flaws("states", "decode always at the beginning", "prefill always at the beginning",
               "decode one slot late", "decode keeps no values", "prefill keeps no values",
               "prefill is taken to begin at 0", "decode does not see the first token",
               "prefill does not see the first token", "decode sees the last 8 alone"),
        *flaws("interface", "prefill is the default", cause="interface"),
    ),
    lambda function, fault: [_x(1, 1 if function == "decode" else PREFILL, C), POS],
    {"y": F16},
    _chatted,
    _mixed,
    {"nbits": 6, "granularity": "per_grouped_channel", "group_size": 16},
    functions=("decode", "prefill"),
)  # fmt: skip

KINDS = (DECODER, RING_KIND, CONV, RECURRENCE, CHAT)
