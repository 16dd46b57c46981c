"""A stack of one's own: packages that are converted here with torch and coremltools alone.

    python examples/own_stack/own_stack.py
    pytest --ane-manifest=examples/own_stack/shards.toml --ane-shards=all -m gate

It has the forms that people use: attention that keeps keys and values in states and takes masks
and RoPE's tables as inputs; a router with two packs of experts; a short convolution whose state
goes in and out; a decoder of two functions, one token and four; and a head in two slices. Every
package is written twice, in fp16 and with 8-bit palettes; but the router, whose weights are too
small to be compressed, once, beside golden tensors. The weights are random and always the same.
`reference` is the whole model in float32; `shards.toml` names it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

WIDTH, HEADS, SLOTS, EXPERTS, TAPS, VOCABULARY = 64, 2, 32, 4, 4, 96
HEAD = WIDTH // HEADS
THETA = 10_000.0


def norm(x: Tensor) -> Tensor:
    """RMS norm over the channels of `[1, C, 1, T]`."""
    return x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-5)


def conv(inner: int, outer: int) -> nn.Conv2d:
    """A projection, as the ANE likes it."""
    layer = nn.Conv2d(inner, outer, 1, bias=False)
    nn.init.normal_(layer.weight, std=1.6 / math.sqrt(inner))
    return layer


class Attention(nn.Module):
    """x + attention over a cache that `kv_write_mask` says where to write."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (conv(WIDTH, WIDTH) for _ in range(4))
        self.register_buffer("k_cache", torch.zeros(1, HEADS, HEAD, SLOTS))
        self.register_buffer("v_cache", torch.zeros(1, HEADS, HEAD, SLOTS))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, write: Tensor) -> Tensor:
        """`[1, C, 1, T]` to the same.

        `cos` and `sin` are `[1, 1, head, T]`, `mask` and `write` `[1, 1, T, slots]`.
        """
        y = norm(x)
        q, k, v = (layer(y).reshape(1, HEADS, HEAD, -1) for layer in (self.q, self.k, self.v))
        q, k = (turned(z, cos, sin) for z in (q, k))
        kept = 1 - write.sum(2, keepdim=True)
        keys = self.k_cache * kept + k @ write
        values = self.v_cache * kept + v @ write
        self.k_cache[:] = keys
        self.v_cache[:] = values
        return x + self.seen(q, keys, values, mask)

    def seen(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """What queries `[1, heads, head, T]` see of `[1, heads, head, slots]`."""
        scores = q.transpose(2, 3) @ keys / math.sqrt(HEAD) + mask
        rows = values @ torch.softmax(scores, -1).transpose(2, 3)
        result: Tensor = self.o(rows.reshape(1, WIDTH, 1, -1))
        return result


def turned(z: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE of `[1, heads, head, T]`, channel i with i + head / 2."""
    half = HEAD // 2
    return z * cos + torch.cat([-z[:, :, half:], z[:, :, :half]], 2) * sin


class Router(nn.Module):
    """The normed stream, and weights of the two best experts, which sum to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = conv(WIDTH, EXPERTS)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`[1, C, 1, T]` to the same and `[1, experts, 1, T]`."""
        normed = norm(x)
        scores = self.gate(normed)
        best = scores.amax(1, keepdim=True)
        second = torch.where(scores < best, scores, -1e4).amax(1, keepdim=True)
        return normed, torch.softmax(torch.where(scores >= second, scores, -1e4), 1)


class Experts(nn.Module):
    """The contribution of two experts, each under its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ModuleList(conv(WIDTH, 2 * WIDTH) for _ in range(2))
        self.down = nn.ModuleList(conv(2 * WIDTH, WIDTH) for _ in range(2))

    def forward(self, normed: Tensor, weights: Tensor) -> Tensor:
        """`[1, C, 1, T]` under weights `[1, 2, 1, T]`."""
        parts = [
            down(nn.functional.silu(up(normed))) * weights[:, i : i + 1]
            for i, (up, down) in enumerate(zip(self.up, self.down, strict=True))
        ]
        return parts[0] + parts[1]


class ShortConv(nn.Module):
    """A causal convolution of four taps, gated; the last three positions go in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.gate, self.outer = (conv(WIDTH, WIDTH) for _ in range(3))
        self.taps = nn.Parameter(torch.randn(1, WIDTH, 1, TAPS) / 2)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """`[1, C, 1, 1]` and `[1, C, 1, 3]` to x, the new state, the old one and the gate."""
        y = norm(x)
        window = torch.cat([state, self.inner(y)], 3)
        mixed = (window * self.taps).sum(3, keepdim=True)
        gate = torch.sigmoid(self.gate(y))
        return x + self.outer(gate * mixed), window[:, :, :, 1:], window[:, :, :, :-1], gate


class Head(nn.Module):
    """Half of the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.output = conv(WIDTH, VOCABULARY // 2)

    def forward(self, x: Tensor) -> Tensor:
        """`[1, C, 1, 1]` to `[1, V / 2, 1, 1]`."""
        logits: Tensor = self.output(norm(x))
        return logits


class Stack(nn.Module):
    """The whole model; its packages are its parts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2026)
        self.embedding = nn.Parameter(torch.randn(VOCABULARY, WIDTH))
        self.attention, self.router = Attention(), Router()
        self.experts = nn.ModuleList(Experts() for _ in range(2))
        self.conv, self.decoder = ShortConv(), Attention()
        self.heads = nn.ModuleList(Head() for _ in range(2))


@lru_cache(1)
def stack() -> Stack:
    """The model, its weights as the packages have them: rounded to fp16."""
    made = Stack().eval()
    made.load_state_dict({name: x.half().float() for name, x in made.state_dict().items()})
    return made


@torch.no_grad()
def reference(ids: Sequence[int]) -> dict[str, Any]:
    """Logits `[T, V]` of token ids, and what every package gives, position by position.

    It attends to all positions at once and keeps no cache, so that it shares nothing with the
    packages but the weights.
    """
    model = stack()
    x = model.embedding[list(ids)].T[None, :, None]
    told = {"attention": (x := _attend(model.attention, x))}
    normed, weights = model.router(x)
    told["router"] = torch.cat([normed, weights], 1)
    for i, pack in enumerate(model.experts):
        told[f"experts.{i}"] = pack(normed, weights[:, 2 * i : 2 * i + 2])
    x = x + told["experts.0"] + told["experts.1"]
    told["conv"] = x = _convolve(model.conv, x)
    told["decoder"] = x = _attend(model.decoder, x)
    told["logits"] = torch.cat([head(x) for head in model.heads], 1)
    return {name: rows[0, :, 0].T for name, rows in told.items()}


def _attend(layer: Attention, x: Tensor) -> Tensor:
    count, y = x.shape[3], norm(x)
    q, k, v = (f(y)[0, :, 0].T.reshape(count, HEADS, HEAD) for f in (layer.q, layer.k, layer.v))
    turns = torch.polar(
        torch.ones(count, HEAD // 2),
        torch.arange(count)[:, None] * THETA ** (-torch.arange(0, HEAD, 2) / HEAD),
    )[:, None]
    q, k = (_turned(z, turns) for z in (q, k))
    seen = nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), is_causal=True
    )
    return x + layer.o(seen.transpose(0, 1).reshape(count, WIDTH).T[None, :, None])


def _turned(z: Tensor, turns: Tensor) -> Tensor:
    """RoPE by complex numbers: channel i and i + head / 2 are a pair."""
    pairs = torch.complex(z[..., : HEAD // 2], z[..., HEAD // 2 :]) * turns
    return torch.cat([pairs.real, pairs.imag], -1)


def _convolve(layer: ShortConv, x: Tensor) -> Tensor:
    y = norm(x)
    padded = nn.functional.pad(layer.inner(y), (TAPS - 1, 0))
    mixed = nn.functional.conv1d(padded[:, :, 0], layer.taps[0, :, :, :], groups=WIDTH)
    return x + layer.outer(torch.sigmoid(layer.gate(y)) * mixed[:, :, None])


def main(folder: Path) -> None:
    """Write all packages and the embedding."""
    import numpy as np

    model = stack()
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "embedding.npy", model.embedding.detach().numpy().astype(np.float16))
    attention = {"x": WIDTH, "rope_cos": 0, "rope_sin": 0, "attn_mask": 0, "kv_write_mask": 0}
    conv_outputs = ["hidden", "new_conv_state", "old_conv_state", "gate"]
    pack_inputs = {"ffn_normed": WIDTH, "routing_weights": 2}
    parts: list[tuple[str, nn.Module, dict[str, int], list[str]]] = [
        ("attention", model.attention, attention, ["hidden"]),
        ("router", model.router, {"x": WIDTH}, ["ffn_normed", "routing_weights"]),
        ("conv", model.conv, {"x": WIDTH, "conv_state": WIDTH}, conv_outputs),
    ]
    for i, pack in enumerate(model.experts):
        parts.append((f"experts.{i}", pack, pack_inputs, ["moe_contribution"]))
    for i, head in enumerate(model.heads):
        parts.append((f"head.{i}", head, {"x": WIDTH}, ["logits"]))
    for name, module, inputs, outputs in parts:
        for kind, package in _converted(module, inputs, outputs).items():
            if name + kind != "router-fp16":
                package.save(str(folder / f"{name}{kind}.mlpackage"))
    _save_answers(folder / "router.npz", model.router)
    _save_decoder(folder, model.decoder, attention)


def _converted(
    module: nn.Module, inputs: dict[str, int], outputs: list[str], count: int = 1
) -> dict[str, Any]:
    """A module as an fp16 package and as one with 8-bit palettes, by the ends of their names."""
    import coremltools as ct
    import coremltools.optimize.coreml as cto
    import numpy as np

    shapes = {name: _shape(name, channels, count) for name, channels in inputs.items()}
    traced = torch.jit.trace(
        module, [torch.zeros(shape) for shape in shapes.values()], strict=False
    )
    for buffer in module.buffers():  # Tracing wrote into them.
        buffer.zero_()
    plain = ct.convert(
        traced,
        inputs=[ct.TensorType(n, shape, np.float16) for n, shape in shapes.items()],
        outputs=[ct.TensorType(name, dtype=np.float16) for name in outputs],
        states=[
            ct.StateType(ct.TensorType(shape=tuple(buffer.shape), dtype=np.float16), name)
            for name, buffer in module.named_buffers()
        ],
        minimum_deployment_target=ct.target.iOS18,
        skip_model_load=True,
    )
    config = cto.OptimizationConfig(
        cto.OpPalettizerConfig(mode="uniform", nbits=8, weight_threshold=256)
    )
    return {"-fp16": plain, "": cto.palettize_weights(plain, config)}


def _shape(name: str, channels: int, count: int) -> tuple[int, ...]:
    if name.startswith("rope"):
        return 1, 1, HEAD, count
    if name.endswith("mask"):
        return 1, 1, count, SLOTS
    if name == "conv_state":
        return 1, WIDTH, 1, TAPS - 1
    return 1, channels, 1, count


@torch.no_grad()
def _save_answers(path: Path, router: Router) -> None:
    """Golden tensors of the router, in float32: what it answers to 16 positions."""
    import numpy as np

    tensors: dict[str, Any] = {}
    for i in range(16):
        x = torch.randn(1, WIDTH, 1, 1, generator=torch.Generator().manual_seed(i)).half().float()
        normed, weights = (y.numpy() for y in router(x))
        tensors |= {f"{i}.in.x": x.numpy(), f"{i}.out.ffn_normed": normed}
        tensors[f"{i}.out.routing_weights"] = weights
    np.savez(path, allow_pickle=False, **tensors)


def _save_decoder(folder: Path, module: nn.Module, inputs: dict[str, int]) -> None:
    """One package of two functions: a token, and four to verify a draft."""
    functions = {"decode": 1, "verify4": 4}
    made = {f: _converted(module, inputs, ["hidden"], count) for f, count in functions.items()}
    for kind in ("-fp16", ""):
        for function, packages in made.items():
            packages[kind].save(str(folder / f"{function}{kind}.mlpackage"))
        _save_functions(folder, kind, functions)


def _save_functions(folder: Path, kind: str, functions: Iterable[str]) -> None:
    import coremltools as ct

    descriptor = ct.utils.MultiFunctionDescriptor()
    for function in functions:
        descriptor.add_function(str(folder / f"{function}{kind}.mlpackage"), "main", function)
    descriptor.default_function_name = "decode"
    ct.utils.save_multifunction(descriptor, str(folder / f"decoder{kind}.mlpackage"))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "packages")
