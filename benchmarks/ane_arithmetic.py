"""Recorded outputs of the ANE against the rules of `pytest_ane.reference.ane`.

    python -m benchmarks.ane_arithmetic [--rows FILE.csv]

A row has an operation (`op`), its operands as JSON (`operands`, fp16 numbers as hex patterns) and
the ANE's output (`ane_fp16` as a hex pattern, or `ane` in decimal); `id` and `note` are shown.
Prints a table by operation, every mismatch, and what is not scored and why; the total is the last
line. Exits 1 where a scored row is not reproduced or none is scored, 2 where the file cannot be
read. The default file is tests/reference/ane/recorded.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pytest_ane.core.arrays import FloatArray
from pytest_ane.reference.ane.accumulator import Weight, sums
from pytest_ane.reference.ane.elementwise import add, mul, sub
from pytest_ane.reference.ane.integers import quantize, w8a8

ROWS = Path(__file__).parents[1] / "tests/reference/ane/recorded.csv"
NOT_SCORED = {"act_": "a summary of a whole curve", "_cliff": "a summary of a sweep"}
OTHER_GENERATIONS = ("M1", "M2", "M3")
NO_EVIDENCE = "not counted as ANE evidence"
_NO_VECTORS = ("b", "K", "n", "N")
UNREADABLE = (
    ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip
LARGEST = 1 << 20
"""Operands a row may stand for."""


class NotScoredError(Exception):
    """Why a row is not scored."""


@dataclass(frozen=True)
class Result:
    """A row's output and what the rules give, as fp16 patterns."""

    id: str
    op: str
    recorded: int
    computed: int

    @property
    def is_reproduced(self) -> bool:
        """Bit for bit."""
        return self.recorded == self.computed

    def __str__(self) -> str:
        recorded, computed = (
            np.uint16(bits).view(np.float16) for bits in (self.recorded, self.computed)
        )
        return (
            f"{self.op} {self.id}: recorded {recorded} (0x{self.recorded:04x}), "
            f"computed {computed} (0x{self.computed:04x})"
        )


def number(text: Any) -> float:
    """An fp16 number from a pattern in hex, or from a decimal number that fp16 holds."""
    if isinstance(text, str) and text.strip().lower().startswith("0x"):
        bits = int(text, 16)
        if bits > 0xFFFF:
            raise ValueError(f"{text} is no fp16 pattern")
        return float(np.uint16(bits).view(np.float16))
    with np.errstate(over="ignore"):
        half = float(np.float16(float(text)))
    if half != float(text) and not np.isnan(half):
        raise ValueError(f"{text} is no fp16 number")
    return half


def numbers(value: Any, count: int = 1) -> FloatArray:
    """A vector of fp16 numbers; a single one is repeated."""
    values = value if isinstance(value, list) else [value] * count
    return np.array([number(v) for v in values], np.float32)


def dot(operands: Mapping[str, Any]) -> float:
    """Two vectors, usually `w` and `x`, and the bias `b`: an output of a 1x1 convolution or matmul.

    A vector may be one number, which is then repeated `K` times.
    """
    first, second = (value for key, value in operands.items() if key not in _NO_VECTORS)
    counts = [int(operands[key]) for key in ("K", "n", "N") if key in operands]
    count = max([1, *counts, *(len(v) for v in (first, second) if isinstance(v, list))])
    if count > LARGEST:
        raise ValueError(f"{count} operands")
    w, x = numbers(first, count), numbers(second, count)
    if len(w) != len(x):
        raise ValueError(f"{len(w)} weights and {len(x)} inputs")
    bias = numbers(operands.get("b") or 0)[:1]
    total = sums(Weight.of(w[None, None]), x[None, None], bias[None])
    return float(total.values.item())


