"""Mutated programs, run: `python -m tests.fuzz.programs [--count 20000] [--seed 0] [--jobs 2]`.

Each is one operation, or a loop, of `seeds()` with a few of its numbers, shapes, names and fields
changed. It is read, prepared and run under a budget of 1 GB and 10 s, in worker processes. What it
may end in is a result or one sentence; the memory it takes is measured, and so is the time. Program
number n of a seed is the same on every machine. Exit code 1 if any breaks the budget.
"""

from __future__ import annotations

import argparse
import faulthandler
import multiprocessing
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from itertools import repeat
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.errors import AneError
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.executor.budget import process_budget
from pytest_ane.mlprogram.executor.dtypes import FLOATS
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.proto import definitions
from pytest_ane.mlprogram.records import Feature
from tests.fuzz.mutate import mutate
from tests.mlprogram.executor.hungry import PROGRAMS, call
from tests.mlprogram.packages import Program, model_file

MEMORY = 1_000_000_000
SECONDS = 10.0
_ATTEMPTS = 20.0
"""Seconds after which a worker is taken to hang."""
_NUMBERS = (0, 1, -1, 2, 3, 7, 64, 1000, 46_341, 100_000, 10**6, 2**31 - 1, -(2**31))
_FLOATS = (0.0, 1.0, -1.0, 0.5, 1e-30, 3e4, 1e9, 1e38, float("inf"), float("nan"))
_X = (1, 2, 4, 4)
_W = [[[[0.5, 1.0], [1.0, 0.5]]] * 2] * 2

