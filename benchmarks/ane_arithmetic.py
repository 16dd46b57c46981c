"""Recorded outputs of the ANE against the rules of `pytest_ane.mlprogram.executor.ane`.

    python -m benchmarks.ane_arithmetic [--rows FILE.csv ...]

A row has an operation (`op`), its operands as JSON (`operands`, fp16 numbers as hex patterns,
`0x3c00*576` for 576 equal ones) and the ANE's output (`ane_fp16` as a hex pattern, several outputs
one after the other, or `ane` in decimal). A function of one number takes `x`, or `count` numbers
from the pattern `first` on. So `pytest-ane first-contact` writes them, too.
Prints a table by operation, every mismatch, what is not scored and why, and which of some
candidates fits what has no rule (`benchmarks.ane_candidates`); the total is the last line. Exits 1
where a scored row is not reproduced or none is scored, 2 where the file cannot be read. The default
file is tests/mlprogram/executor/ane/recorded.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.executor.ane.accumulator import Weight, sums
from pytest_ane.mlprogram.executor.ane.products import quantize, w8a8
from pytest_ane.mlprogram.executor.ane.simulation import rules

Row = Mapping[str, Any]
ROWS = Path(__file__).parents[1] / "tests/mlprogram/executor/ane/recorded.csv"
NOT_SCORED = {"act_": "a summary of a whole curve", "_cliff": "a summary of a sweep"}
OTHER_GENERATIONS = ("M1", "M2", "M3")
NO_EVIDENCE = "not counted as ANE evidence"
_COUNTS = ("K", "n", "N", "count")
_NO_VECTORS = ("b", "bias", *_COUNTS)
UNREADABLE = (
    ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip
LARGEST = 1 << 22
"""Operands a row may stand for."""


class NotScoredError(Exception):
    """Why a row is not scored."""


@dataclass(frozen=True)
class Result:
    """A row's output and what the rules give, as fp16 patterns."""

    id: str
    op: str
    recorded: tuple[int, ...]
    computed: tuple[int, ...]

    @property
    def is_reproduced(self) -> bool:
        """Bit for bit."""
        return self.recorded == self.computed

    def __str__(self) -> str:
        """The first output that differs, and how many do."""
        pairs = list(zip(self.recorded, self.computed, strict=True))
        wrong = [(i, *pair) for i, pair in enumerate(pairs) if pair[0] != pair[1]]
        i, *bits = wrong[0]
        recorded, computed = (f"{np.uint16(b).view(np.float16)} (0x{b:04x})" for b in bits)
        place = f" output {i}, the first of {len(wrong)}" if len(pairs) > 1 else ""
        return f"{self.op} {self.id}{place}: recorded {recorded}, computed {computed}"


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
    """A vector of fp16 numbers; a single one is repeated, and `0x3c00*576` stands for 576."""
    runs = [repeats(v) for v in value] if isinstance(value, list) else [(value, count)]
    if sum(length for _, length in runs) > LARGEST:
        raise ValueError("too many operands")
    values = [np.full(length, number(v), np.float32) for v, length in runs]
    return np.concatenate([np.empty(0, np.float32), *values])


def repeats(value: Any) -> tuple[Any, int]:
    """A number, and how often it stands in its vector."""
    text, _, count = value.partition("*") if isinstance(value, str) else (value, "", "")
    return text, max(int(count), 0) if count else 1


def dot(operands: Mapping[str, Any]) -> float:
    """Two vectors, usually `w` and `x`, and the bias `b`: an output of a 1x1 convolution or matmul.

    A vector may be one number, which is then repeated `K` times.
    """
    named = [operands[key] for key in ("w", "x") if key in operands]
    others = [value for key, value in operands.items() if key not in _NO_VECTORS]
    first, second = named if len(named) == 2 else others
    counts = [int(operands[key]) for key in _COUNTS if key in operands]
    lengths = (len(numbers(v)) for v in (first, second) if isinstance(v, list))
    count = max([1, *counts, *lengths])
    w, x = numbers(first, count), numbers(second, count)
    if len(w) != len(x):
        raise ValueError(f"{len(w)} weights and {len(x)} inputs")
    bias = numbers(operands.get("b") or operands.get("bias") or 0)[:1]
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


def unary(op: str) -> Callable[[Mapping[str, Any]], FloatArray]:
    """A function of one number, by its rule: of `x`, or of `count` numbers from `first` on."""

    def compute(operands: Mapping[str, Any]) -> FloatArray:
        parameters = dict(operands)
        if "x" in parameters:
            x = numbers(parameters.pop("x"))
        else:
            first, count = int(parameters.pop("first"), 16), int(parameters.pop("count"))
            if not 0 <= first < first + count <= 1 << 16:
                raise ValueError(f"no {count} fp16 numbers from {first:#x} on")
            x = np.arange(first, first + count).astype(np.uint16).view(np.float16)
        if isinstance(epsilon := parameters.get("epsilon"), str):
            parameters["epsilon"] = number(epsilon)
        result = rules()[op].compute(x.astype(np.float32), **parameters)
        if result is None:
            raise NotScoredError(f"operation {op!r} has no rule for {parameters}")
        return np.asarray(result)

    return compute


