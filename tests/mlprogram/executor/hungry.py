"""Programs of a few kilobytes that would take gigabytes, or for ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.mlprogram.executor.programs import save_text
from tests.mlprogram.packages import Program, set_type

HUGE = "tensor<fp32, [100000, 100000]> x"
OPEN: tuple[int | None, ...] = (None,)


@dataclass(frozen=True)
class Text:
    """Operations on `x [1, 1, 4, 4]`, or on another input."""

    body: str
    inputs: str = "tensor<fp32, [1, 1, 4, 4]> x"

    def save(self, folder: Path) -> Path:
        return save_text(folder / "model.mlmodelc", self.body, inputs=self.inputs)


def _program(**constants: tuple[Any, str]) -> Program:
    program = Program()
    program.input("x", (1, 1, 4, 4))
    for name, (value, dtype) in constants.items():
        program.const(name, value, dtype)
    return program


def call(
    program: Program, op: str, name: str, size: tuple[int | None, ...] = (), /, **operands: str
) -> Any:
    """An operation whose parameters may be called `shape` or `name`."""
    operation = program.op(op, name, shape=size)
    for key, value in operands.items():
        operation.inputs[key].arguments.add().name = value
    return operation


def _loop(program: Program, *types: tuple[str, tuple[int | None, ...]]) -> Any:
    """A loop over `i` and others, which never ends."""
    loop = call(program, "while_loop", "i_out")
    for name, _ in types:
        loop.inputs["loop_vars"].arguments.add().name = f"{name}_first"
    condition, body = loop.blocks.add(), loop.blocks.add()
    del loop.outputs[:]
    for name, shape in types:
        for where in (condition.inputs, body.inputs):
            named = where.add()
            named.name = name
            set_type(named.type, "FLOAT32", shape)
        out = loop.outputs.add()
        out.name = f"{name}_out"
        set_type(out.type, "FLOAT32", shape)
    condition.outputs.append("yes")
    return body


def growing() -> Program:
    """A tensor that doubles in every turn of a loop that never ends."""
    program = _program(i_first=([1.0], "FLOAT32"), yes=(True, "BOOL"), axis=(0, "INT32"))
    body = _loop(program, ("i", OPEN))
    joined = call(_Inside(body), "concat", "next", OPEN, values="i", axis="axis")
    joined.inputs["values"].arguments.add().name = "i"
    body.outputs.append("next")
    program.output("i_out")
    return program


def kept_list() -> Program:
    """A list that takes a new tensor of 40 MB in every turn."""
    program = _program(
        i_first=(0.0, "FLOAT32"), yes=(True, "BOOL"), one=(1.0, "FLOAT32"), length=(1, "INT32"),
        dynamic=(True, "BOOL"), kind=("fp32", "STRING"), shape=([10_000_000], "INT32"),
        element=(10_000_000, "INT32"), integer=("int32", "STRING"),
    )  # fmt: skip
    made = call(program, "make_list", "ls_first", (), init_length="length",
                dynamic_length="dynamic", dtype="kind", elem_shape="element")  # fmt: skip
    set_type(made.outputs[0].type.listType.type, "FLOAT32", OPEN)
    body = _loop(program, ("i", ()), ("ls", ()))
    inside = _Inside(body)
    call(inside, "cast", "place", (), x="i", dtype="integer")
    body.operations[-1].outputs[0].type.tensorType.dataType = 23  # INT32
    call(inside, "fill", "element_new", OPEN, shape="shape", value="i")
    written = call(inside, "list_write", "ls_next", (), ls="ls", index="place", value="element_new")
    call(inside, "add", "next", (), x="i", y="one")
    body.outputs.extend(["next", "ls_next"])
    lists = [made.outputs[0], written.outputs[0], body.inputs[1],
             *(o for o in program.block.operations if o.type == "while_loop")]  # fmt: skip
    lists[3:] = [lists[3].outputs[1], lists[3].blocks[0].inputs[1]]
    for named in lists:
        named.type.Clear()
        set_type(named.type.listType.type, "FLOAT32", OPEN)
    program.output("i_out")
    return program


class _Inside(Program):
    """A program of which operations go to another block."""

    def __init__(self, block: Any) -> None:
        self.block = block


fill = partial(
    Text, "tensor<fp32, [?, ?, ?]> y = fill(value = fp32(1), "
          "shape = tensor<int32, [3]>([100000, 100000, 3]));"
)  # fmt: skip
endless = partial(
    Text, """fp32 y = while_loop(loop_vars = (fp32(0)))
             c(fp32 i) { bool t = less(x = i, y = fp32(inf)); } -> (t),
             d(fp32 i) { fp32 j = add(x = i, y = fp32(1)); } -> (j);"""
)  # fmt: skip
TEXTS = {
    "tile": ("tensor<fp32, [?, ?, ?, ?]> y = tile(x = x, "
             "reps = tensor<int32, [4]>([1, 1, 30000, 30000]));", "tile 'y' of 57.6 GB"),
    "pad": ('tensor<fp32, [?, ?, ?, ?]> y = pad(x = x, mode = string("constant"), pad = '
            "tensor<int32, [8]>([0, 0, 0, 0, 40000, 40000, 40000, 40000]));", "pad 'y' of 25.6 GB"),
    "range_1d": ("tensor<int32, [?]> y = range_1d(start = int32(0), end = int32(2147483647), "
                 "step = int32(1));", "range_1d 'y' of 8.59 GB"),
    "one_hot": ('tensor<int32, [1, 1, 4, 4]> i = cast(x = x, dtype = string("int32"));'
                "tensor<fp32, [?, ?, ?, ?, ?]> y = one_hot(indices = i, "
                "one_hot_vector_size = int32(2000000000));", "one_hot 'y' of 128 GB"),
    "resize": ("tensor<fp32, [?, ?, ?, ?]> y = resize_bilinear(x = x, "
               "target_size_height = int32(60000), target_size_width = int32(60000));",
               "resize_bilinear 'y' of 14.4 GB"),
    # The result is small, as the stride is long; the padded input is not.
    "conv": ('tensor<fp32, [?, ?, ?, ?]> y = conv(x = x, pad_type = string("custom"), '
             "weight = tensor<fp32, [1, 1, 1, 1]>([[[[1]]]]), "
             "pad = tensor<int32, [4]>([50000, 50000, 50000, 50000]), "
             "strides = tensor<int32, [2]>([100000, 100000]));", "conv 'y' of 40 GB"),
    "broadcast": ("tensor<fp32, [?, ?, ?, ?]> c = tile(x = x, "
                  "reps = tensor<int32, [4]>([1, 562500, 1, 1]));"
                  "tensor<fp32, [?, ?]> row = reshape(x = c, shape = tensor<int32, [2]>([1, -1]));"
                  "tensor<fp32, [?, ?]> column = reshape(x = c, "
                  "shape = tensor<int32, [2]>([-1, 1]));"
                  "tensor<fp32, [?, ?]> y = add(x = column, y = row);",
                  "add 'y' of 324,000 GB"),
}  # fmt: skip


PROGRAMS: dict[str, tuple[Callable[[], Any], str]] = {
    "fill": (fill, "fill 'y' of 120 GB"),
    **{name: (partial(Text, body), message) for name, (body, message) in TEXTS.items()},
    "growing": (growing, "concat 'next' of"),
    "kept_list": (kept_list, "fill 'element_new' of 40 MB needs 80 MB while it is computed"),
    "huge_input": (partial(Text, "fp32 y = abs(x = x);", HUGE), "input 'x' of 40 GB"),
    "endless": (endless, "is still running after 0.3 s"),
}
"""Programs, and what each is refused with under a budget of 200 MB and 0.3 s."""