OPERATIONS: dict[str, dict[str, Any]] = {
    "add": {"x": "@x", "y": [[[[1.0]] * 4]]},
    "affine": {"x": "@x", "transform_matrix": [[1.0, 0.0, 0.0, 0.0, 1.0, 0.0]], "output_height": 3,
               "output_width": 3, "sampling_mode": "bilinear", "padding_mode": "constant",
               "padding_value": 0.0, "coordinates_mode": "normalized_minus_one_to_one",
               "align_corners": True},
    "argsort": {"x": "@x", "axis": -1, "ascending": False},
    "avg_pool": {"x": "@x", "kernel_sizes": [2, 2], "strides": [1, 1], "pad_type": "custom",
                 "pad": [1, 1, 1, 1], "exclude_padding_from_average": True, "ceil_mode": False},
    "band_part": {"x": "@x", "lower": 1, "upper": 1},
    "batch_norm": {"x": "@x", "mean": [0.0, 1.0], "variance": [1.0, 2.0], "epsilon": 1e-5},
    "batch_to_space": {"x": "@x", "block_shape": [1, 1], "crops": [[0, 1], [0, 1]]},
    "cast": {"x": "@x", "dtype": "int32"},
    "clip": {"x": "@x", "alpha": -1.0, "beta": 1.0},
    "concat": {"values": ["@x", "@x"], "axis": 1, "interleave": False},
    "conv": {"x": "@x", "weight": _W, "strides": [1, 1], "pad_type": "custom",
             "pad": [1, 1, 1, 1], "dilations": [1, 1], "groups": 1},
    "conv_transpose": {"x": "@x", "weight": _W, "strides": [2, 2], "pad_type": "custom",
                       "pad": [0, 0, 0, 0], "dilations": [1, 1], "groups": 1},
    "crop": {"x": "@x", "crop_height": [1, 1], "crop_width": [1, 1]},
    "crop_resize": {"x": "@x", "boxes": [[0.0, 0.0, 2.0, 2.0]], "box_indices": [0],
                    "target_height": 3, "target_width": 3, "normalized_coordinates": False,
                    "spatial_scale": 1.0, "box_coordinate_mode": "CORNERS_HEIGHT_FIRST",
                    "sampling_mode": "DEFAULT", "pad_value": 0.0},
    "cumsum": {"x": "@x", "axis": 1, "exclusive": False, "reverse": False},
    "depth_to_space": {"x": [[[[1.0]], [[2.0]], [[3.0]], [[4.0]]]], "block_size": 2},
    "einsum": {"values": ["@x", [[[[1.0]] * 4] * 4]], "equation": "nchw,nwhu->nchu"},
    "erf": {"x": "@x"},
    "expand_dims": {"x": "@x", "axes": [0, 2]},
    "fill": {"shape": [2, 3], "value": 1.0},
    "gather": {"x": "@x", "indices": [0, 1], "axis": 2, "batch_dims": 0,
               "validate_indices": False},
    "gather_along_axis": {"x": "@x", "indices": [[[[0] * 4], [[1] * 4]]], "axis": 2,
                          "validate_indices": False},
    "gather_nd": {"x": "@x", "indices": [[0, 1], [0, 0]], "batch_dims": 0,
                  "validate_indices": False},
    "gelu": {"x": "@x", "mode": "EXACT"},
    "instance_norm": {"x": "@x", "gamma": [1.0, 1.0], "beta": [0.0, 0.0], "epsilon": 1e-5},
    "l2_norm": {"x": "@x", "epsilon": 1e-6},
    "layer_norm": {"x": "@x", "axes": [-1], "epsilon": 1e-5},
    "linear": {"x": "@x", "weight": [[1.0, 2.0, 3.0, 4.0]] * 3, "bias": [0.0, 1.0, 2.0]},
    "local_response_norm": {"x": "@x", "size": 3, "alpha": 1e-4, "beta": 0.75, "k": 1.0},
    "log": {"x": "@x", "epsilon": 1e-9},
    "matmul": {"x": "@x", "y": "@x", "transpose_x": False, "transpose_y": True},
    "max_pool": {"x": "@x", "kernel_sizes": [2, 2], "strides": [2, 2], "pad_type": "same",
                 "ceil_mode": False},
    "non_zero": {"x": "@x"},
    "one_hot": {"indices": [0, 1, 2], "one_hot_vector_size": 3, "axis": -1, "on_value": 1.0,
                "off_value": 0.0},
    "pad": {"x": "@x", "pad": [1, 1, 2, 2], "mode": "constant", "constant_val": 0.0},
    "pixel_shuffle": {"x": [[[[1.0]], [[2.0]], [[3.0]], [[4.0]]]], "upscale_factor": 2},
    "pow": {"x": "@x", "y": 2.0},
    "random_categorical": {"x": "@x", "mode": "logits", "size": 3, "seed": 1},
    "random_normal": {"shape": [2, 3], "mean": 0.0, "stddev": 1.0, "seed": 1},
    "random_uniform": {"shape": [2, 3], "low": 0.0, "high": 1.0, "seed": 1},
    "range_1d": {"start": 0, "end": 5, "step": 1},
    "reduce_argmax": {"x": "@x", "axis": 1, "keep_dims": False, "output_dtype": "int32"},
    "reduce_log_sum_exp": {"x": "@x", "axes": [1, 2], "keep_dims": True},
    "reduce_mean": {"x": "@x", "axes": [1, 2], "keep_dims": True},
    "reshape": {"x": "@x", "shape": [2, -1]},
    "resize": {"x": "@x", "shape": [8, 8], "resized_dims": 2, "interpolation_mode": "LINEAR",
               "sampling_mode": "DEFAULT"},
    "resize_bilinear": {"x": "@x", "target_size_height": 8, "target_size_width": 8,
                        "sampling_mode": "DEFAULT"},
    "resize_nearest_neighbor": {"x": "@x", "target_size_height": 8, "target_size_width": 8},
    "reverse": {"x": "@x", "axes": [1, 2]},
    "reverse_sequence": {"x": "@x", "lengths": [1, 2], "seq_axis": 2, "batch_axis": 1},
    "scaled_dot_product_attention": {"query": "@x", "key": "@x", "value": "@x"},
    "scatter": {"data": "@x", "indices": [0], "updates": [[[[1.0] * 4]] * 2], "axis": 2,
                "mode": "add", "validate_indices": False},
    "scatter_nd": {"data": "@x", "indices": [[0, 1, 2, 3]], "updates": [1.0], "mode": "add",
                   "validate_indices": False},
    "select": {"cond": [[[[True]] * 4]], "a": "@x", "b": 1.0},
    "slice_by_index": {"x": "@x", "begin": [0, 0, 1, 1], "end": [1, 2, 3, 3],
                       "stride": [1, 1, 1, 1], "begin_mask": [False] * 4,
                       "end_mask": [False] * 4, "squeeze_mask": [False] * 4},
    "slice_by_size": {"x": "@x", "begin": [0, 0, 1, 1], "size": [1, -1, 2, 2]},
    "sliding_windows": {"x": "@x", "axis": 2, "size": 2, "stride": 1},
    "softmax": {"x": "@x", "axis": -1},
    "space_to_batch": {"x": "@x", "block_shape": [2, 2], "paddings": [[0, 0], [0, 0]]},
    "space_to_depth": {"x": "@x", "block_size": 2},
    "split": {"x": "@x", "axis": 2, "num_splits": 2},
    "squeeze": {"x": "@x", "axes": [0]},
    "stack": {"values": ["@x", "@x"], "axis": 0},
    "tile": {"x": "@x", "reps": [1, 2, 1, 2]},
    "topk": {"x": "@x", "k": 2, "axis": -1, "ascending": False},
    "transpose": {"x": "@x", "perm": [0, 2, 3, 1]},
    "upsample_bilinear": {"x": "@x", "scale_factor_height": 2.0, "scale_factor_width": 2.0,
                          "align_corners": False},
    "upsample_nearest_neighbor": {"x": "@x", "scale_factor_height": 2.0,
                                  "scale_factor_width": 2.0},
}  # fmt: skip
"""Operations with their parameters; `@x` is the program's input, all else is constant."""
_RESULTS = {"split": 2, "topk": 2}


