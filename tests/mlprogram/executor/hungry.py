"""Programs of a few kilobytes that would take gigabytes, or for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.mlprogram.packages import Program, set_type

OPEN: tuple[int | None, ...] = (None,)


def _program(**constants: tuple[Any, str]) -> Program:
    program = Program()
    program.input("x", (1, 1, 4, 4))
    for name, (value, dtype) in constants.items():
        program.const(name, value, dtype)
    return program


def _single(
    op: str, rank: int, operands: dict[str, str], /, **constants: tuple[Any, str]
) -> Program:
    """One operation; constants are computed from the input where operands say so."""
    program = _program(**constants)
    call(program, op, "y", OPEN * rank, **operands)
    program.output("y")
    return program


def call(
    program: Program, op: str, name: str, size: tuple[int | None, ...] = (), /, **operands: str
) -> Any:
    """An operation whose parameters may be called `shape` or `name`."""
    operation = program.op(op, name, shape=size)
    for key, value in operands.items():
        operation.inputs[key].arguments.add().name = value
    return operation


def fill() -> Program:
    return _single("fill", 3, {"shape": "shape", "value": "one"},
                   shape=([100_000, 100_000, 3], "INT32"), one=(1.0, "FLOAT32"))  # fmt: skip


def tile() -> Program:
    return _single("tile", 4, {"x": "x", "reps": "reps"}, reps=([1, 1, 30_000, 30_000], "INT32"))


def pad() -> Program:
    return _single(
        "pad", 4, {"x": "x", "pad": "pad", "mode": "mode", "constant_val": "zero"},
        pad=([0, 0, 0, 0, 40_000, 40_000, 40_000, 40_000], "INT32"), mode=("constant", "STRING"),
        zero=(0.0, "FLOAT32"),
    )  # fmt: skip


def range_1d() -> Program:
    return _single("range_1d", 1, {"start": "zero", "end": "end", "step": "one"},
                   zero=(0, "INT32"), end=(2**31 - 1, "INT32"), one=(1, "INT32"))  # fmt: skip


def one_hot() -> Program:
    program = _program(size=(2_000_000_000, "INT32"), kind=("int32", "STRING"))
    call(program, "cast", "indices", (1, 1, 4, 4), x="x", dtype="kind")
    program.block.operations[-1].outputs[0].type.tensorType.dataType = 23  # INT32
    call(program, "one_hot", "y", OPEN * 5, indices="indices", one_hot_vector_size="size")
    program.output("y")
    return program


def resize() -> Program:
    return _single(
        "resize_bilinear", 4,
        {"x": "x", "target_size_height": "size", "target_size_width": "size"},
        size=(60_000, "INT32"),
    )  # fmt: skip


def conv() -> Program:
    """The result is small, as the stride is long; the padded input is not."""
    return _single(
        "conv", 4, {"x": "x", "weight": "w", "pad_type": "custom", "pad": "pad", "strides": "far"},
        w=([[[[1.0]]]], "FLOAT32"), custom=("custom", "STRING"), pad=([50_000] * 4, "INT32"),
        far=([100_000, 100_000], "INT32"),
    )  # fmt: skip


def broadcast() -> Program:
    program = _program(tall=([[1.0]] * 300, "FLOAT32"), far=([30_000, 1], "INT32"),
                       wide=([1, 30_000], "INT32"), flat=([1, -1], "INT32"))  # fmt: skip
    call(program, "tile", "column", OPEN * 2, x="tall", reps="far")
    call(program, "reshape", "row", OPEN * 2, x="column", shape="flat")
    call(program, "add", "y", OPEN * 2, x="column", y="row")
    program.output("y")
    return program


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


def endless() -> Program:
    program = _program(i_first=(0.0, "FLOAT32"), yes=(True, "BOOL"), one=(1.0, "FLOAT32"))
    body = _loop(program, ("i", ()))
    call(_Inside(body), "add", "next", (), x="i", y="one")
    body.outputs.append("next")
    program.output("i_out")
    return program


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


def huge_input() -> Program:
    program = Program()
    program.input("x", (100_000, 100_000))
    call(program, "abs", "y", (100_000, 100_000), x="x")
    program.output("y")
    return program


PROGRAMS: dict[str, tuple[Callable[[], Program], str]] = {
    "fill": (fill, "fill 'y' of 120 GB"),
    "tile": (tile, "tile 'y' of 57.6 GB"),
    "pad": (pad, "pad 'y' of 25.6 GB"),
    "range_1d": (range_1d, "range_1d 'y' of 8.59 GB"),
    "one_hot": (one_hot, "one_hot 'y' of 128 GB"),
    "resize": (resize, "resize_bilinear 'y' of 14.4 GB"),
    "conv": (conv, "conv 'y' of 40 GB"),
    "broadcast": (broadcast, "add 'y' of 324,000 GB"),
    "growing": (growing, "concat 'next' of"),
    "kept_list": (kept_list, "fill 'element_new' of 40 MB needs 80 MB while it is computed"),
    "huge_input": (huge_input, "input 'x' of 40 GB"),
    "endless": (endless, "is still running after 0.3 s"),
}
"""Programs, and what each is refused with under a budget of 200 MB and 0.3 s."""
