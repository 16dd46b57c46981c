"""A kind of package: its torch module, what it may be asked, and the faults that porters make."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from pytest_ane.make.coremltools_quiet import import_coremltools
from tests.battery.fault import Put

Array = npt.NDArray[Any]
Call: TypeAlias = Mapping[str, Array]
Sequence_: TypeAlias = Sequence[Call]
"""Calls one after another, on one state where there is one."""
Cause = Literal["wrong function", "fp16", "interface", "compression"]
EFFECT = 0.01
"""A fault counts from this relative difference of an output's row on."""
_SCALES = (0.1, 1.0, 10.0, 100.0, 1_000.0, 10_000.0)

ct = import_coremltools()
F16 = np.float16


class Brought(nn.Module):
    """A module with a fault or without; its weights are the same either way.

    Attributes:
        wrong: the fault's name; empty for none.
        states: names of buffers that are states.
    """

    states: tuple[str, ...] = ()

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong
        self._rng = torch.Generator().manual_seed(zlib.crc32(type(self).__name__.encode()))
        self.build()

    def build(self) -> None:
        """Make the weights, in one order."""
        raise NotImplementedError

    def has(self, *faults: str) -> bool:
        """Whether the fault is one of these."""
        return self.wrong in faults

    def weight(self, *shape: int, scale: float | None = None, mean: float = 0.0) -> nn.Parameter:
        """Normal values in fp16, of deviation `scale` or what keeps a product's size."""
        deviation = shape[-1] ** -0.5 if scale is None else scale
        values = torch.randn(shape, generator=self._rng) * deviation + mean
        return nn.Parameter(values.half().float(), requires_grad=False)

    def linear(self, taken: int, given: int, *, bias: float = 0.0, scale: float = 1.0) -> nn.Linear:
        """A projection whose biases have this deviation; none for 0."""
        made = nn.Linear(taken, given, bias=bias > 0)
        made.weight = self.weight(given, taken, scale=scale * taken**-0.5)
        if bias:
            made.bias = self.weight(given, scale=bias)
        return made

    def state(self, name: str, *shape: int) -> None:
        """A buffer of zeros that calls carry on."""
        self.register_buffer(name, torch.zeros(shape))
        self.states = (*self.states, name)

    def reset(self) -> None:
        """Begin with states of zeros."""
        for name in self.states:
            getattr(self, name).zero_()


def rms(x: Tensor, weight: Tensor | float, eps: float = 1e-5, *, plain: bool = False) -> Tensor:
    """RMSNorm that survives fp16 by dividing first; `plain` squares what enters."""
    if plain:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight
    largest = x.abs().amax(-1, keepdim=True).clamp(min=1.0)
    y = x / largest
    return y * torch.rsqrt((y * y).mean(-1, keepdim=True) + eps / largest / largest) * weight


def angles(size: int, positions: int, theta: float = 1e4) -> tuple[Tensor, Tensor]:
    """Cosines and sines `[positions, size]` of RoPE, both halves alike."""
    frequencies = theta ** (-torch.arange(0, size, 2) / size)
    each = torch.arange(positions)[:, None] * frequencies
    return torch.cos(torch.cat([each, each], -1)), torch.sin(torch.cat([each, each], -1))


def turned(x: Tensor, cos: Tensor, sin: Tensor, how: str = "") -> Tensor:
    """Apply RoPE to the last axis in halves; `how` turns by pairs, or one half the wrong way."""
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    if how == "pairs":
        even, odd = x[..., 0::2], x[..., 1::2]
        return x * cos + torch.stack([-odd, even], -1).flatten(-2) * sin
    if how == "sign":
        return x * cos + torch.cat([second, -first], -1) * sin
    return x * cos + torch.cat([-second, first], -1) * sin


