"""How often the placement rules are right: precision and recall of `ineligible` on labelled rows.

    python benchmarks/placement_score.py --labels FILE.csv

A row tells where Core ML placed an op or a program. From its columns `op_type`, `shapes`, `quant`,
`size_mb` and `os` a minimal program is made and the rules are asked about it; `label` is then
compared, and `instrument` tells how it was come by. No rule that fails depends on `chip`, which
decides only whose costs predict a row. Columns that hold the answer (`ane`, `total`, `non_ane_ops`,
`note`) are never read. The exit code is 1 where precision or recall is below its bar.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from benchmarks import placement_predicted
from pytest_ane.gates.placement import Forecast, forecast
from pytest_ane.gates.placement.rules import Outcome
from pytest_ane.gates.placement.rules._ops import mil_ops
from pytest_ane.mlprogram.records import (
    Argument,
    Block,
    DType,
    Feature,
    Function,
    MLModel,
    Named,
    Operation,
    Program,
    Ref,
    StateType,
    TensorType,
    Value,
    ValueType,
)

Row: TypeAlias = Mapping[str, str]
Truth = Literal["on", "off"]

COLUMNS = ("id", "op_type", "shapes", "quant", "os", "size_mb", "instrument", "label")
DIRECT = "direct compilation"
PRECISION, RECALL = 0.95, 0.33
"""Of `ineligible` over all scored rows, at least."""
# A whole program is stood for by one convolution with its compression, shapes, size and states.
_WHOLE = re.compile(r"all\b.*|ct\.StateType.*|constexpr|weighted ops|blockwise 8-bit")
_ALIASES = {
    "arithmetic": "add",
    "conv/pad": "pad",
    "linear/conv": "linear",
    "read_state/write_state": "write_state",
    "unsqueeze": "expand_dims",
}
_DTYPES = {kind.value: kind for kind in DType}
_SHAPE = (1, 64, 1, 64)
_MIB = 2**20


@dataclass(frozen=True)
class Scored:
    """A row with what was measured, and the rules that say `ineligible` or warn."""

    row: Row
    truth: Truth
    rules: tuple[str, ...]
    warned: tuple[str, ...] = ()

    @property
    def verdict(self) -> Literal["hit", "false alarm", "miss", "right"]:
        """`ineligible` and off the ANE is a hit, `eligible` and on it is right."""
        if self.rules:
            return "hit" if self.truth == "off" else "false alarm"
        return "miss" if self.truth == "off" else "right"


def truth(row: Row) -> Truth | None:
    """What was measured; `None` where the label does not say it of the whole row.

    Values that are wrong on the ANE count as off: a rule that forbids them is right.
    """
    label, instrument = row["label"], row["instrument"]
    if "claimed" in label or instrument.startswith("inferred"):
        return None
    if "WRONG" in label or label.startswith(("NOT_ANE", "CPU", "GPU", "COMPILE_FAIL", "RUN_FAIL")):
        return "off"
    return "on" if label.startswith(("ANE", "COMPILES")) else None


def family(instrument: str) -> str:
    """The kind of an instrument; direct compilation is not how Core ML places."""
    if instrument.startswith(("direct", "ANECCompile")):
        return DIRECT
    if instrument.startswith(("MLComputePlan", "coreml-cli")):
        return "MLComputePlan"
    if instrument.startswith("Xcode"):
        return "Xcode report"
    if any(word in instrument for word in ("predict", "load", "on-device compile")):
        return "load and predict"
    return "other"


def system(os: str) -> str:
    """The first system a row names, such as `macOS 26`, which is also the default."""
    named = re.search(r"(macOS|iOS) (\d+)", os)
    return f"{named[1]} {named[2]}" if named else "macOS 26"


def op_of(op_type: str) -> str | None:
    """The MIL op a row is about, `conv` for a whole program, `None` where it names neither."""
    if _WHOLE.fullmatch(op_type):
        return "conv"
    words = re.sub(r"^ios\d+\.", "", op_type).split()
    name = _ALIASES.get(words[0], words[0]) if words else ""
    return name if name in mil_ops() else None


def extents(shapes: str) -> tuple[int, ...]:
    """The shape that a description gives, `(1, 64, 1, 64)` where it gives none."""
    if rank := re.search(r"\brank (\d+)", shapes):
        return (1,) * int(rank[1])
    if re.fullmatch(r"\[[\d,]+\]|\d+(x\d+){3}", shapes):
        return tuple(int(extent) for extent in re.findall(r"\d+", shapes))
    if sides := re.fullmatch(r"\[N(\d+) D1 C(\d+) H(\d+) W(\d+)\]", shapes):
        return tuple(int(extent) for extent in sides.groups())
    if depth := re.search(r"\bk ?(?:<=|=) ?(\d+)", shapes):
        return (1, int(depth[1]))
    if width := re.fullmatch(r"w=(\d+)", shapes):
        return (*_SHAPE[:3], int(width[1]))
    return _SHAPE


def scored(rows: Iterable[Row]) -> tuple[list[Scored], Counter[str]]:
    """The rows that can be scored, and why the others cannot."""
    done: list[Scored] = []
    left: Counter[str] = Counter()
    for row in rows:
        measured, op = truth(row), op_of(row["op_type"])
        if measured is None:
            left[f"label {row['label']} does not place the whole row"] += 1
        elif op is None:
            left["op_type names no MIL op"] += 1
        elif op.startswith("constexpr_") and all(w.op == "const" for w in weight(row["quant"])):
            left["a compile-time op, its compression is not told"] += 1
        else:
            found = foretold(row, op)
            done.append(Scored(row, measured, _rules(found, "ineligible"), _rules(found, "warned")))
    return done, left


def predicted(rows: Iterable[Row]) -> list[placement_predicted.Foreseen]:
    """The rows whose shapes decide, by Core ML's cost model."""
    core_ml = (row for row in rows if family(row["instrument"]) != DIRECT)
    results = (
        placement_predicted.foreseen(row, _one(row["op_type"]), truth(row)) for row in core_ml
    )
    return [result for result in results if result is not None]


