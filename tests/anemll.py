"""A small stack of packages laid out as ANEMLL's public converter lays out a decoder.

Embeddings of enumerated lengths; chunks with functions `infer` (one token) and `prefill` (a batch)
on one state, written at an int32 position; a head of eight 1x1 convolutions with eight outputs.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools

WIDTH, HEADS, KV_HEADS, CONTEXT, BATCH, VOCABULARY, PARTS = 64, 4, 2, 64, 16, 512, 8
HEAD = WIDTH // HEADS
LAYERS = 2
"""One in each chunk."""
WHOLE = ("input_ids", "position_ids", "current_pos")


class Norm(nn.Module):
    """RMSNorm as layer_norm of `[x, -x]`, which has a mean of zero."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        both = torch.nn.functional.layer_norm(torch.cat([x, -x], -1), (2 * WIDTH,), eps=1e-5)
        return both[..., :WIDTH] * self.weight


class Layer(nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index
        self.before, self.after = Norm(), Norm()
        wide = KV_HEADS * HEAD
        self.q, self.o = nn.Conv2d(WIDTH, WIDTH, 1, bias=False), nn.Conv2d(WIDTH, WIDTH, 1)
        self.k, self.v = (nn.Conv2d(WIDTH, wide, 1, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Conv2d(WIDTH, 2 * WIDTH, 1, bias=False) for _ in range(2))
        self.down = nn.Conv2d(2 * WIDTH, WIDTH, 1, bias=False)

    def forward(
        self, x: Tensor, rotary: list[Tensor], mask: Tensor, at: Tensor, cache: Tensor
    ) -> Tensor:
        """`x [1, T, C]`; `cache [2 layers, heads, context, head]`, written from `at` on."""
        tokens = x.shape[1]
        columns = self.before(x).permute(0, 2, 1).unsqueeze(2)

        def heads(projected: Tensor, count: int) -> Tensor:
            return projected.view(1, count, HEAD, tokens).permute(0, 1, 3, 2)

        query = rotate(heads(self.q(columns), HEADS), rotary)
        key = rotate(heads(self.k(columns), KV_HEADS), rotary)
        value = heads(self.v(columns), KV_HEADS)
        first, second = self.index, LAYERS + self.index
        start = at[0]
        cache[first : first + 1, :, start : start + tokens, :] = key
        cache[second : second + 1, :, start : start + tokens, :] = value
        keys = cache[first : first + 1].repeat_interleave(HEADS // KV_HEADS, dim=1)
        values = cache[second : second + 1].repeat_interleave(HEADS // KV_HEADS, dim=1)
        scores = torch.matmul(query, keys.transpose(-1, -2)) / HEAD**0.5 + mask
        mixed = torch.matmul(torch.softmax(scores, -1), values).permute(0, 1, 3, 2)
        x = x + self.o(mixed.reshape(1, WIDTH, 1, tokens)).squeeze(2).permute(0, 2, 1)
        columns = self.after(x).permute(0, 2, 1).unsqueeze(2)
        inner = torch.nn.functional.silu(self.gate(columns)) * self.up(columns)
        return x + self.down(inner).squeeze(2).permute(0, 2, 1)


def rotate(x: Tensor, rotary: list[Tensor]) -> Tensor:
    cos, sin = rotary
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin


class Chunk(nn.Module):
    """Some layers; angles are looked up at `position_ids [T]` in a table."""

    def __init__(self, layers: range) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(index) for index in layers)
        angles = torch.arange(CONTEXT)[:, None] * 1e4 ** (-torch.arange(0, HEAD, 2) / HEAD)
        self.register_buffer("cos_cached", torch.cat([angles.cos()] * 2, -1)[None])
        self.register_buffer("sin_cached", torch.cat([angles.sin()] * 2, -1)[None])
        self.register_buffer("kv_cache_0", torch.zeros(2 * LAYERS, KV_HEADS, CONTEXT, HEAD))

    def forward(
        self, hidden_states: Tensor, position_ids: Tensor, causal_mask: Tensor, current_pos: Tensor
    ) -> Tensor:
        tables = (self.cos_cached, self.sin_cached)
        rotary = [table[:, position_ids].view(1, 1, -1, HEAD) for table in tables]
        for layer in self.layers:
            hidden_states = layer(hidden_states, rotary, causal_mask, current_pos, self.kv_cache_0)
        return hidden_states


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        parts = (nn.Conv2d(WIDTH, VOCABULARY // PARTS, 1, bias=False) for _ in range(PARTS))
        self.parts = nn.ModuleList(parts)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, ...]:
        columns = hidden_states.permute(0, 2, 1).unsqueeze(2)
        return tuple(part(columns).squeeze(2).permute(0, 2, 1) for part in self.parts)


def tensor(name: str | None, *shape: int, dtype: Any = np.float16) -> Any:
    return import_coremltools().TensorType(name=name, shape=shape, dtype=dtype)


def convert(
    module: nn.Module, inputs: list[Any], path: Path,
    outputs: tuple[str, ...] = ("output_hidden_states",), states: list[Any] | None = None,
) -> None:  # fmt: skip
    """Trace a module on zeros of its inputs' (default) shapes, and save its package."""
    ct = import_coremltools()
    shapes = [each.shape.default or each.shape.shape for each in inputs]
    kinds = [torch.int32 if each.name in WHOLE else torch.float32 for each in inputs]
    zeros = tuple(torch.zeros(shape, dtype=kind) for shape, kind in zip(shapes, kinds, strict=True))
    with torch.no_grad(), converter_notes():
        traced = torch.jit.trace(module.eval(), zeros, check_trace=False)
        ct.convert(
            traced,
            inputs=inputs,
            outputs=[ct.TensorType(name=name, dtype=np.float16) for name in outputs],
            states=states,
            minimum_deployment_target=ct.target.iOS18,
            skip_model_load=True,
        ).save(str(path))


def save_stack(folder: Path) -> dict[str, Path]:
    """The packages by name: `embeddings`, `chunk1`, `chunk2`, `lm_head`."""
    ct = import_coremltools()
    torch.manual_seed(0)
    found = {
        name: folder / f"{name}.mlpackage" for name in ("embeddings", "chunk1", "chunk2", "lm_head")
    }
    ids = ct.TensorType(
        name="input_ids",
        shape=ct.EnumeratedShapes([(1, 1), (1, BATCH)], default=(1, 1)),
        dtype=np.int32,
    )
    convert(nn.Embedding(VOCABULARY, WIDTH), [ids], found["embeddings"], ("hidden_states",))
    for number, layers in ((1, range(1)), (2, range(1, LAYERS))):
        chunk, several = Chunk(layers), ct.utils.MultiFunctionDescriptor()
        for function, tokens in (("infer", 1), ("prefill", BATCH)):
            part = folder / f"{function}{number}.mlpackage"
            inputs = [
                tensor("hidden_states", 1, tokens, WIDTH),
                tensor("position_ids", tokens, dtype=np.int32),
                tensor("causal_mask", 1, 1, tokens, CONTEXT),
                tensor("current_pos", 1, dtype=np.int32),
            ]
            state = ct.StateType(tensor(None, *chunk.kv_cache_0.shape), name="kv_cache_0")
            convert(chunk, inputs, part, states=[state])
            several.add_function(str(part), "main", function)
        several.default_function_name = "infer"
        with converter_notes():
            ct.utils.save_multifunction(several, str(found[f"chunk{number}"]))
    outputs = tuple(f"logits{number}" for number in range(1, PARTS + 1))
    convert(Head(), [tensor("hidden_states", 1, 1, WIDTH)], found["lm_head"], outputs)
    return found


def save_folder(folder: Path, name: str = "tiny", *, lut: int | None = None) -> dict[str, Path]:
    """The same as its converter leaves it: files by role and bits, and `meta.yaml`.

    With `lut`, weights have palettes of so many bits.
    """
    from pytest_ane.cli import main

    parts = folder / "parts"
    parts.mkdir(parents=True)
    stack, bits = save_stack(parts), "" if lut is None else f"_lut{lut}"
    names = {"embeddings": f"{name}_embeddings", "lm_head": f"{name}_lm_head{bits}"}
    names |= {f"chunk{i}": f"{name}_FFN_PF{bits}_chunk_0{i}of02" for i in (1, 2)}
    found = {role: folder / f"{file}.mlpackage" for role, file in names.items()}
    for role, path in stack.items():
        if lut is None or role == "embeddings":
            path.rename(found[role])
        else:
            options = [f"--nbits={lut}", "--granularity=per_tensor", "-o", str(found[role])]
            assert main(["compress", str(path), *options]) == 0
    shutil.rmtree(parts)
    kinds = f"lut_embeddings: none\n    lut_ffn: {lut}\n    lut_lmhead: {lut}"
    (folder / "meta.yaml").write_text(
        f"""model_info:
  name: anemll-{name}-ctx{CONTEXT}
  version: 0.3.4
  description: |
    Runs {name}
    Context length: {CONTEXT}
  architecture: llama
  parameters:
    context_length: {CONTEXT}
    batch_size: {BATCH}
    {kinds}
    num_chunks: {LAYERS}
    model_prefix: {name}
    embeddings: {name}_embeddings.mlmodelc
    split_lm_head: {PARTS}
"""
    )
    return found
