"""How the ANE of a Mac computes: programs of one operation each, and rows of what they gave.

Core ML leaves small work on the CPU (on an M4 a product of matrices below some 100 million
multiply-accumulates), so tensors repeat their samples; whether often enough, the plan says. Rows
are as tests/mlprogram/executor/ane/recorded.csv, which `benchmarks.ane_arithmetic` scores.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

import pytest_ane
from pytest_ane.backends import CoreMLBackend
from pytest_ane.backends.coreml import Machine
from pytest_ane.backends.coreml.machine import is_replaced
from pytest_ane.backends.coreml.process import Device
from pytest_ane.gates.placement.measure import plan_on_device
from pytest_ane.make import Cache
from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.mlprogram.arrays import Array, DoubleArray, FloatArray
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.model import read_model

SEED = 20261122
_LARGE = (1, 64, 256, 256)
"""A tensor of 4 million elements: every fp16 number 64 times."""
_VECTORS = 4096
"""Vectors of an experiment whose operation takes vectors: its samples, repeated."""
_ROWS = 1024
"""Outputs of a convolution for each vector."""
NO_EVIDENCE = "not counted as ANE evidence"
"""In a row's note; who scores rows leaves such a row out."""
_REPLAYED = f"the native module is replaced by pytest-ane, no Core ML: {NO_EVIDENCE}"
_SAME = f"every output of the program equals the CPU's, which may have run it: {NO_EVIDENCE}"


class Sample(NamedTuple):
    """Elements of the output that make one row, and what they were computed from, as JSON data."""

    name: str
    operands: Mapping[str, Any]
    at: Any


@dataclass(frozen=True)
class Experiment:
    """One operation `kind`, named `op` in rows, its fp16 inputs, and a `body` that builds it."""

    name: str
    op: str
    kind: str
    question: str
    inputs: Mapping[str, FloatArray] = field(repr=False)
    body: Callable[..., Any] = field(repr=False)
    samples: tuple[Sample, ...] = field(repr=False)

    def save(self, folder: Path) -> Path:
        import_coremltools()
        from coremltools.converters.mil import Builder as mb
        from coremltools.converters.mil.mil import types

        path = folder / f"{self.name}.mlpackage"
        specs = [mb.TensorSpec(x.shape, dtype=types.fp16) for x in self.inputs.values()]
        # coremltools names the inputs after the function's arguments.
        body = (lambda x, y: self.body(mb, x, y)) if len(specs) == 2 else lambda x: self.body(mb, x)
        with converter_notes():
            convert(path, body, specs, "iOS18")
        return path


def convert(path: Path, body: Callable[..., Any], specs: Any, target: str, **options: Any) -> None:
    """Write the `.mlpackage` of a program for `target`, made of the inputs' variables by `body`."""
    ct = import_coremltools()
    from coremltools.converters.mil import Builder as mb

    version = ct.target[target]
    ct.convert(
        mb.program(input_specs=specs, opset_version=version)(body),
        convert_to="mlprogram",
        minimum_deployment_target=version,
        skip_model_load=True,
        **options,
    ).save(str(path))


class Row(NamedTuple):
    """What the ANE and the CPU gave for the same operands.

    Operands are JSON; fp16 numbers are hex patterns, `0x3c00*576` for 576 equal ones. A single
    output is in decimal too, several ones are patterns one after the other. The note says what
    speaks against counting the row.
    """

    id: str
    chip: str
    source: str
    op: str
    operands: str
    ane: str
    ane_fp16: str
    cpu: str
    note: str


def _patterns(numbers: Any) -> str:
    bits = np.asarray(numbers, np.float16).reshape(-1).view(np.uint16)
    return " ".join(f"0x{int(b):04x}" for b in bits)


def _operand(numbers: Array) -> list[str]:
    """A vector of fp16 numbers for JSON; equal neighbours as `0x3c00*576`."""
    runs = [(bits, len(list(run))) for bits, run in groupby(_patterns(numbers).split())]
    return [bits if count == 1 else f"{bits}*{count}" for bits, count in runs]