def _one(op_type: str) -> str | None:
    return None if _WHOLE.fullmatch(op_type) else op_of(op_type)


def passes(rows: Iterable[Row]) -> bool:
    """Whether `ineligible` and `predicted off` are as often right as they must be."""
    kept = list(rows)
    count = Counter(one.verdict for one in scored(kept)[0])
    hits = count["hit"]
    said, off = hits + count["false alarm"], hits + count["miss"]
    right = hits >= PRECISION * said and hits >= RECALL * off
    return right and placement_predicted.passes(predicted(kept))


def _rules(found: Forecast, outcome: Outcome) -> tuple[str, ...]:
    return tuple(sorted({finding.rule for finding in found.of(outcome)}))


def foretold(row: Row, op: str) -> Forecast:
    """The forecast of the minimal program that a row describes."""
    size = int(float(row["size_mb"] or 0) * _MIB)
    return forecast(program(row, op), size_bytes=size).under(system(row["os"]))


def program(row: Row, op: str) -> MLModel:
    """A program of the op a row is about between two others, so that no cast is at the boundary.

    A compile-time op is asked about at the convolution that uses it. A mix of fp16 and fp32 is
    read as fp16 between inputs and outputs of fp32: which ops are fp32 is not told.
    """
    op = "conv" if op.startswith("constexpr_") else op
    shapes, quant = row["shapes"], row["quant"]
    shape = extents(shapes)
    full, mixed = "fp32" in quant.lower(), "mix" in quant.lower()
    kind = TensorType(DType.FP32 if full and not mixed else DType.FP16, shape)
    outer = replace(kind, dtype=DType.FP32) if mixed else kind
    inputs: dict[str, ValueType] = {"x": outer, "indices": TensorType(DType.INT32, (1,))}
    given: dict[str, Argument] = {"x": Ref("r")}
    made = [_cast("x", "c", kind), Operation("relu", {"x": (Ref("c"),)}, (Named("r", kind),))]
    result = kind
    if op in ("conv", "linear"):
        made += weight(quant)
        given["weight"] = Ref("w")
        if wide := re.search(r"\bn=(\d+)", shapes):
            result = TensorType(kind.dtype, (1, int(wide[1])))
    elif op.startswith("gather"):
        given["indices"] = Ref("indices")
    elif op == "cast" and (to := re.search(r"cast \w+->(\w+)", row["op_type"])):
        result = TensorType(_DTYPES[to[1]], kind.shape)
    elif op == "scaled_dot_product_attention" and "attn_mask produced on CPU" in shapes:
        inputs["mask"], given["attn_mask"] = kind, Ref("mask")
    if "StateType" in row["op_type"] or op == "write_state":
        inputs["cache"] = StateType(kind)
    arguments = {name: (argument,) for name, argument in given.items()}
    made.append(Operation(op, arguments, (Named("y", result),)))
    made.append(_cast("y", "b", kind))
    made.append(Operation("relu", {"x": (Ref("b"),)}, (Named("z", kind),)))
    made.append(_cast("z", "out", outer))
    block = Block((), tuple(made), ("out",))
    named = tuple(Named(name, type) for name, type in inputs.items())
    flexible = (shape, shape) if "EnumeratedShapes" in shapes else ()
    features = (Feature("x", DType.FP16, shape, enumerated=flexible),)
    main = Function("main", "CoreML8", named, block)
    return MLModel("", "", 9, features, (), (), Program({"main": main}))


def _cast(source: str, name: str, kind: TensorType) -> Operation:
    return Operation("cast", {"x": (Ref(source),)}, (Named(name, kind),))