@cache
def seeds() -> tuple[bytes, ...]:
    """Programs to mutate: two of each operation, with constants and computed; and loops."""
    alone = [single(op, computed) for op in OPERATIONS for computed in (False, True)]
    loops = [make() for name, (make, _) in PROGRAMS.items() if name in ("growing", "kept_list")]
    return tuple(p.model.SerializeToString() for p in (*alone, *loops))


def single(op: str, computed: bool) -> Program:
    """An operation, and two on its result; `computed`: no parameter of numbers is constant."""
    program = Program()
    program.input("x", _X)
    operands: dict[str, list[str]] = {}
    for key, value in OPERATIONS[op].items():
        values = value if isinstance(value, list) and value[:1] == ["@x"] else [value]
        operands[key] = [_operand(program, f"{key}_{i}", v, computed) for i, v in enumerate(values)]
    operation = call(program, op, "y", (None,) * 4)
    for key, names in operands.items():
        for name in names:
            operation.inputs[key].arguments.add().name = name
    for i in range(1, _RESULTS.get(op, 1)):
        operation.outputs.add().CopyFrom(operation.outputs[0])
        operation.outputs[i].name = f"y{i}"
    call(program, "mul", "square", (None,) * 4, x="y", y="y")
    call(program, "reduce_max", "z", (), x="square")
    program.output("z")
    return program