def to_csv(rows: Iterable[Row], comment: str = "") -> bytes:
    text = io.StringIO()
    text.write(f"# {comment}\n" if comment else "")
    csv.writer(text, lineterminator="\n").writerows((Row._fields, *rows))
    return text.getvalue().encode()


def record(experiment: Experiment, machine: Machine, device: Device) -> list[Row]:
    """Run an experiment on the ANE and on the CPU; `AneError` where the plan says elsewhere."""
    with TemporaryDirectory(prefix="pytest-ane-") as folder:
        package, cache = experiment.save(Path(folder)), Cache(Path(folder, "cache"))
        ane, cpu = (
            CoreMLBackend(cache, units, machine=machine, device=device)
            for units in ("CPU_AND_NE", "CPU_ONLY")
        )
        plan = plan_on_device(ane, package, read_model(package))
        devices = {op.preferred for _, op in plan.walk() if op.op == experiment.kind}
        if devices != {"ANE"}:
            on = "/".join(sorted(d or "no device" for d in devices)) or "no device"
            raise ExecutionError(f"the plan places {experiment.kind} on {on}, not on the ANE.")
        outputs = [b.load(package).predict(experiment.inputs) for b in (ane, cpu)]
    (on_ane,), (on_cpu,) = (tuple(output.values()) for output in outputs)
    # Bit by bit, those of zeros and NaN too.
    same = on_ane.tobytes() == on_cpu.tobytes()
    note = _REPLAYED if is_replaced() else _SAME if same else ""
    return rows_of(experiment, on_ane, on_cpu, machine, note)


def rows_of(
    experiment: Experiment, ane: Array, cpu: Array, machine: Machine, note: str = ""
) -> list[Row]:
    chip = f"{machine.chip.removeprefix('Apple ')} {machine.os} ({machine.os_build})"
    source = f"pytest-ane {pytest_ane.__version__} first-contact"
    rows = []
    for name, values, at in experiment.samples:
        operands = json.dumps(values, separators=(",", ":"))
        on_ane, on_cpu = _patterns(ane[at]), _patterns(cpu[at])
        one, other = "", on_cpu
        if np.size(ane[at]) == 1:
            one, other = str(float(ane[at].item())), str(float(cpu[at].item()))
        id = f"{experiment.name}/{name}"
        rows.append(Row(id, chip, source, experiment.op, operands, one, on_ane, other, note))
    return rows


def _random(name: str) -> np.random.Generator:
    return np.random.default_rng([SEED, *name.encode()])


def _repeated(columns: FloatArray, count: int = _VECTORS) -> FloatArray:
    return columns[:, np.arange(count) % columns.shape[1]]


def _half(numbers: Any) -> FloatArray:
    with np.errstate(over="ignore"):
        return np.asarray(numbers, np.float64).astype(np.float16).astype(np.float32)


def _curve(name: str, kind: str = "", **parameters: Any) -> Experiment:
    kind = kind or name
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    samples = tuple(
        Sample(f"0x{first:04x}", {"first": f"0x{first:04x}", "count": 256, **parameters},
               np.unravel_index(np.arange(first, first + 256), _LARGE))
        for first in range(0, 1 << 16, 256)
    )  # fmt: skip
    return Experiment(
        name, kind, kind, f"the curve of {name}, at every fp16 number",
        {"x": np.resize(every.astype(np.float32), _LARGE)},
        lambda mb, x: getattr(mb, kind)(x=x, **parameters), samples,
    )  # fmt: skip


