"""Which backends take an operation, and the limit that keeps it off (`support.toml`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from pytest_ane.gates.placement.segmenter._costs import Entry, check_sources, inner
from pytest_ane.gates.placement.segmenter._records import Backend, Op, Tensor
from pytest_ane.manifest.base import loads

Words = Annotated[frozenset[str], BeforeValidator(lambda text: frozenset(text.split()))]


class _Never(Entry):
    backend: Backend
    operations: Words
    reason: str


class _DTypes(Entry):
    backend: Backend
    types: Words
    operations: Words = frozenset()


class _Limit(Entry):
    name: str
    value: Annotated[int, Field(gt=0)]


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    measured: Words
    sources: Mapping[str, str]
    never: tuple[_Never, ...]
    dtypes: tuple[_DTypes, ...]
    limit: tuple[_Limit, ...]

    @model_validator(mode="after")
    def _consistent(self) -> _File:
        check_sources((*self.never, *self.dtypes, *self.limit), self.sources)
        return self


@dataclass(frozen=True)
class _Support:
    """The file by what is looked up.

    Attributes:
        never: reasons by backend and op type.
        casts, others: element types the ANE takes.
    """

    measured: frozenset[str]
    never: Mapping[tuple[Backend, str], str]
    casts: frozenset[str]
    others: frozenset[str]
    limits: Mapping[str, int]


@cache
def _support() -> _Support:
    text = files(__package__).joinpath("support.toml").read_text("utf-8")
    file = _File.model_validate(loads(text))
    types = {kind: entry.types for entry in file.dtypes for kind in entry.operations or {""}}
    return _Support(
        file.measured,
        {(e.backend, kind): e.reason for e in file.never for kind in e.operations},
        types["cast"],
        types[""],
        {entry.name: entry.value for entry in file.limit},
    )


def limit(name: str) -> int:
    """A limit of the ANE in elements, such as `axis`, by its name in `support.toml`."""
    return _support().limits[name]


def wide_kernel(shape: Sequence[int | None]) -> str:
    """Why the ANE takes no convolution by a kernel of this shape (rows, columns or columns alone).

    Empty where it takes it, or where the kernel has another rank.
    """
    if len(shape) not in (1, 2):
        return ""
    *height, width = (extent or 1 for extent in shape)
    rows = height[0] if height else 1
    if rows == 1:
        name, extent, axis = "kernel width", width, "wide"
    elif width == 1:
        name, extent, axis = "kernel height", rows, "high"
    else:
        name, extent, axis = "kernel side", max(rows, width), "on a side"
    most = limit(name)
    return "" if extent <= most else f"a kernel of {rows}x{width}; the ANE takes {most} {axis}"


def wide_window(width: int) -> str:
    """Why the ANE takes no max_pool of this width; empty where it does."""
    most, besides = limit("max_pool width"), limit("max_pool width besides")
    if width <= most or width == besides:
        return ""
    return f"max_pool {width} wide; the ANE takes {most}, or {besides}"


def is_measured(op: Op) -> bool:
    """Whether a plan with an operation of this type is public."""
    support = _support()
    return op.kind in support.measured or ("ane", op.kind) in support.never


def obstacle(op: Op, backend: Backend) -> str:
    """The limit that keeps an operation off a backend, in a sentence's part; empty for none."""
    support = _support()
    if reason := support.never.get((backend, op.kind)):
        return f"{op.kind}: {reason}"
    if backend != "ane":
        return ""
    return _types(op, support) or _indices(op) or _extents(op) or _window(op) or _depth(op)


def _types(op: Op, support: _Support) -> str:
    allowed = support.casts if op.kind == "cast" else support.others
    # Constant indices are compiled into the program, whatever their type.
    tensors = [tensor for tensor in (*op.inputs, *op.outputs) if not tensor.constant]
    outside = sorted({tensor.dtype for tensor in tensors} - allowed)
    return f"{op.kind} of {', '.join(outside)}: the ANE has no such tensors" if outside else ""


def _indices(op: Op) -> str:
    if op.kind == "gather" and op.flag("runtime_indices"):
        return "gather with indices computed at run time"
    if op.kind == "slice_by_size" and op.flag("runtime_begin"):
        return "slice_by_size with a begin computed at run time"
    return ""


def _extents(op: Op) -> str:
    tensors: tuple[Tensor, ...] = (*op.inputs, *op.outputs)
    longest = max((extent or 0 for tensor in tensors for extent in tensor.shape), default=0)
    if longest > limit("axis"):
        return f"an axis of {longest:,}; the ANE takes {limit('axis'):,}"
    rank = max((len(tensor.shape) for tensor in tensors), default=0)
    if rank > limit("rank"):
        return f"a tensor of rank {rank}; the ANE takes {limit('rank')}"
    return ""


def _window(op: Op) -> str:
    if op.kind == "conv" and op.weight is not None:
        return wide_kernel(op.weight.shape[2:])
    sizes = op.attributes.get("kernel_sizes", ())
    return wide_window(sizes[-1]) if op.kind == "max_pool" and sizes else ""


def _depth(op: Op) -> str:
    if op.kind != "matmul" or inner(op) <= limit("matmul depth"):
        return ""
    return f"matmul over {inner(op):,} elements; the ANE takes {limit('matmul depth'):,}"