@dataclass(frozen=True)
class Flaw:
    """One fault of a kind.

    Attributes:
        name: unique within its kind; what the module's `has` knows it by.
        kind: its class: `function`, `positions`, `states`, `numbers`, `interface` or `bytes`.
        cause: what the first sentence of a red verdict should name.
        put: changes the files of the compressed package, where the fault is one of bytes.
    """

    name: str
    kind: str
    cause: Cause = "wrong function"
    put: Put | None = None


@dataclass(frozen=True)
class Kind:
    """A kind of package that people bring.

    Attributes:
        inputs: coremltools' inputs, of a function and a fault.
        outputs: names and types.
        sequences: what golden tensors hold, of a generator and a function: `few` or all it takes.
        asked: more that it can be asked, for a fault's effect alone.
        compression: settings of coremltools' own compressor.
        tables: of the manifest, by input.
        functions: of a multifunction package, the default first.
        prepared: a call's inputs as the torch module takes them.
    """

    name: str
    module: Callable[[str], Brought]
    flaws: tuple[Flaw, ...]
    inputs: Callable[[str, str], Sequence[Any]]
    outputs: Mapping[str, Any]
    sequences: Callable[[np.random.Generator, str, bool], Sequence[Sequence_]]
    asked: Callable[[np.random.Generator], Sequence[Sequence_]]
    compression: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    functions: tuple[str, ...] = ()
    prepared: Callable[[Call], Call] = dict

    @property
    def stateful(self) -> bool:
        """Whether calls carry a state on."""
        return bool(self.module("").states)


def run(kind: Kind, module: Brought, sequence: Sequence_) -> list[dict[str, Array]]:
    """A module's outputs by name for each call, in its own precision."""
    module.reset()
    half = next(module.parameters()).dtype == torch.half
    with torch.no_grad():
        answers = []
        for call in sequence:
            tensors = [torch.from_numpy(np.asarray(x)) for x in kind.prepared(call).values()]
            floats = [t if t.dtype == torch.int32 else t.half() if half else t.float()
                      for t in tensors]  # fmt: skip
            given = module(*floats)
            given = given if isinstance(given, tuple) else (given,)
            answers.append({n: y.float().numpy() for n, y in zip(kind.outputs, given, strict=True)})
    return answers


def effect(kind: Kind, flaw: Flaw) -> float:
    """Greatest relative difference of a row that a fault makes in what the package can be asked.

    Infinite for faults of bytes, of the interface, and where one of the two is not finite.
    """
    if flaw.put is not None or flaw.kind == "interface":
        return float("inf")
    right, wrong = kind.module(""), kind.module(flaw.name)
    if flaw.cause == "fp16":
        wrong = wrong.half()
    worst = 0.0
    for sequence in kind.asked(np.random.default_rng(5)):
        pairs = zip(*(run(kind, each, sequence) for each in (right, wrong)), strict=True)
        for expected, given in pairs:
            worst = max(worst, *(_difference(given[n], expected[n]) for n in expected))
    return worst


def _difference(given: Array, expected: Array) -> float:
    rows = expected.reshape(-1, expected.shape[-1] if expected.ndim < 4 else expected[0].size)
    difference = np.linalg.norm(given.reshape(rows.shape) - rows, axis=-1)
    relative = difference / np.maximum(np.linalg.norm(rows, axis=-1), 1e-20)
    return float(relative.max()) if np.isfinite(relative).all() else float("inf")


def scaled(rng: np.random.Generator, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Normal values of these shapes, each at scales from 0.1 to 10,000."""
    return [(s * rng.standard_normal(shape)).astype(F16) for shape in shapes for s in _SCALES]


def positioned(
    rng: np.random.Generator, width: int, positions: Sequence[int], rows: int = 1, **more: Any
) -> list[dict[str, Array]]:
    """Calls of `rows` positions each that begin at these, with what `more` makes of a position."""
    return [
        {
            "x": rng.standard_normal((1, rows, width)).astype(F16),
            "pos": np.array([p], np.int32),
            **{name: make(p) for name, make in more.items()},
        }
        for p in positions
    ]
