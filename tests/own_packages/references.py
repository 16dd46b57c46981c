"""Forms of references: golden tensors, a builder's torch module, float32, uncompressed ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import coremltools.optimize as cto
import numpy as np
from coremltools.converters.mil import Builder as mb
from safetensors.numpy import save_file

from tests.own_packages.subjects import (
    Array,
    Subject,
    Variant,
    ct,
    half,
    single,
    state,
    subject,
    whole,
)

T, C, VOCABULARY = 8, 16, 32
F16 = np.float16
Oracle = Callable[[Variant, Array], Array]


def golden(inputs: Callable[[int], Sequence[Array]], oracle: Oracle, name: str = "x") -> Any:
    """Golden tensors of two probes, computed by numpy in float64.

    Args:
        inputs: of a probe's number, the input of each call.
        oracle: the output of each call, all of them along a first axis.
        name: the input's.
    """

    def prepare(each: Subject, folder: Path) -> None:
        tensors = {}
        for probe in range(2):
            calls = inputs(probe)
            outputs = oracle(Variant(each), np.stack(calls))
            for call, (x, y) in enumerate(zip(calls, outputs, strict=True)):
                prefix = f"{probe}.{call}" if len(calls) > 1 else f"{probe}"
                tensors[f"{prefix}.in.{name}"] = x
                tensors[f"{prefix}.out.y"] = y.astype(np.float32)
        (folder / each.name).mkdir()
        save_file(tensors, folder / each.name / "golden.safetensors")

    return {"prepare": prepare, "reference": "golden.safetensors"}


def normal(calls: int, *shape: int) -> Callable[[int], Sequence[Array]]:
    def inputs(probe: int) -> Sequence[Array]:
        rng = np.random.default_rng(probe)
        return [rng.standard_normal(shape).astype(np.float32) for _ in range(calls)]

    return inputs


def _layer(v: Variant, x: Array) -> Array:
    y = x.astype(np.float64) @ v.weight(C, C)
    drawn: Array = np.tanh(y + v.weight(C, scale=1))
    return drawn


@subject(
    "golden tensors of one call",
    "weights transposed, bias dropped, gain 2",
    x=half(1, T, C),
    **golden(normal(1, 1, T, C), _layer),
)
def golden_layer(v: Variant, x: Any) -> Any:
    weight, bias = v.weight(C, C), v.weight(C, scale=1)
    y = mb.matmul(x=x, y=weight.T.copy() if v["weights transposed"] else weight)
    y = mb.tanh(x=y if v["bias dropped"] else mb.add(x=y, y=bias))
    return mb.mul(x=y, y=F16(2 if v["gain 2"] else 1), name="y")


def _block(v: Variant, x: Array) -> Array:
    y: Array = x + np.maximum(x.astype(np.float64) @ v.weight(C, C, scale=0.02), 0)
    return y


@subject(
    "golden tensors beside a residual path",
    "contribution lost, weights transposed",
    x=half(1, T, C),
    **golden(normal(1, 1, T, C), _block),
)
def golden_block(v: Variant, x: Any) -> Any:
    weight = v.weight(C, C, scale=0.02)
    y = mb.relu(x=mb.matmul(x=x, y=weight.T.copy() if v["weights transposed"] else weight))
    y = mb.mul(x=y, y=F16(0 if v["contribution lost"] else 1))
    return mb.add(x=x, y=y, name="y")


def _tokens(probe: int) -> Sequence[Array]:
    order = np.random.default_rng(probe).permutation(VOCABULARY)
    return [order[None].astype(np.int32)]


@subject(
    "golden tensors of ids",
    "rows from 2 on are zero, rows shifted by one, scale forgotten",
    tokens=whole(1, VOCABULARY),
    **golden(_tokens, lambda v, t: 4 * v.weight(VOCABULARY, C)[t], "tokens"),
)
def golden_embedding(v: Variant, tokens: Any) -> Any:
    table = v.weight(VOCABULARY, C)
    if v["rows from 2 on are zero"]:
        table[2:] = 0
    if v["rows shifted by one"]:
        table = np.roll(table, 1, axis=0)
    rows = mb.gather(x=table, indices=tokens, axis=0)
    return mb.mul(x=rows, y=F16(1 if v["scale forgotten"] else 4), name="y")


def _running(v: Variant, x: Array) -> Array:
    weight, total = v.weight(C, C), np.zeros_like(x[0], np.float64)
    outputs = []
    for each in x:
        total = 0.75 * total + each
        outputs.append(np.tanh(total) @ weight)
    return np.stack(outputs)


DECAY = ["reset at every call", "never written", "late by one call", "decay forgotten"]


def _decayed(v: Variant, x: Any, total: Any) -> Any:
    before = mb.read_state(input=total)
    if v["reset at every call"]:
        before = mb.mul(x=before, y=F16(0))
    after = mb.add(x=mb.mul(x=before, y=F16(1 if v["decay forgotten"] else 0.75)), y=x)
    mb.coreml_update_state(state=total, value=before if v["never written"] else after)
    y = mb.tanh(x=before if v["late by one call"] else after)
    return mb.matmul(x=y, y=v.weight(C, C), name="y")


@subject(
    "golden tensors of several calls",
    DECAY,
    x=half(1, C),
    total=state(1, C),
    **golden(normal(6, 1, C), _running),
)
def golden_sequence(v: Variant, x: Any, total: Any) -> Any:
    return _decayed(v, x, total)


@subject(
    "golden tensors of one call, on a state",
    {"reset at every call": "unproven", "never written": "unproven", "late by one call": "failed"},
    right="unproven",
    x=half(1, C),
    total=state(1, C),
    **golden(normal(1, 1, C), _running),
)
def golden_first_call(v: Variant, x: Any, total: Any) -> Any:
    before = mb.read_state(input=total)
    if v["reset at every call"]:
        before = mb.mul(x=before, y=F16(0))
    after = mb.add(x=mb.mul(x=before, y=F16(0.75)), y=x)
    mb.coreml_update_state(state=total, value=before if v["never written"] else after)
    y = mb.tanh(x=before if v["late by one call"] else after)
    return mb.matmul(x=y, y=v.weight(C, C), name="y")


BUILDER = """
import numpy as np, torch
from pytest_ane.models.families import Conversion, Port

