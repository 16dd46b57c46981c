"""Kinds without states: a block, an embedding with a head, an encoder, convolutions on images."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.battery.brought import damage
from tests.battery.brought.kind import (
    F16,
    Brought,
    Flaw,
    Kind,
    Sequence_,
    angles,
    ct,
    rms,
    scaled,
    turned,
)


def flaws(kind: str, *names: str, **more: Any) -> list[Flaw]:
    """Faults of one class."""
    return [Flaw(name, kind, **more) for name in names]


C, HEADS, KV, D, LONGEST = 64, 4, 2, 16, 64


class Block(Brought):
    """RMSNorm, RoPE, grouped attention, SwiGLU; `[1, T, 64]`, T from 1 to 64."""

    def build(self) -> None:
        self.q, self.k = (self.linear(C, n * D, bias=0.3, scale=1.5) for n in (HEADS, KV))
        self.v, self.o = self.linear(C, KV * D, bias=0.3), self.linear(HEADS * D, C, scale=0.5)
        self.gate, self.up = self.linear(C, 2 * C), self.linear(C, 2 * C)
        self.down = self.linear(2 * C, C, scale=0.5)
        self.first, self.second = (self.weight(C, scale=0.3, mean=1.0) for _ in range(2))
        theta = 100.0 if self.has("RoPE's base is 100") else 1e4
        cos, sin = angles(D, LONGEST, theta)
        if self.has("RoPE stands still from 40 on"):
            cos[40:], sin[40:] = cos[39], sin[39]
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)
        seen = torch.ones(LONGEST, LONGEST).tril(1 if self.has("mask one late") else 0)
        if self.has("window of 32"):
            seen = seen.triu(-31)
        mask = torch.where(seen > 0, 0.0, -1e4)
        self.register_buffer("mask", mask * (0 if self.has("no mask") else 1))
        if self.has("gate and up exchanged"):
            self.gate, self.up = self.up, self.gate
        if self.has("o transposed"):
            self.o.weight.data = self.o.weight.data.T.contiguous()
        if self.has("bias of v missing"):
            self.v.bias.data.zero_()
        if self.has("two rows of down exchanged"):
            self.down.weight.data[[3, 4]] = self.down.weight.data[[4, 3]].clone()

    def norm(self, x: Tensor, weight: Tensor, place: int) -> Tensor:
        if self.has("second norm missing") and place == 2:
            return x
        if self.has("gains missing"):
            return rms(x, 1.0)
        eps = 0.1 if self.has("eps 0.1") else 1e-5
        if self.has("LayerNorm for RMSNorm"):
            x = x - x.mean(-1, keepdim=True)
        return rms(x, weight, eps, plain=self.has("squares in fp16"))

    def attend(self, x: Tensor) -> Tensor:
        t = x.shape[1]
        q, k, v = (
            p(x).reshape(1, t, n, D).transpose(1, 2)
            for p, n in ((self.q, HEADS), (self.k, KV), (self.v, KV))
        )
        cos, sin = self.cos[:t], self.sin[:t]
        how = {"RoPE by pairs": "pairs", "RoPE the other way": "sign"}.get(self.wrong, "")
        if self.has("RoPE of q alone"):
            q = turned(q, cos, sin)
        else:
            keys = "sign" if self.has("keys turn the other way") else how
            q, k = turned(q, cos, sin, how), turned(k, cos, sin, keys)
        if self.has("heads grouped by turns"):
            k, v = k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1)
        else:
            k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        scores = q @ k.transpose(-1, -2) * (1.0 if self.has("scale missing") else D**-0.5)
        scores = scores + self.mask[:t, :t]
        if self.has("softmax over queries"):
            y = torch.softmax(scores, -2) @ v
        else:
            y = torch.softmax(scores, -1) @ v
        return self.o(y.transpose(1, 2).reshape(1, t, HEADS * D))

    def forward(self, x: Tensor) -> Tensor:
        if self.has("clipped at 100"):
            x = x.clamp(-100, 100)
        attended = self.attend(self.norm(x, self.first, 1))
        if self.has("another result at T = 17"):
            count = torch.ones_like(x[:, :, :1]).sum(1, keepdim=True)
            attended = attended * (1 + ((count - 17).abs() < 0.5).to(x.dtype))
        if self.has("first position not attended"):
            keep = (torch.cumsum(torch.ones_like(x[:, :, :1]), 1) > 1.5).to(x.dtype)
            attended = attended * keep
        h = attended if self.has("first residual lost") else x + attended
        z = self.norm(x if self.has("network takes what entered") else h, self.second, 2)
        gate = self.gate(z)
        act = {"ReLU for SiLU": torch.relu, "GELU for SiLU": F.gelu, "no activation": lambda g: g}
        fed = self.down(act.get(self.wrong, F.silu)(gate) * self.up(z))
        return h + fed * (1.02 if self.has("gain 1.02 of what is added") else 1.0)


def _massive(rng: np.random.Generator) -> Any:
    """One channel of 300, as residual streams have it at their first token."""
    x = rng.standard_normal((1, 8, C)).astype(F16)
    x[..., 5] = 300
    return x


BLOCK = Kind(
    "block",
    Block,
    (
        *flaws("function", "ReLU for SiLU", "GELU for SiLU", "no activation", "scale missing",
               "no mask", "mask one late", "second norm missing", "gains missing", "eps 0.1",
               "LayerNorm for RMSNorm", "heads grouped by turns", "RoPE by pairs",
               "keys turn the other way", "RoPE of q alone", "RoPE's base is 100",
               "network takes what entered", "first residual lost", "softmax over queries",
               "gain 1.02 of what is added"),
        *flaws("weights", "gate and up exchanged", "o transposed", "bias of v missing",
               "two rows of down exchanged"),
        *flaws("positions", "RoPE stands still from 40 on", "window of 32",
               "another result at T = 17", "first position not attended"),
        *flaws("numbers", "squares in fp16", cause="fp16"),
        *flaws("numbers", "clipped at 100"),
        *damage.PALETTES,
        *damage.NORMS,
    ),
    lambda function, fault: [
        ct.TensorType("x", (1, ct.RangeDim(1, LONGEST, default=8), C), dtype=F16)
    ],
    {"y": F16},
    lambda rng, function, few: [
        [{"x": rng.standard_normal((1, t, C)).astype(F16)}] for t in ((8,) if few else (8, 1, 64))
    ],
    lambda rng: [
        [{"x": x}]
        for x in (
            *(rng.standard_normal((1, t, C)).astype(F16) for t in range(1, LONGEST + 1)),
            *scaled(rng, [(1, 8, C)]),
            _massive(rng),
        )
    ],
    {"nbits": 6, "granularity": "per_grouped_channel", "group_size": 16},
)  # fmt: skip

WORDS, E = 256, 32


class Words(Brought):
    """An embedding, one mixing layer and a capped head: `[1, T]` ids to `[1, T, 256]` logits."""

    def build(self) -> None:
        self.table = self.weight(WORDS, E, scale=0.5)
        self.mix, self.head = self.linear(E, E), self.linear(E, WORDS, scale=12.0)
        self.gain = self.weight(E, scale=0.2)
        rows = {
            "rows shifted by one": lambda t: t.roll(1, 0),
            "last rows exchanged": lambda t: torch.cat([t[:-2], t[-1:], t[-2:-1]]),
            "row of padding zero": lambda t: torch.cat([torch.zeros(1, E), t[1:]]),
            "beginning's row is another": lambda t: torch.cat([t[:1], t[2:3], t[2:]]),
        }.get(self.wrong)
        if rows:
            self.table.data = rows(self.table.data)
        if self.has("rows of the head exchanged"):
            self.head.weight.data[[5, 6]] = self.head.weight.data[[6, 5]].clone()
        if self.has("mixing transposed"):
            self.mix.weight.data = self.mix.weight.data.T.contiguous()

    def forward(self, ids: Tensor) -> Tensor:
        if self.has("ids above 199 are 199"):
            ids = ids.clamp(max=199)
        x = F.embedding(ids, self.table) * (1.0 if self.has("table not scaled") else E**0.5)
        if self.has("first token doubled"):
            at = torch.cumsum(torch.ones_like(x[:, :, :1]), 1)
            x = x + x * (at < 1.5).to(x.dtype) * torch.ones(E)
        x = x + torch.tanh(self.mix(x))
        if not self.has("norm missing"):
            x = rms(x, self.gain if self.has("gain without 1 +") else 1 + self.gain)
        logits = self.head(x)
        if self.has("no cap"):
            return logits
        cap = 50.0 if self.has("cap of 50") else 30.0
        return cap * torch.tanh(logits / cap)


def _ids(rng: np.random.Generator, length: int, words: int = WORDS) -> np.ndarray[Any, Any]:
    return rng.integers(0, words, (1, length)).astype(np.int32)


def _all_ids(rng: np.random.Generator, length: int) -> list[Sequence_]:
    order = rng.permutation(WORDS).astype(np.int32).reshape(-1, length)
    return [[{"ids": row[None]}] for row in order]


WORDS_KIND = Kind(
    "words",
    Words,
    (
        *flaws("function", "table not scaled", "norm missing", "gain without 1 +", "no cap",
               "cap of 50", "ids above 199 are 199"),
        *flaws("weights", "rows shifted by one", "last rows exchanged", "row of padding zero",
               "beginning's row is another", "rows of the head exchanged", "mixing transposed"),
        *flaws("positions", "first token doubled"),
        *damage.INTEGERS,
    ),
    lambda function, fault: [ct.TensorType("ids", (1, 32), dtype=np.int32)],
    {"logits": F16},
    lambda rng, function, few: [[{"ids": _ids(rng, 32)}]] if few else _all_ids(rng, 32),
    lambda rng: _all_ids(rng, 32),
    {"linear": True, "dtype": "int8", "granularity": "per_channel"},
)  # fmt: skip


class Encoder(Brought):
    """Bidirectional, with padding, mean pooling and unit length: `[1, T]` ids to `[1, 32]`."""

    def build(self) -> None:
        self.table, self.places = self.weight(WORDS, E, scale=1.0), self.weight(32, E, scale=1.0)
        self.kinds = self.weight(E, scale=1.0)
        self.q, self.k, self.v, self.o = (
            self.linear(E, E, bias=0.3, scale=s) for s in (2.0, 2.0, 1.0, 1.0)
        )
        self.up, self.down = self.linear(E, 4 * E, bias=0.3), self.linear(4 * E, E, bias=0.3)
        self.gains = self.weight(3, E, scale=0.2, mean=1.0)
        self.shifts = self.weight(3, E, scale=0.5)
        self.register_buffer("at", torch.arange(32))
        if self.has("q and v exchanged"):
            self.q, self.v = self.v, self.q
        if self.has("o transposed"):
            self.o.weight.data = self.o.weight.data.T.contiguous()
        if self.has("biases of the network missing"):
            self.up.bias.data.zero_()
        if self.has("places from 2 on"):
            self.places.data = self.places.data.roll(-2, 0)

    def norm(self, x: Tensor, i: int) -> Tensor:
        shift = 0.0 * self.shifts[i] if self.has("shifts missing") else self.shifts[i]
        eps = 0.1 if self.has("eps 0.1") else 1e-12
        x = x - x.mean(-1, keepdim=True)
        return rms(x, self.gains[i], eps) + shift

    def forward(self, ids: Tensor) -> Tensor:
        t = ids.shape[1]
        seen = (ids != 0).float()
        x = F.embedding(ids, self.table) + self.places[:t]
        x = self.norm(x if self.has("types missing") else x + self.kinds, 0)
        before = self.norm(x, 1) if self.has("norm before for after") else x
        q, k, v = (p(before).reshape(1, t, 2, 16).transpose(1, 2) for p in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) * (1.0 if self.has("scale missing") else 0.25)
        if not self.has("padding attended"):
            scores = scores + ((1 - seen) * -1e4)[:, None, None]
        if self.has("causal"):
            later = (self.at[:t, None] < self.at[None, :t]).float()
            scores = scores + later * -1e4
        y = self.o((torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(1, t, E))
        x = x + y if self.has("norm before for after") else self.norm(x + y, 1)
        act = {"ReLU for GELU": torch.relu, "sigmoid for GELU": lambda g: g * torch.sigmoid(g)}
        x = self.norm(x + self.down(act.get(self.wrong, F.gelu)(self.up(x))), 2)
        if self.has("first row for the mean"):
            y = x[:, 0]
        elif self.has("largest for the mean"):
            y = (x + (1 - seen)[..., None] * -1e4).amax(1)
        elif self.has("padding counted"):
            y = x.mean(1)
        elif self.has("first token left out"):
            y = (x * seen[..., None])[:, 1:].sum(1)
        else:
            y = (x * seen[..., None]).sum(1)
        if self.has("another result at T = 24"):
            count = torch.ones_like(x[:, :, :1]).sum(1)
            y = y + 3 * x[:, 0] * ((count - 24).abs() < 0.5).float()
        if self.has("not of unit length"):
            return y / torch.clamp(seen.sum(1, keepdim=True), min=1.0)
        return y * torch.rsqrt((y * y).sum(-1, keepdim=True) + 1e-6)


def _padded(rng: np.random.Generator, length: int) -> Sequence_:
    ids = rng.integers(1, WORDS, (1, length)).astype(np.int32)
    ids[0, length - length // 4 :] = 0
    return [{"ids": ids}]


LENGTHS = (8, 16, 24, 32)
ENCODER = Kind(
    "encoder",
    Encoder,
    (
        *flaws("function", "ReLU for GELU", "sigmoid for GELU", "scale missing", "shifts missing",
               "eps 0.1", "types missing", "norm before for after", "padding attended", "causal",
               "first row for the mean", "largest for the mean", "padding counted",
               "not of unit length"),
        *flaws("weights", "q and v exchanged", "o transposed", "biases of the network missing",
               "places from 2 on"),
        *flaws("positions", "first token left out", "another result at T = 24"),
        *damage.PALETTES[:3],
    ),
    lambda function, fault: [
        ct.TensorType("ids", ct.EnumeratedShapes([(1, t) for t in LENGTHS]), dtype=np.int32)
    ],
    {"y": F16},
    lambda rng, function, few: [_padded(rng, t) for t in ((8,) if few else LENGTHS)],
    lambda rng: [_padded(rng, t) for t in LENGTHS for _ in range(8)],
    {"nbits": 6, "granularity": "per_grouped_channel", "group_size": 8},
)  # fmt: skip

SIDE = 32
_MEANS = [-0.485, -0.456, -0.406]


class Pictures(Brought):
    """Convolutions on an image, `[1, 3, 32, 32]`: classes `[1, 10]` and a map `[1, 32, 8, 8]`."""

    def build(self) -> None:
        self.stem = self.weight(16, 3, 3, 3, scale=0.4)
        self.depth = self.weight(16, 1, 3, 3, scale=0.4)
        self.point, self.deep = self.weight(32, 16, 1, 1, scale=0.3), self.linear(32, 10, bias=0.2)
        self.square = self.weight(32, 32, 3, 3, scale=0.08)
        self.scale = self.weight(16, scale=0.3, mean=1.0)
        self.shift = self.weight(16, scale=0.3)
        self.bias = self.weight(32, scale=0.5)
        if self.has("columns for rows in a filter"):
            self.square.data = self.square.data.transpose(2, 3).contiguous()
        if self.has("square filter transposed"):
            self.square.data = self.square.data.transpose(0, 1).contiguous()
        if self.has("two classes exchanged"):
            self.deep.weight.data[[1, 2]] = self.deep.weight.data[[2, 1]].clone()

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        x = F.conv2d(image, self.stem, stride=2, padding=1)
        if not self.has("batch norm missing"):
            x = x * self.scale[:, None, None] + self.shift[:, None, None]
        x = x.clamp(0, 6) if not self.has("ReLU for ReLU6") else torch.relu(x * 2) / 2
        if self.has("no activation"):
            x = F.conv2d(image, self.stem, stride=2, padding=1)
        padding = (0, 2, 0, 2) if self.has("padded on one side") else (1, 1, 1, 1)
        x = F.conv2d(F.pad(x, padding), self.depth, groups=16)
        pool = F.avg_pool2d if self.has("average for the largest") else F.max_pool2d
        x = pool(x, 2)
        x = F.conv2d(x, self.point, None if self.has("bias missing") else self.bias)
        features = torch.relu(F.conv2d(torch.relu(x), self.square, padding=1))
        pooled = features.amax((2, 3)) if self.has("largest of the map") else features.mean((2, 3))
        classes = self.deep(pooled * 4)
        if not self.has("softmax missing"):
            classes = torch.softmax(classes, -1)
        if self.has("map before its activation"):
            features = F.conv2d(torch.relu(x), self.square, padding=1)
        if self.has("map mirrored"):
            features = features.flip(-1)
        return classes, features


def _image(function: str, fault: str) -> list[Any]:
    layout = ct.colorlayout.BGR if fault == "BGR for RGB" else ct.colorlayout.RGB
    bias = None if fault == "means missing" else [m / 0.226 for m in _MEANS]
    scale = 1 / 255 if fault == "deviation missing" else 1 / 255 / 0.226
    return [ct.ImageType("image", (1, 3, SIDE, SIDE), scale=scale, bias=bias, color_layout=layout)]


def _pixels(rng: np.random.Generator) -> Sequence_:
    steps = np.linspace(0, 255, SIDE * SIDE * 3).reshape(SIDE, SIDE, 3)
    pixels = (steps * rng.random(3) + 40 * rng.standard_normal(steps.shape)).clip(0, 255)
    return [{"image": pixels.astype(np.uint8)}]


def prepared(call: Any) -> Any:
    """An image as the torch module takes it: `[1, 3, H, W]`, normalised."""
    if "image" not in call:
        return call
    x = call["image"].astype(np.float32).transpose(2, 0, 1)[None] / 255
    means = np.array(_MEANS, np.float32)[:, None, None]
    return {"image": (x + means) / np.float32(0.226)}


PICTURES = Kind(
    "pictures",
    Pictures,
    (
        *flaws("function", "batch norm missing", "ReLU for ReLU6", "no activation",
               "padded on one side", "average for the largest", "bias missing",
               "largest of the map", "softmax missing", "map before its activation",
               "map mirrored"),
        *flaws("weights", "columns for rows in a filter", "square filter transposed",
               "two classes exchanged"),
        *flaws("interface", "BGR for RGB", "means missing", "deviation missing", cause="interface"),
        *damage.PALETTES[:3],
    ),
    _image,
    {"classes": np.float32, "map": np.float32},
    lambda rng, function, few: [_pixels(rng) for _ in range(1 if few else 3)],
    lambda rng: [_pixels(rng) for _ in range(6)],
    {"nbits": 6, "granularity": "per_tensor"},
    prepared=prepared,
)  # fmt: skip

KINDS = (BLOCK, WORDS_KIND, ENCODER, PICTURES)