def pairwise(op: str) -> Callable[[Mapping[str, Any]], FloatArray]:
    """An element-wise operation on `x` and `y`."""
    compute = rules()[op].compute
    return lambda operands: np.asarray(compute(numbers(operands["x"]), numbers(operands["y"])))


FUNCTIONS = (
    "abs", "erf", "exp", "exp2", "gelu", "inverse", "log", "rsqrt", "sigmoid", "sign", "silu",
    "softplus", "sqrt", "square", "tanh",
)  # fmt: skip
OPERATIONS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    **{op: unary(op) for op in FUNCTIONS},
    "conv": dot, "conv_bias": dot, "conv_lsb": dot, "conv_palette": dot, "matmul": dot,
    "linear": dot,
    "conv_w8a8": integer_conv, "quantize": quantized,
    **{f"{prefix}{op}": pairwise(op)
       for op in ("add", "sub", "mul") for prefix in ("elementwise_", "")},
    "maximum": pairwise("maximum"), "minimum": pairwise("minimum"),
}  # fmt: skip


def patterns(y: Any) -> tuple[int, ...]:
    """Bits of fp16 numbers."""
    return tuple(np.asarray(y, np.float16).reshape(-1).view(np.uint16).tolist())


def outputs(row: Mapping[str, Any]) -> tuple[int, ...]:
    """What the ANE gave, as patterns."""
    recorded = str(row.get("ane_fp16") or "").lower().split()
    if recorded:
        return patterns([number(f"0x{text.removeprefix('0x')}") for text in recorded])
    return patterns([number(row.get("ane"))])


def objection(row: Row) -> str:
    """What speaks against counting a row as an output of the ANE from h16 on; else empty."""
    chip = str(row.get("chip") or "").split()
    if chip and chip[0] in OTHER_GENERATIONS:
        return f"{chip[0]} is of another generation than h16+"
    return "the output may be the CPU's" if NO_EVIDENCE in str(row.get("note") or "") else ""


def score(row: Row) -> Result:
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
    if reason := objection(row):
        raise NotScoredError(reason)
    try:
        recorded = outputs(row)
        operands = json.loads(str(row.get("operands")))
        with np.errstate(all="ignore"):
            computed = patterns(OPERATIONS[op](operands))
        if len(recorded) != len(computed):
            raise ValueError(f"{len(recorded)} outputs, not {len(computed)}")
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
    parser.add_argument("--rows", type=Path, nargs="+", default=[ROWS], metavar="FILE.csv")
    try:
        rows = [row for file in parser.parse_args(arguments).rows for row in read(file)]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return report(*scored(rows), fits(rows))


def scored(rows: Iterable[Row]) -> tuple[list[Result], Counter[tuple[str, str]]]:
    """What was computed, and how many rows of an operation are not scored for which reason."""
    results, reasons = [], Counter[tuple[str, str]]()
    for row in rows:
        try:
            results.append(score(row))
        except NotScoredError as reason:
            reasons[str(row.get("op")), str(reason)] += 1
    return results, reasons


def by_operation(results: Iterable[Result]) -> Iterator[tuple[str, int, int]]:
    """Operation, rows, and how many of them are reproduced."""
    by_op = defaultdict(list)
    for result in results:
        by_op[result.op].append(result.is_reproduced)
    for op, matches in sorted(by_op.items()):
        yield op, len(matches), sum(matches)


def fits(rows: Iterable[Row]) -> Iterator[str]:
    """How many rows of operations without a rule each candidate reproduces."""
    from benchmarks.ane_candidates import CANDIDATES

    by_op = defaultdict(list)
    for row in rows:
        if row.get("op") in CANDIDATES and not objection(row):
            by_op[str(row.get("op"))].append(row)
    for op, candidates in CANDIDATES.items():
        readable = [known for row in by_op[op] if (known := _known(row, candidates)) is not None]
        for name in candidates if readable else ():
            count = sum(name in known for known in readable)
            yield f"candidate: {op}, {name}: {count} of {len(readable)} rows"


def _known(row: Row, candidates: Mapping[str, Callable[..., Any]]) -> list[str] | None:
    """Names of the candidates that reproduce a row; None for one that cannot be read."""
    try:
        recorded, operands = outputs(row), json.loads(str(row.get("operands")))
        with np.errstate(all="ignore"):
            return [
                n for n, compute in candidates.items() if patterns(compute(operands)) == recorded
            ]
    except UNREADABLE:
        return None


def report(
    results: list[Result], reasons: Counter[tuple[str, str]], candidates: Iterable[str] = ()
) -> int:
    """Print what came out; the exit code."""
    print("| operation | rows | reproduced |\n|---|---|---|")
    for op, count, reproduced in by_operation(results):
        print(f"| {op} | {count} | {reproduced} |")
    for result in results:
        if not result.is_reproduced:
            print(f"not reproduced: {result}")
    for (op, reason), count in sorted(reasons.items()):
        print(f"not scored: {op}, {count} rows: {reason}")
    for line in candidates:
        print(line)
    reproduced = sum(result.is_reproduced for result in results)
    unscored = sum(reasons.values())
    print(f"{reproduced} of {len(results)} scored rows reproduced, {unscored} not scored")
    return 0 if results and reproduced == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