def integer_conv(operands: Mapping[str, Any]) -> float:
    """`N` channels and `kh` rows of equal codes `q_x` and `q_w`, both scales 2^-k.

    Modes: `pos` and `neg` as they are, `cancel` with the other half's weights negated, `alt` with
    127 as the weight in every second row.
    """
    channels, rows = int(operands["N"]), int(operands.get("kh", 1))
    if not 0 < channels * rows <= LARGEST:
        raise ValueError(f"{channels} x {rows} operands")
    mode = operands.get("mode", "pos")
    weight = np.full((rows, channels), int(operands["q_w"]), np.int64)
    if mode == "cancel":
        weight[:, channels // 2 :] *= -1
    elif mode == "alt":
        weight[1::2] = 127
    elif mode not in ("pos", "neg"):
        raise NotScoredError(f"mode {mode!r} is not known")
    codes = np.full((1, weight.size), int(operands["q_x"]), np.int64)
    scale = 2.0 ** -int(operands["k"])
    return float(w8a8(codes, weight.reshape(1, -1), scale, scale).values.item())


def quantized(operands: Mapping[str, Any]) -> float:
    """`x` by `scale` and `zero_point` to a code."""
    x = numbers(operands["x"])
    code = quantize(x, float(operands.get("scale", 1)), operands.get("output_dtype", "int8"),
                    int(operands.get("zero_point", 0)))  # fmt: skip
    return float(code.item())


def pairwise(compute: Callable[..., FloatArray]) -> Callable[[Mapping[str, Any]], float]:
    """An element-wise operation on `x` and `y`."""
    return lambda operands: float(compute(numbers(operands["x"]), numbers(operands["y"])).item())


OPERATIONS: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "conv": dot, "conv_bias": dot, "conv_lsb": dot, "matmul": dot, "linear": dot,
    "conv_w8a8": integer_conv, "quantize": quantized,
    "elementwise_add": pairwise(add), "elementwise_sub": pairwise(sub),
    "elementwise_mul": pairwise(mul),
}  # fmt: skip


def pattern(y: float) -> int:
    """Bits of an fp16 number."""
    return int(np.float16(y).view(np.uint16))


def score(row: Mapping[str, Any]) -> Result:
    """Compute one row.

    Raises:
        NotScoredError: why it is not scored.
    """
    op, name = (str(row.get(key) or "").strip() for key in ("op", "id"))
    for part, reason in NOT_SCORED.items():
        if op.startswith(part) or op.endswith(part):
            raise NotScoredError(reason)
    if op not in OPERATIONS:
        raise NotScoredError(f"operation {op!r} has no rule")
    chip = str(row.get("chip") or "").split()
    if chip and chip[0] in OTHER_GENERATIONS:
        raise NotScoredError(f"{chip[0]} is of another generation than h16+")
    if NO_EVIDENCE in str(row.get("note") or ""):
        raise NotScoredError("the output may be the CPU's")
    try:
        recorded = pattern(number(str(row.get("ane_fp16") or "").strip() or row.get("ane")))
        operands = json.loads(str(row.get("operands")))
        with np.errstate(all="ignore"):
            computed = pattern(OPERATIONS[op](operands))
    except UNREADABLE as error:
        raise NotScoredError(f"its values cannot be read ({error!r:.80})") from error
    return Result(name, op, recorded, computed)


def read(path: Path) -> list[dict[str, Any]]:
    """Rows of a file; lines that begin with `#` are comments.

    Raises:
        ValueError: it is no such file; one sentence.
    """
    csv.field_size_limit(1 << 27)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(line for line in file if not line.startswith("#"))
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read: {error}.") from error
    columns = set(reader.fieldnames or ())
    if not {"op", "operands"} <= columns or not columns & {"ane", "ane_fp16"}:
        raise ValueError(f"{path} lacks columns: op, operands, and ane or ane_fp16 are needed.")
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Print the table; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rows", type=Path, default=ROWS, metavar="FILE.csv")
    try:
        rows = read(parser.parse_args(arguments).rows)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    results, reasons = [], Counter[tuple[str, str]]()
    for row in rows:
        try:
            results.append(score(row))
        except NotScoredError as reason:
            reasons[str(row.get("op")), str(reason)] += 1
    return report(results, reasons)


def report(results: list[Result], reasons: Counter[tuple[str, str]]) -> int:
    """Print what came out; the exit code."""
    by_op = defaultdict(list)
    for result in results:
        by_op[result.op].append(result.is_reproduced)
    print("| operation | rows | reproduced |\n|---|---|---|")
    for op, matches in sorted(by_op.items()):
        print(f"| {op} | {len(matches)} | {sum(matches)} |")
    for result in results:
        if not result.is_reproduced:
            print(f"not reproduced: {result}")
    for (op, reason), count in sorted(reasons.items()):
        print(f"not scored: {op}, {count} rows: {reason}")
    reproduced = sum(result.is_reproduced for result in results)
    unscored = sum(reasons.values())
    print(f"{reproduced} of {len(results)} scored rows reproduced, {unscored} not scored")
    return 0 if results and reproduced == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
