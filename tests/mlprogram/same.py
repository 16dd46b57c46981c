"""Whether two programs are the same, as a package and its compiled twin should be.

Compared are functions by name, opsets, operations in order, and constants by value. The order of a
function's inputs, parameters and attributes means nothing; nor does a NaN's payload, nor, between
models, where a weight lies. Bare programs have no files: their blobs are compared by place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from pytest_ane.mlprogram.blob import load
from pytest_ane.mlprogram.records import Blob, Function, MLModel, Program, Value


def differences(a: MLModel | Program, b: MLModel | Program) -> list[str]:
    """A line for each place where two models or two programs differ, in program order."""
    sides = [(x, x.program) if isinstance(x, MLModel) else (None, x) for x in (a, b)]
    return list(_compare("program", *(_plain(program, model) for model, program in sides)))


def _plain(x: Any, model: MLModel | None) -> Any:
    """A record as nested dicts and tuples, weights of models loaded."""
    if isinstance(x, Value) and isinstance(x.data, Blob) and model is not None:
        x = replace(x, data=load(model, x))
    if isinstance(x, Function):
        inputs = {named.name: named.type for named in x.inputs}
        return {"opset": x.opset, "inputs": inputs, "block": _plain(x.block, model)}
    if is_dataclass(x):
        return {field.name: _plain(getattr(x, field.name), model) for field in fields(x)}
    if isinstance(x, Mapping):
        return {key: _plain(value, model) for key, value in x.items()}
    return tuple(_plain(y, model) for y in x) if isinstance(x, (tuple, list)) else x


def _compare(where: str, a: Any, b: Any) -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        where += f" {a['op']}" if "op" in a else ""
        for key in a:
            yield from _compare(f"{where}.{key}", a[key], b[key])
    elif isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from _compare(f"{where}[{i}]", x, y)
    elif not _equal(a, b):
        yield f"{where}: {str(a)[:200]} against {str(b)[:200]}"


def _equal(a: Any, b: Any) -> bool:
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return type(a) is type(b) and bool(a == b)
    if a.dtype != b.dtype or a.shape != b.shape or a.dtype.kind != "f":
        return a.dtype == b.dtype and np.array_equal(a, b)
    signs = (np.signbit(a) == np.signbit(b)) | np.isnan(a)
    return np.array_equal(a, b, equal_nan=True) and bool(signs.all())