def _operand(program: Program, name: str, value: Any, computed: bool) -> str:
    if value == "@x":
        return "x"
    first: Any = value
    while isinstance(first, list):
        first = first[0]
    dtype = {bool: "BOOL", int: "INT32", float: "FLOAT32", str: "STRING"}[type(first)]
    program.const(name, value, dtype)
    if not computed or dtype not in ("INT32", "FLOAT32"):
        return name
    # What depends on the input is not constant: `value + 0 * x`, in effect.
    program.const(f"{name}_axes", [0, 1, 2, 3], "INT32")
    program.const(f"{name}_no", False, "BOOL")
    program.const(f"{name}_zero", 0.0, "FLOAT32")
    call(program, "reduce_min", f"{name}_least", (), x="x", axes=f"{name}_axes",
         keep_dims=f"{name}_no")  # fmt: skip
    call(program, "mul", f"{name}_none", (), x=f"{name}_least", y=f"{name}_zero")
    if dtype == "INT32":
        program.const(f"{name}_kind", "int32", "STRING")
        call(program, "cast", f"{name}_int", (), x=f"{name}_none", dtype=f"{name}_kind")
        program.block.operations[-1].outputs[0].type.tensorType.dataType = 23
    none = f"{name}_int" if dtype == "INT32" else f"{name}_none"
    sum_ = call(program, "add", f"{name}_sum", (None,) * _rank(value), x=name, y=none)
    if dtype == "INT32":
        sum_.outputs[0].type.tensorType.dataType = 23
    return f"{name}_sum"


def _rank(value: Any) -> int:
    return 1 + _rank(value[0]) if isinstance(value, list) else 0


def mutated(number: int, seed: int = 0) -> bytes:
    """Program `number` of a seed."""
    random = Random(f"{seed}/{number}")
    model = definitions().Model.FromString(random.choice(seeds()))
    for _ in range(random.randint(1, 3)):
        random.choice((_change_number, _change_number, _change_shape, _change_call, mutate))(
            model, random
        )
    changed: bytes = model.SerializeToString()
    return changed


def _operations(model: Any) -> list[Any]:
    return [
        operation
        for function in model.mlProgram.functions.values()
        for block in function.block_specializations.values()
        for operation in _within(block)
    ]


def _within(block: Any) -> Iterator[Any]:
    for operation in block.operations:
        yield operation
        for inner in operation.blocks:
            yield from _within(inner)


def _change_number(model: Any, random: Random) -> None:
    """Another number in a constant, mostly one that is too large."""
    tensors = [
        operation.attributes["val"].immediateValue.tensor
        for operation in _operations(model)
        if operation.type == "const" and "val" in operation.attributes
    ]
    lists = [
        (values.values, numbers)
        for tensor in tensors
        for values, numbers in ((tensor.ints, _NUMBERS), (tensor.floats, _FLOATS),
                                (tensor.bools, (True, False)))
        if len(values.values)
    ]  # fmt: skip
    if lists:
        values, numbers = random.choice(lists)
        values[random.randrange(len(values))] = random.choice(numbers)


def _change_shape(model: Any, random: Random) -> None:
    """Another declared length: of an input, a constant or a result."""
    function = model.mlProgram.functions["main"]
    types = [named.type for named in function.inputs]
    types += [out.type for operation in _operations(model) for out in operation.outputs]
    dimensions = [d for t in types for d in t.tensorType.dimensions]
    sizes = [f.type.multiArrayType.shape for f in model.description.input]
    if random.random() < 0.3 and sizes and len(sizes[0]):
        axis = random.randrange(len(sizes[0]))
        sizes[0][axis] = max(random.choice(_NUMBERS), 0)
        dimensions = list(types[0].tensorType.dimensions) if types else []
        if axis < len(dimensions):
            dimensions[axis].constant.size = sizes[0][axis]
    elif dimensions:
        random.choice(dimensions).constant.size = max(random.choice(_NUMBERS), 0)


def _change_call(model: Any, random: Random) -> None:
    """A parameter left out, doubled or taken from elsewhere, or another operation."""
    operations = [operation for operation in _operations(model) if operation.type != "const"]
    if not operations:
        return
    operation = random.choice(operations)
    keys = sorted(operation.inputs)
    what = random.random()
    if what < 0.4 and keys:
        del operation.inputs[random.choice(keys)]
    elif what < 0.8 and keys:
        names = [out.name for other in _operations(model) for out in other.outputs]
        operation.inputs[random.choice(keys)].arguments.add().name = random.choice(names)
        arguments = operation.inputs[random.choice(keys)].arguments
        if len(arguments) > 1 and random.random() < 0.8:
            del arguments[0]
    else:
        operation.type = random.choice(sorted(OPERATIONS))


