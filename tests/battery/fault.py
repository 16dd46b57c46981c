"""Faults as data, and how one is put into a torch module: the artifact has it, its reference not.

Most faults are edits of the family's own code: `edit("forward", "x + fed", "fed")` gives one module
a method in which that text is replaced. An edit whose text does not occur exactly once is an error,
so that no fault is lost when a family changes.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from tests.battery.plain import written_out

Modules: TypeAlias = Callable[[str], nn.Module]
"""The right torch module of any shard of the model, for weights that come from a neighbour."""
Put: TypeAlias = Callable[[Any, Modules], Any]
"""Puts a fault in its place; of a module it changes the module itself."""

Place = Literal["module", "package", "host", "interface", "scheme", "reading"]
Cause = Literal["wrong function", "fp16", "compression", "interface", "embedding", "build"]

BLOCKS = ("smollm2:L01", "smollm2:L15", "smollm2:L29")
HEAD = ("smollm2:head.1",)


@dataclass(frozen=True)
class Fault:
    """One fault, or one rewriting that computes the same.

    Attributes:
        name: unique.
        kind: its class: `RoPE`, `mask`, `cache`...
        what: what is wrong, in a few words.
        put: see `Place`: a torch module before conversion, the files of a built package, the host's
            layout, the converter's arguments, the compression's settings, or the opened model, of
            which all but the references is given as the fault has it.
        shards: qualified ids of the shards that get it; a model's name for what its host embeds.
        gate: which gate should be red.
        cause: what the first sentence of its verdict should name.
        fp16: whether only fp16 shows it.
        equivalent: shards where it has no effect, with the reason; `tiny` is the tests' model.
        benign: whether it is to pass.
    """

    name: str
    kind: str
    what: str
    put: Put
    shards: tuple[str, ...] = BLOCKS
    place: Place = "module"
    gate: str = "fidelity"
    cause: Cause = "wrong function"
    fp16: bool = False
    equivalent: Mapping[str, str] = field(default_factory=dict)
    benign: bool = False


def faults(kind: str, shards: tuple[str, ...], *rows: tuple[Any, ...]) -> list[Fault]:
    """Faults of one class and shards: rows of name, what is wrong, `put`, and fields of its own."""
    return [Fault(row[0], kind, row[1], row[2], shards, **dict(*row[3:])) for row in rows]


def edit(method: str, old: str, new: str, at: str = "") -> Put:
    """Replace `old` by `new` in the code of a method of the module, or of its part `at`.

    `|` in `at` separates several parts that get the same edit.
    """

    def put(module: nn.Module, _: Modules) -> None:
        for name in _path(module, at).split("|"):
            part = module.get_submodule(name)
            written_out(part)
            part.__class__ = type(
                type(part).__name__, (type(part),), {method: _edited(type(part), method, old, new)}
            )

    return put


def both(*puts: Put) -> Put:
    """Several changes, one after another."""

    def put(module: nn.Module, modules: Modules) -> None:
        for each in puts:
            each(module, modules)

    return put


def weight(name: str, change: Callable[[Tensor], Tensor]) -> Put:
    """Change a parameter; `|` separates several names."""

    def put(module: nn.Module, _: Modules) -> None:
        for each in _path(module, name).split("|"):
            _set(module, each, change(module.get_parameter(each).detach().clone()))

    return put


def borrowed(name: str, shard: str, other: str = "") -> Put:
    """Take a parameter from another shard, or from another parameter of it."""

    def put(module: nn.Module, modules: Modules) -> None:
        _set(module, name, modules(shard).get_parameter(other or name).detach().clone())

    return put


def exchanged(first: str, second: str) -> Put:
    """Exchange two parameters."""

    def put(module: nn.Module, _: Modules) -> None:
        a, b = (module.get_parameter(n).detach().clone() for n in (first, second))
        _set(module, first, b)
        _set(module, second, a)

    return put


def _set(module: nn.Module, name: str, value: Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    part = module.get_submodule(path)
    before = part.get_parameter(leaf)
    assert value.shape == before.shape, (name, value.shape, before.shape)
    setattr(part, leaf, nn.Parameter(value.to(before.dtype), requires_grad=False))


def _path(module: nn.Module, text: str) -> str:
    """`{pack}` stands for Gemma's pack, which is a part of the last pack and the others whole."""
    pack = "pack." if "pack" in dict(module.named_children()) else ""
    return text.replace("{pack}", pack).rstrip(".")


