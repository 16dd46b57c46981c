"""Parameters of integers: shapes and axes; paddings, strides and dilations of windows."""

from __future__ import annotations

from typing import Any

import numpy as np

Pads = list[tuple[int, int]]


def integers(values: Any) -> list[int]:
    """A parameter of integers or booleans, scalar or vector, as a list of Python's."""
    numbers: list[int] = np.asarray(values).reshape(-1).tolist()
    return numbers


def ints(values: Any, count: int, default: int) -> tuple[int, ...]:
    """One integer for each of `count` axes (or ends of axes), `default` where none are given."""
    if values is None:
        return (default,) * count
    numbers = tuple(integers(values))
    if len(numbers) != count:
        raise ValueError(f"{count} integers are needed, not {list(numbers)}")
    return numbers


def padding(
    pad_type: str, pad: Any, size: tuple[int, ...], kernel: tuple[int, ...],
    strides: tuple[int, ...], dilations: tuple[int, ...],
) -> Pads:  # fmt: skip
    """Elements before and after each spatial axis.

    `same` keeps ceil(size / stride) positions, the odd element after (`same_lower`: before).
    """
    if pad_type == "valid":
        return [(0, 0)] * len(kernel)
    if pad_type == "custom":
        values = ints(pad, 2 * len(kernel), 0)
        return list(zip(values[0::2], values[1::2], strict=True))
    totals = [
        max((-(-n // s) - 1) * s + extent(k, d) - n, 0)
        for n, k, s, d in zip(size, kernel, strides, dilations, strict=True)
    ]
    return [halves(pad_type, total) for total in totals]


def halves(pad_type: str, total: int) -> tuple[int, int]:
    """A total split into two, the odd one after for `same` and before for `same_lower`."""
    if pad_type not in ("same", "same_lower"):
        raise ValueError(f"unknown pad_type {pad_type!r}")
    less, more = total // 2, total - total // 2
    return (less, more) if pad_type == "same" else (more, less)


def extent(kernel: int, dilation: int) -> int:
    """Elements from a dilated kernel's first to its last."""
    return (kernel - 1) * dilation + 1