def weight(quant: str) -> Iterator[Operation]:
    """The ops that expand a weight of 64 x 64, compressed as a description says."""
    quant = quant.lower()
    palette = "lut" in quant or "palett" in quant
    blocks = bool(re.search(r"per[-_ ]block|blockwise|\bint4 g\d+|\(row,block\)", quant))
    last = "w"
    if palette:
        groups = (4, 2) if "(row,block)" in quant else (4, 1) if "group" in quant else (1, 1)
        last = "p" if "blockwise" in quant else "w"
        yield _expanded("constexpr_lut_to_dense", last, lut=(*groups, 16, 1))
        if last == "w":
            return
    if palette or blocks or re.search(r"int\d|\bc4w\b|\bw\d|\d-bit", quant):
        scale = (64, 2) if blocks and not palette else (64, 1)
        data = {"data": Ref("p")} if palette else {}
        yield _expanded("constexpr_blockwise_shift_scale", "w", data, scale=scale)
    else:
        yield Operation("const", {}, (Named("w", TensorType(DType.FP16, (64, 64, 1, 1))),))


def _expanded(
    op: str, name: str, given: Mapping[str, Argument] | None = None, **shapes: tuple[int, ...]
) -> Operation:
    tables = {
        key: Value(TensorType(DType.FP16, (*shape[:2], 1, 1, *shape[2:])), np.ones(1, np.float16))
        for key, shape in shapes.items()
    }
    inputs = {key: (argument,) for key, argument in (dict(given or {}) | tables).items()}
    return Operation(op, inputs, (Named(name, TensorType(DType.FP16, (64, 64, 1, 1))),))


def ratio(part: int, whole: int) -> str:
    """`0.75 (3/4)`; `-` of nothing."""
    return f"{part / whole:.2f} ({part}/{whole})" if whole else "-"


def by_instrument(results: Iterable[Scored]) -> list[str]:
    """A Markdown table of precision and recall; direct compilation stands below the headline."""
    kept = list(results)
    headline = [one for one in kept if family(one.row["instrument"]) != DIRECT]
    lines = [
        "| instrument | rows | precision of `ineligible` | recall | false alarms | misses |",
        "|---|---|---|---|---|---|",
        _line("all", kept),
        _line("all but direct compilation", headline),
    ]
    kinds = sorted({family(one.row["instrument"]) for one in headline})
    for kind in (*kinds, DIRECT):
        lines.append(_line(kind, [one for one in kept if family(one.row["instrument"]) == kind]))
    return lines


def _line(name: str, results: list[Scored]) -> str:
    count = Counter(one.verdict for one in results)
    hits, alarms, misses = count["hit"], count["false alarm"], count["miss"]
    precision, recall = ratio(hits, hits + alarms), ratio(hits, hits + misses)
    return f"| {name} | {len(results)} | {precision} | {recall} | {alarms} | {misses} |"


def by_rule(results: Iterable[Scored]) -> list[str]:
    """A Markdown table: the rows each rule calls ineligible, and how many of them are off the ANE.

    A rule's share of the recall is that of all rows off the ANE, whatever keeps them off.
    """
    kept = list(results)
    direct = [one for one in kept if family(one.row["instrument"]) == DIRECT]
    headline = [one for one in kept if one not in direct]
    lines = [
        "| rule | precision | recall | precision, direct compilation | recall |",
        "|---|---|---|---|---|",
    ]
    for rule in sorted({rule for one in kept for rule in one.rules}):
        lines.append(f"| {rule} | {_of(rule, headline)} | {_of(rule, direct)} |")
    return lines


def _of(rule: str, results: list[Scored]) -> str:
    said = [one for one in results if rule in one.rules]
    hits = sum(one.truth == "off" for one in said)
    return f"{ratio(hits, len(said))} | {ratio(hits, sum(r.truth == 'off' for r in results))}"


def listed(results: Iterable[Scored], verdict: str) -> Iterator[str]:
    """Every row of a verdict: its id, what it is, who says so, what was measured."""
    for one in results:
        if one.verdict == verdict:
            told = (one.row[c] for c in ("op_type", "shapes", "quant", "size_mb", "instrument"))
            what = " · ".join(text for text in told if text)
            warned = f"(warned of: {' '.join(one.warned)})" if one.warned else ""
            said = " ".join(filter(None, (one.row["label"], *one.rules, warned)))
            yield f"{one.row['id']} {what}: {said}"


def read(path: Path) -> list[Row]:
    """The rows of a CSV file.

    Raises:
        SystemExit: the file cannot be read, or lacks a column.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
            if missing:
                raise SystemExit(f"{path}: no column {', '.join(missing)}; it needs {COLUMNS}.")
            return [{key: one.get(key) or "" for key in (*COLUMNS, "chip")} for one in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SystemExit(f"{path}: cannot be read as CSV ({error}).") from error


def report(rows: Iterable[Row]) -> Iterator[str]:
    """Everything the script prints, line by line."""
    kept = list(rows)
    results, left = scored(kept)
    yield from by_instrument(results)
    yield ""
    yield from by_rule(results)
    yield f"\n{sum(left.values())} rows are left out:"
    yield from (f"  {count} {why}" for why, count in left.most_common())
    yield ""
    yield from placement_predicted.table(predicted(kept))
    for verdict in ("false alarm", "miss"):
        found = list(listed(results, verdict))
        yield f"\n{verdict}, {len(found)} rows:"
        yield from (f"  {line}" for line in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--labels", type=Path, required=True, help="the labelled rows, CSV")
    rows = read(parser.parse_args().labels)
    for line in report(rows):
        print(line)
    if not passes(rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