def _edited(cls: type, method: str, old: str, new: str) -> Any:
    function = getattr(cls, method)
    source = getattr(function, "edited", None) or textwrap.dedent(inspect.getsource(function))
    if source.count(old) != 1:
        raise AssertionError(f"{cls.__name__}.{method} has {old!r} {source.count(old)} times")
    source = source.replace(old, new)
    scope: dict[str, Any] = {}
    code = compile("from __future__ import annotations\n" + source, "<fault>", "exec")
    exec(code, {**vars(sys.modules[function.__module__]), **HELPERS}, scope)
    scope[method].edited = source
    scope[method].__module__ = function.__module__
    return scope[method]


def length(x: Tensor) -> Tensor:
    """T of `[1, C, T, 1]` as a tensor, so that tracing keeps it flexible."""
    return (x[:, :1] * 0 + 1).sum(dim=2, keepdim=True)


def between(value: Tensor, low: float, high: float) -> Tensor:
    """1 where a whole number is from `low` to `high`, else 0."""
    return (value - (low - 1)).clamp(0, 1) * ((high + 1) - value).clamp(0, 1)


def places(write: Tensor) -> Tensor:
    """Positions of a call, `[1, 1, T, 1]`, of the one-hot `write [1, 1, T, S]`."""
    slots = torch.arange(write.shape[3], dtype=write.dtype).reshape(1, 1, -1, 1)
    return write @ slots


def slots(write: Tensor, low: int, high: int = 1 << 14) -> Tensor:
    """1 for slots `low` to `high` of a state, else 0: `[1, 1, 1, S]`."""
    index = torch.arange(write.shape[3])
    return ((index >= low) & (index <= high)).to(write.dtype).reshape(1, 1, 1, -1)


def adjacent(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE of adjacent pairs along axis 2 of `[KV, G, d, T]`."""
    kv, groups, head = x.shape[0], x.shape[1], x.shape[2]
    pairs = x.reshape(kv, groups, head // 2, 2, -1)
    turned = torch.cat([-pairs[:, :, :, 1:], pairs[:, :, :, :1]], dim=3).reshape(x.shape)
    half = head // 2
    c = cos[:, :, :half].repeat_interleave(2, dim=2)
    s = sin[:, :, :half].repeat_interleave(2, dim=2)
    return x * c + turned * s


def shifted(x: Tensor, axis: int, by: int = 1) -> Tensor:
    """Rolled along an axis by slices; the converter knows no `roll` of flexible tensors."""
    before = (slice(None),) * axis
    return torch.cat([x[(*before, slice(-by, None))], x[(*before, slice(None, -by))]], dim=axis)


def back(x: Tensor, axis: int, by: int = 1) -> Tensor:
    """Rolled the other way."""
    before = (slice(None),) * axis
    return torch.cat([x[(*before, slice(by, None))], x[(*before, slice(None, by))]], dim=axis)


HELPERS: Mapping[str, Any] = {
    "torch": torch,
    "nn": nn,
    "F": nn.functional,
    "length": length,
    "between": between,
    "places": places,
    "slots": slots,
    "adjacent": adjacent,
    "shifted": shifted,
    "back": back,
}


def unique(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """The faults; `AssertionError` where two have one name."""
    names = [fault.name for fault in faults]
    assert len(set(names)) == len(names), sorted({n for n in names if names.count(n) > 1})
    return tuple(faults)
