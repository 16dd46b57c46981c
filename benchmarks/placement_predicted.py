"""How often Core ML's cost model is right on labelled rows, where their shapes decide.

A row's shapes decide if it is about one uncompressed operation and one of these holds:

- the ANE takes the operation in no shape (`argsort`, `lstm`);
- its shapes break a limit of the ANE (rank 6, an axis of 240,000), which holds on every chip;
- all extents are given, and the chip has public costs (M4, M4 Pro) or is not told (`M-series`).

All else is left out: whole programs, compressed weights, shapes told in part, chips without costs;
what the prediction leaves undecided; and operations as large as those of which it says that other
plans contradict it. A direct compilation is no choice of Core ML's. The label has no part in this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pytest_ane.gates.placement.segmenter import Op, Tensor, is_contradicted, predict
from pytest_ane.gates.placement.segmenter._costs import obstacle

Row: TypeAlias = Mapping[str, str]
Unit = Literal["on", "off"]

PRECISION, RECALL = 0.8, 0.7
_UNCOMPRESSED = ("", "fp16", "float16")
_WEIGHTED = frozenset({"conv", "conv_transpose", "linear"})
_OPERANDS = {
    **dict.fromkeys(("add", "maximum", "minimum", "mul", "real_div", "sub"), 2),
    "scaled_dot_product_attention": 3,
}
_UNKNOWN = re.compile(r"(apple silicon|m-series|mac)?", re.IGNORECASE)


@dataclass(frozen=True)
class Foreseen:
    """A row with what was measured and what is predicted."""

    row: Row
    truth: Unit
    predicted: Unit
    why: str


def foreseen(row: Row, kind: str | None, truth: Unit | None) -> Foreseen | None:
    """The prediction of a row; `None` where its shapes do not decide.

    Args:
        row: its columns by name.
        kind: the MIL op it is about.
        truth: what was measured of the whole row.
    """
    if kind is None or truth is None or row["quant"].strip().lower() not in _UNCOMPRESSED:
        return None
    op = described(kind, row["op_type"], row["shapes"])
    if limit := obstacle(op or _anything(kind, row["op_type"]), "ane"):
        return Foreseen(row, truth, "off", limit)
    chip = _chip(row.get("chip", ""))
    if op is None or chip is None:
        return None
    (placed,) = predict([op], "CPU_AND_NE", chip).operations
    if placed.undecided or is_contradicted(op, placed.off):
        return None
    why = placed.off.cause if placed.off else f"margin {placed.margin or 0:.3f} ms"
    return Foreseen(row, truth, "on" if placed.unit == "ANE" else "off", why)


def _chip(name: str) -> str | None:
    """The chip whose costs count; `None` where a row names one without any."""
    name = re.sub(r"\(.*?\)|\b\d+ GB\b", "", name).strip()
    if name in ("M4", "M4 Pro"):
        return name
    return "M4" if _UNKNOWN.fullmatch(name) else None


def _anything(kind: str, op_type: str) -> Op:
    """The operation in a shape that the ANE takes."""
    small = Tensor((1, 16, 1, 16))
    result = Tensor(small.shape, _cast_to(kind, op_type))
    indices = (Tensor((16,), "int16"),) if kind.startswith("gather") else ()
    attributes = {"runtime_indices": (1,)} if kind == "gather" else {}
    return Op("y", kind, (small, *indices), (result,), attributes=attributes)


def _cast_to(kind: str, op_type: str) -> str:
    to = re.search(r"->\s*(\w+)", op_type) if kind == "cast" else None
    return to[1] if to else "fp16"


def described(kind: str, op_type: str, shapes: str) -> Op | None:
    """The operation a row describes, if it gives all extents.

    `[1,64,8,8]` and `1x64x8x8` are the input's shape; `linear 5120->17408` with `N=1` rows, `k=`,
    `n=` and `M=` are those of a matrix product; `conv 3x3` and `kernel=(1,3)` those of a kernel,
    `64->128` its channels; `rank 6` stands for extents of 2.
    """
    if rank := re.search(r"\brank (\d+)", shapes):
        return _plain(kind, (2,) * int(rank[1]))
    if kind in ("linear", "matmul"):
        return _product(kind, f"{op_type} {shapes}")
    shape = _shape(shapes)
    if shape is None:
        return None
    return _convolution(kind, shape, op_type, shapes) if kind == "conv" else _plain(kind, shape)


def _shape(text: str) -> tuple[int, ...] | None:
    """The first shape of a text that is nothing but a shape, or begins with one."""
    if sides := re.fullmatch(r"\[N(\d+) D(\d+) C(\d+) H(\d+) W(\d+)\]", text.strip()):
        n, d, c, h, w = map(int, sides.groups())
        return (n, c, h, w) if d == 1 else (n, c, d, h, w)
    match = re.match(r"\s*(?:[\[(]((?:\d+\s*,\s*)+\d+)[\])]|(\d+(?:x\d+){2,}))", text)
    if match is None:
        return None
    return tuple(int(extent) for extent in re.findall(r"\d+", match[1] or match[2]))


def _plain(kind: str, shape: tuple[int, ...]) -> Op | None:
    if kind in _WEIGHTED:
        return None
    tensor = Tensor(shape)
    return Op("y", kind, (tensor,) * _OPERANDS.get(kind, 1), (tensor,))


def _convolution(kind: str, shape: tuple[int, ...], op_type: str, shapes: str) -> Op | None:
    text = f"{op_type} {shapes}"
    if len(shape) != 4:
        return None
    kernel = re.search(r"kernel[ =]*\(?(\d+)[x,] ?(\d+)", text) or re.search(
        r"\bconv\S* (\d+)x(\d+)\b(?!x)", op_type
    )
    if kernel is None:
        return None
    channels = re.search(r"\b(\d+) ?-> ?(\d+)\b", text)
    given, made = (int(n) for n in channels.groups()) if channels else (shape[1], shape[1])
    if given != shape[1]:
        return None
    groups = given if "depthwise" in text else 1
    weight = Tensor((made, given // groups, *map(int, kernel.groups())), constant=True)
    result = Tensor((shape[0], made, *shape[2:]))
    attributes = {"groups": (groups,)}
    return Op("y", kind, (Tensor(shape),), (result,), weight, attributes)


def _product(kind: str, text: str) -> Op | None:
    """A product of `[M, K]` by `[K, N]`; the rows are `N=` beside the outputs' `n=`, or `M=`."""
    named = {name: int(n) for name, n in re.findall(r"\b([kmnKMN]) ?= ?(\d+)", text)}
    arrow = re.search(r"\b(\d+) ?-> ?(\d+)\b", text)
    square = re.search(r"\b(\d+) square\b", text)
    triple = re.search(r"\b(\d+)x(\d+)x(\d+)\b", text)
    if square:
        m = k = n = int(square[1])
    elif triple:
        m, k, n = (int(extent) for extent in triple.groups())
    else:
        depth = int(arrow[1]) if arrow else named.get("k", named.get("K"))
        width = int(arrow[2]) if arrow else named.get("n")
        rows = named.get("M", named.get("m", named.get("N")))
        if depth is None or width is None or rows is None:
            return None
        m, k, n = rows, depth, width
    x, result = Tensor((m, k)), Tensor((m, n))
    if kind == "linear":
        return Op("y", kind, (x,), (result,), Tensor((n, k), constant=True))
    return Op("y", kind, (x, Tensor((k, n))), (result,))


def table(results: Iterable[Foreseen]) -> Iterator[str]:
    """Precision and recall of `predicted off`, and every row."""
    kept = list(results)
    said, off = ([r for r in kept if r.predicted == "off"], [r for r in kept if r.truth == "off"])
    hits = sum(r.truth == "off" for r in said)
    yield "| rows whose shapes decide | precision of `predicted off` | recall |"
    yield "|---|---|---|"
    yield f"| {len(kept)} | {_share(hits, len(said))} | {_share(hits, len(off))} |"
    for result in kept:
        what = " · ".join(filter(None, (result.row["op_type"], result.row["shapes"])))
        told = f"predicted {result.predicted} ({result.why}), measured {result.truth}"
        yield f"  {result.row['id']} {what}: {told}"


def passes(results: Iterable[Foreseen]) -> bool:
    """Whether precision and recall are at their bars; so they are where nothing is off."""
    kept = list(results)
    said = [r for r in kept if r.predicted == "off"]
    off = [r for r in kept if r.truth == "off"]
    hits = sum(r.truth == "off" for r in said)
    return hits >= PRECISION * len(said) and hits >= RECALL * len(off)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.2f} ({part}/{whole})" if whole else "-"