def run_program(package: Path, data: bytes) -> str:
    """Read, prepare and run a program in place of a package's own; `ran`, or what refused it.

    Raises:
        Exception: anything but a sentence for the person.
    """
    fresh = model_file(package).with_name("fresh")
    fresh.write_bytes(data)
    fresh.replace(model_file(package))
    try:
        with warnings.catch_warnings(), process_budget(MEMORY, SECONDS):
            warnings.simplefilter("error")
            session = Session(read_model(package), memory_budget=MEMORY)
            inputs = {f.name: _input(f) for f in session.model.inputs}
            session.predict(inputs, session.make_state() or None)
    except AneError as error:
        is_sentence = str(error).endswith((".", "run: git lfs pull"))
        return type(error).__name__ if is_sentence else f"no sentence: {error}"
    return "ran"


def _input(feature: Feature) -> Array:
    """A few numbers again and again, in the smallest shape; drawing millions takes seconds."""
    shape = feature.shape or tuple(low for low, _ in feature.ranges)
    numbers = np.full(shape, 0.5, np.float32)
    numbers.reshape(-1)[::3] = -2
    return numbers if feature.dtype in FLOATS else np.abs(numbers).astype(np.int32)


def _measured(number: int, seed: int) -> tuple[int, str, float, int]:
    """Run a program: its number, outcome, seconds, and bytes taken; a process that hangs ends."""
    faulthandler.dump_traceback_later(_ATTEMPTS, exit=True)
    Path("/proc/self/clear_refs").write_text("5")  # The peak is counted from here on.
    before, start = _memory("VmRSS:"), time.monotonic()
    try:
        outcome = run_program(_package(), mutated(number, seed))
    except Exception:  # What this looks for.
        outcome = traceback.format_exc()
    faulthandler.cancel_dump_traceback_later()
    return number, outcome, time.monotonic() - start, _memory("VmHWM:") - before


@cache
def _package() -> Path:
    return single("add", False).save(Path(tempfile.mkdtemp(prefix="programs-")))


def _memory(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def run_all(count: int, seed: int, jobs: int, first: int, say: Callable[[str], None]) -> int:
    """Run programs and report; how many broke the budget.

    A program that ends its process ends the run: the last number that is said was sound.
    """
    outcomes: Counter[str] = Counter()
    slowest, largest, broken, number = (0.0, 0), (0, 0), 0, first
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        try:
            for number, outcome, seconds, size in pool.map(
                _measured, range(first, first + count), repeat(seed)
            ):
                slowest, largest = max(slowest, (seconds, number)), max(largest, (size, number))
                fine = outcome == "ran" or (outcome.isidentifier() and outcome.endswith("Error"))
                if not fine or size > MEMORY or seconds > SECONDS + 1:
                    broken += 1
                    taken = f"({seconds:.1f} s, {size / 1e6:.0f} MB)"
                    say(f"program {number}: {outcome.strip()} {taken}")
                outcomes[outcome if fine else "broken"] += 1
        except BrokenProcessPool:
            broken += 1
            say(f"a program after {number} hangs or ends its process")
    kinds = ", ".join(f"{n} {kind}" for kind, n in outcomes.most_common())
    say(f"{count} programs of seed {seed}: {kinds}")
    say(f"longest {slowest[0]:.1f} s (program {slowest[1]})")
    say(f"most memory {largest[0] / 1e6:.0f} MB (program {largest[1]})")
    say(f"{broken} broke the budget")
    return broken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    broken = run_all(options.count, options.seed, options.jobs, options.first, print)
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