def _addends(name: str) -> Iterator[tuple[str, DoubleArray]]:
    """64 vectors of 576 numbers whose sums tell apart in which order and in what they are added."""
    size, random = 576, _random(name)
    ones = np.ones(size)
    at = (0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256, 287, 288, 511, 575)
    for place in at:  # 2048 + 1 is 2050 in fp16 with ties away, and 2049 in a wider sum.
        yield f"2048-at-{place}", np.where(np.arange(size) == place, 2048, ones)
    yield "below-half-lsb", ones * 2.0**-18
    yield "above-half-lsb", ones * 1.5 * 2.0**-17
    yield "subnormal", ones * 2.0**-24
    for total in (30000, 40000, 60000, 70000):
        yield f"all-{total}", ones * total / size
        yield f"halves-{total}", np.where(np.arange(size) % (size // 2) == 0, total / 2, 0)
    for first, second in ((0, 1), (0, 288), (287, 288), (0, 575)):
        numbers = np.zeros(size)  # Twice 60000, and what cancels one of them at the end but one.
        numbers[first], numbers[second], numbers[-2] = 60000, 60000, -60000
        yield f"cancel-{first}-{second}", numbers
    yield from ((f"normal-{i}", random.standard_normal(size)) for i in range(14))
    yield from ((f"square-{i}", (random.standard_normal(size) * 2) ** 2) for i in range(10))
    for i in range(5):
        yield f"wide-{i}", random.standard_normal(size) * 2.0 ** random.integers(-12, 6, size)


def _reduction(op: str, axis: str) -> Experiment:
    over = axis == "channels"
    along, index = ("over channels", 1) if over else ("along a row", 3)
    vectors = {name: _half(v) for name, v in _addends(op)}
    columns = _repeated(np.stack([*vectors.values()], 1))
    samples = tuple(
        Sample(n, {"x": _operand(v), "axis": axis}, np.s_[0, 0, 0, i] if over else np.s_[0, i])
        for i, (n, v) in enumerate(vectors.items())
    )
    return Experiment(
        f"{op}_{axis}", op, op, f"order and width of partial sums, {along}",
        {"x": np.ascontiguousarray((columns if over else columns.T)[None, :, None])},
        lambda mb, x: getattr(mb, op)(x=x, axes=[index], keep_dims=True), samples,
    )  # fmt: skip


def _division() -> Experiment:
    random = _random("real_div")
    edges = np.array([[1, 3], [2, 3], [1, 7], [7, 7], [1, 0], [-1, 0], [0, 0], [0, 5], [-3, -0.0],
                      [65504, 0.5], [65504, 65504], [2.0**-24, 2.0**-24], [2.0**-24, 3],
                      [1, 2.0**-24], [2.0**-14, 3], [np.inf, 2], [2, np.inf], [np.inf, np.inf],
                      [1, 2.0**-14], [32768, 3]])  # fmt: skip
    sizes = 2.0 ** random.uniform(-8, 8, (180, 2)) * random.choice([-1, 1], (180, 2))
    pairs = _half(np.concatenate([edges, sizes]))
    x, y = (np.resize(column, _LARGE) for column in pairs.T)
    samples = [
        Sample(str(i), {"x": _patterns(a), "y": _patterns(b)}, np.unravel_index(i, _LARGE))
        for i, (a, b) in enumerate(pairs)
    ]
    return Experiment(
        "real_div", "real_div", "real_div", "whether a quotient is a product with an inverse",
        {"x": x, "y": y}, lambda mb, x, y: mb.real_div(x=x, y=y), tuple(samples),
    )  # fmt: skip


def _softmax() -> Experiment:
    size, random = 64, _random("softmax")
    vectors = [("equal", np.zeros(size)), ("one-large", np.eye(size)[5] * 20),
               ("steps", np.arange(size) / 8), ("large", np.arange(size) * 100.0)]  # fmt: skip
    base = random.standard_normal(size)
    vectors += [(f"shifted-{shift}", base + shift) for shift in (0, 8, 64, -64)]
    for scale in (0.5, 1, 2, 4, 8, 16, 32):
        vectors += [(f"scale-{scale}-{i}", random.standard_normal(size) * scale) for i in range(8)]
    columns = _half(np.stack([v for _, v in vectors], 1))
    samples = [
        Sample(n, {"x": _operand(columns[:, i])}, np.s_[0, :, 0, i])
        for i, (n, _) in enumerate(vectors)
    ]
    return Experiment(
        "softmax", "softmax", "softmax", "maximum, table, sum and quotient of softmax",
        {"x": _repeated(columns, 4 * _VECTORS)[None, :, None]},
        lambda mb, x: mb.softmax(x=x, axis=1), tuple(samples),
    )  # fmt: skip


def _int8_conv() -> Experiment:
    """Sums of codes beyond 32768 and 11 bits: a scale after the accumulator shows in them."""
    size, random = 64, _random("conv_int8")
    constant = (3, 4, 4.0625, 4.09375, 4.125, 5, 6, -4, -4.125, -5)
    count = 32 + len(constant)
    codes = random.integers(-127, 128, (_ROWS, size)).astype(np.int8)
    codes[32:] = 125
    scales = _half(np.where(np.arange(_ROWS) < 32, random.uniform(0.002, 0.02, _ROWS), 2.0**-8))
    columns = _half(random.integers(-127, 128, (size, count)) / 16)
    columns[:, 32:] = constant
    samples = [
        Sample(
            f"{i}", {"codes": codes[i].tolist(), "x": _operand(columns[:, i]),
                     "scale": _patterns(scales[i])}, np.s_[0, i, 0, i],
        )
        for i in range(count)
    ]  # fmt: skip

    def body(mb: Any, x: Any) -> Any:
        weight = mb.constexpr_blockwise_shift_scale(
            data=codes[:, :, None, None], scale=scales[:, None, None, None].astype(np.float16)
        )
        return mb.conv(x=x, weight=weight)

    return Experiment(
        "conv_int8", "conv_int8", "conv", "whether an 8-bit weight's scale comes after the sum",
        {"x": _repeated(columns)[None, :, None]}, body, tuple(samples),
    )  # fmt: skip


def _palette_conv() -> Experiment:
    """4-bit palettes: products around half a step of the accumulator, dropped ones, and sums."""
    size = 64
    palette = _half([2.0**-12, -(2.0**-12), 1.5 * 2.0**-11, 2.0**-10, 1.25 * 2.0**-9, 2.0**-8,
                     -1.75 * 2.0**-7, 2.0**-6, 0.1, -0.1, 0.75, 1, -1, 3, 30, -100])  # fmt: skip
    indices = (np.arange(_ROWS)[:, None] + np.arange(size)) % len(palette)
    steps = _half([0.5, 0.75, 1, 1.25, 1.5, 1.98, 2.5, 3.5])
    values = _half([*(steps * 2.0**-4), *(steps * 2.0**-5), *(-steps * 2.0**-6)])
    columns = np.zeros((size, size), np.float32)
    columns[0, : len(values)] = values
    columns[:, len(values) :] = _half(
        _random("conv_palette").standard_normal((size, size - len(values))) * 2.0**-5
    )
    samples = []
    for o in range(len(palette)):
        weight = palette[indices[o]]
        for p in range(size if o < 2 else len(values)):
            kept = slice(0, 1 if p < len(values) else size)
            operands = {"w": _operand(weight[kept]), "x": _operand(columns[kept, p])}
            samples.append(Sample(f"{o}-{p}", operands, np.s_[0, o, 0, p]))

    def body(mb: Any, x: Any) -> Any:
        from coremltools.converters.mil.mil.types import np_uint4_dtype

        weight = mb.constexpr_lut_to_dense(
            indices=indices[:, :, None, None].astype(np_uint4_dtype),
            lut=palette.reshape(1, 1, 1, 1, -1, 1).astype(np.float16),
        )
        return mb.conv(x=x, weight=weight)

    return Experiment(
        "conv_palette", "conv_palette", "conv", "whether a palette's weight counts as an fp16 one",
        {"x": _repeated(columns)[None, :, None]}, body, tuple(samples),
    )  # fmt: skip


_WIDTH, _OUTPUTS = 16384, 512
_PASSES = "whether the passes over 16,384 inputs share one accumulator"
_PLACES = sorted({0, *(2**i for i in range(14)), *range(1024, _WIDTH, 1024), _WIDTH - 1})


def _wide_sums(*, bias: bool) -> Iterator[tuple[str, FloatArray]]:
    """16,384 numbers whose sums lose small ones, or overflow, where an accumulator is fp16."""
    if bias:
        for start in range(0, _WIDTH, 1024):
            numbers = np.zeros(_WIDTH)
            numbers[start : start + 1024] = 40000 / 1024
            yield f"window-{start}", _half(numbers)
        yield "all", _half(np.full(_WIDTH, 40000 / _WIDTH))
        return
    for start in (0, _WIDTH // 2):
        for place in _PLACES:
            if place != start:
                numbers = np.full(_WIDTH, 2.0**-10)
                numbers[start], numbers[place] = -16384, 16384
                yield f"{start}-{place}", _half(numbers)


def _orders() -> Iterator[tuple[str, FloatArray]]:
    """Two of 20,000 and one of -20,000: infinite where that one comes last."""
    for negative in (0, _WIDTH // 3, _WIDTH - 1):
        for place in _PLACES[1:-1]:
            numbers = np.zeros(_WIDTH)
            numbers[[0 if negative else 1, negative, place]] = 20000
            numbers[negative] = -20000
            yield f"{negative}-{place}", _half(numbers)


def _wide_linear(
    name: str, question: str, vectors: Iterator[tuple[str, FloatArray]], bias: float = 0
) -> Experiment:
    named = dict(vectors)
    start = {"b": _patterns(bias)} if bias else {}
    samples = [
        Sample(n, {"w": [f"0x3c00*{_WIDTH}"], "x": _operand(v), **start}, np.s_[i, 0])
        for i, (n, v) in enumerate(named.items())
    ]

    def body(mb: Any, x: Any) -> Any:
        weight = np.ones((_OUTPUTS, _WIDTH), np.float16)
        if not bias:
            return mb.linear(x=x, weight=weight)
        return mb.linear(x=x, weight=weight, bias=np.full(_OUTPUTS, bias, np.float16))

    return Experiment(
        name, "linear" if bias else name, "linear", question,
        {"x": np.stack(list(named.values()))}, body, tuple(samples),
    )  # fmt: skip


_CURVES = ("exp", "sigmoid", "tanh", "silu", "erf", "sqrt", "rsqrt", "log", "inverse", "sin", "cos",
           "exp2", "softplus")  # fmt: skip

EXPERIMENTS: Mapping[str, Callable[[], Experiment]] = {
    **{
        f"{op}_{axis}": partial(_reduction, op, axis)
        for op in ("reduce_sum", "reduce_mean")
        for axis in ("channels", "row")
    },
    "real_div": _division,
    "softmax": _softmax,
    "conv_int8": _int8_conv,
    **{name: partial(_curve, name) for name in _CURVES},
    "gelu": partial(_curve, "gelu", mode="EXACT"),
    "gelu_tanh": partial(_curve, "gelu_tanh", "gelu", mode="TANH_APPROXIMATION"),
    "linear": lambda: _wide_linear("linear", _PASSES, _wide_sums(bias=False)),
    "linear_bias": lambda: _wide_linear("linear_bias", _PASSES, _wide_sums(bias=True), -16384),
    "linear_order": lambda: _wide_linear(
        "linear_order", "in which order 16,384 products are added", _orders()
    ),
    "conv_palette": _palette_conv,
}
"""What makes each experiment, by name; one at a time, since inputs and rows take memory."""