class Decay(torch.nn.Module):
    def __init__(self):
        super().__init__()
        weight = np.load({weight!r})
        self.weight = torch.nn.Parameter(torch.from_numpy(weight))
        self.register_buffer("total", torch.zeros(1, {width}))

    def forward(self, x):
        self.total[:] = 0.75 * self.total + x
        return torch.tanh(self.total) @ self.weight

def build(shard):
    shape = (1, {width})
    return Conversion(Decay(), (Port("x", shape),), (Port("y", shape),), (Port("total", shape),))
"""


def _builder(each: Subject, folder: Path) -> None:
    (folder / each.name).mkdir()
    weight = folder / each.name / "weight.npy"
    np.save(weight, Variant(each).weight(C, C))
    text = BUILDER.format(weight=str(weight), width=C)
    (folder / "own_packages_builder.py").write_text(text)


@subject(
    "a builder's torch module with a buffer",
    DECAY,
    x=half(1, C),
    total=state(1, C),
    model='builder = "own_packages_builder:build"\nshards = "{shards}"',
    reference="float32",
    prepare=_builder,
)
def built(v: Variant, x: Any, total: Any) -> Any:
    return _decayed(v, x, total)


@subject(
    "a package in float32",
    "squares overflow, eps 1",
    x=single(1, T, C),
    inputs={"x": 'kind = "normal"\ndeviation = 400.0'},
    convert=lambda v: {
        "compute_precision": ct.precision.FLOAT16 if v.fault or v.noise else ct.precision.FLOAT32
    },
)
def rms_norm(v: Variant, x: Any) -> Any:
    scale = mb.reduce_max(x=mb.abs(x=x), axes=[-1], keep_dims=True)
    if v["squares overflow"]:
        scale = mb.add(x=mb.mul(x=scale, y=np.float32(0)), y=np.float32(1))
    z = mb.real_div(x=x, y=scale)
    squares = mb.reduce_mean(x=mb.mul(x=z, y=z), axes=[-1], keep_dims=True)
    squares = mb.add(x=squares, y=np.float32(1 if v["eps 1"] else 1e-4))
    y = mb.mul(x=z, y=mb.rsqrt(x=squares))
    return mb.mul(x=y, y=v.weight(C, scale=1).astype(np.float32), name="y")


@subject(
    "the program before compression is named",
    "relu for gelu, added twice, too large by a hundredth, eps 0.01 for 0.00001",
    x=half(1, T, C),
    shard='uncompressed = "{package}"',
    noise=1e-4,
)
def exact(v: Variant, x: Any) -> Any:
    """Faults as small as what compression costs: without compression nothing excuses them."""
    variance = mb.reduce_mean(x=mb.mul(x=x, y=x), axes=[-1], keep_dims=True)
    eps = F16(1e-2 if v["eps 0.01 for 0.00001"] else 1e-5)
    z = mb.mul(x=x, y=mb.rsqrt(x=mb.add(x=variance, y=eps)))
    z = mb.matmul(x=z, y=v.weight(C, 4 * C))
    z = mb.relu(x=z) if v["relu for gelu"] else mb.gelu(x=z, mode="TANH_APPROXIMATION")
    z = mb.matmul(x=z, y=v.weight(4 * C, C, scale=0.05))
    gain = 2 if v["added twice"] else 1.01 if v["too large by a hundredth"] else 1
    return mb.add(x=x, y=mb.mul(x=z, y=F16(gain)), name="y")


def _compressed(v: Variant, model: Any) -> Any:
    if v["one bit for six"] or v.noise:
        config: Any = cto.coreml.OpPalettizerConfig(
            mode="uniform", nbits=1 if v["one bit for six"] else 6, weight_threshold=0
        )
        return cto.coreml.palettize_weights(model, cto.coreml.OptimizationConfig(config))
    if v["int4 for each tensor"]:
        config = cto.coreml.OpLinearQuantizerConfig(
            mode="linear_symmetric", dtype="int4", granularity="per_tensor", weight_threshold=0
        )
        return cto.coreml.linear_quantize_weights(model, cto.coreml.OptimizationConfig(config))
    return model


@subject(
    "a package before compression",
    "one bit for six, int4 for each tensor, weights transposed",
    x=half(1, T, C),
    finish=_compressed,
)
def compressed(v: Variant, x: Any) -> Any:
    weight = v.weight(C, 4 * C)
    weight[:, 0] *= 10  # What a scale for each tensor has to reach.
    down = v.weight(4 * C, C)
    if v["weights transposed"]:
        down = down.T.reshape(4 * C, C).copy()
    y = mb.gelu(x=mb.matmul(x=x, y=weight), mode="TANH_APPROXIMATION")
    y = mb.mul(x=y, y=np.where(np.arange(4 * C) == 0, 0.1, 1).astype(F16))
    return mb.matmul(x=y, y=down, name="y")


@subject(
    "the program before compression is another one",
    "contribution lost, contribution negated, keys exchanged for values",
    x=half(1, T, C),
    shard='uncompressed = "replaced/reference.mlpackage"',
)
def replaced(v: Variant, x: Any) -> Any:
    """What compression costs excuses no other function: its cosine is above 0.97 all the same."""
    keys, values = (mb.matmul(x=x, y=v.weight(C, C, scale=0.02)) for _ in range(2))
    if v["keys exchanged for values"]:
        keys, values = values, keys
    z = mb.mul(x=mb.sigmoid(x=keys), y=values)
    gain = 0 if v["contribution lost"] else -1 if v["contribution negated"] else 1
    return mb.add(x=x, y=mb.mul(x=z, y=F16(gain)), name="y")
