"""Steps in a row on few numbers, such as one position's norm, that an interpreter runs as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pytest_ane.mil.records import DType, Operation, TensorType
from pytest_ane.reference.dtypes import compiled
from pytest_ane.reference.halves import HalfWeight, kernels
from pytest_ane.reference.steps import Compute, Outputs, Step, Values, free

if TYPE_CHECKING:
    from pytest_ane.reference.assembler import Program

ARITHMETIC = frozenset(("abs", "add", "clip", "inverse", "maximum", "minimum", "mul", "real_div",
                        "reduce_max", "reduce_mean", "reduce_min", "reduce_sum", "rsqrt", "sqrt",
                        "sub"))  # fmt: skip
"""Operations that give the same bits either way; so do those that only move numbers."""
MOVES = frozenset(("concat", "expand_dims", "reshape", "slice_by_index", "slice_by_size", "split",
                   "squeeze", "transpose"))  # fmt: skip
WITH_WEIGHTS = frozenset(("conv", "linear", "silu", "softmax"))
"""Operations that do not; so they may be part of a segment only where all calls of few numbers
are run by the interpreter, from the first one on: in a block that has weights held in fp16."""
_FLOATS = (DType.FP16, DType.FP32)
_FEWEST = 2
"""Steps that are worth a call of the interpreter."""
_SMALL = 1 << 13
"""Numbers that are few."""
_MOST = 8
"""Programs that are kept, each for its shapes of inputs."""


@dataclass(frozen=True, eq=False)
class Segment:
    """Steps in a row whose operations are arithmetic, or only move numbers.

    Attributes:
        names: of their operations.
        parts: the steps.
        takes: slots of what is computed before.
        gives: slots of what is needed after.
        hidden: slots of what is between.
        weighty: whether its block has weights held in fp16, whose kernels are worth loading.
    """

    names: tuple[str, ...]
    parts: tuple[Compute, ...]
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    hidden: frozenset[int]
    weighty: bool
    _programs: dict[Any, Program | None] = field(default_factory=dict)
    """By shapes of what it takes; None where there is none."""

    @property
    def outputs(self) -> Outputs:
        """Slots of all results."""
        return tuple(out for part in self.parts for out in part.outputs)

    def run(self, values: Values, keep: AbstractSet[int]) -> None:
        """Run as one if there is a program and nobody wants what is between; else step by step."""
        program = self._program(values)
        if program is None or not keep.isdisjoint(self.hidden):
            for part in self.parts:
                part.run(values, keep)
            return
        found = program.run([values[slot] for slot in self.takes])
        for slot, value in zip(self.gives, found, strict=True):
            values[slot] = value
        for part in self.parts:
            free(values, part.last_use, keep)

    @property
    def _full(self) -> bool:
        return sum(program is not None for program in self._programs.values()) >= _MOST

    def _program(self, values: Values) -> Program | None:
        """The program for these shapes, if they are few numbers and it can be had."""
        given = [values[slot] for slot in self.takes]
        shapes = tuple([x.shape for x in given])
        if shapes in self._programs:
            return self._programs[shapes]
        if sum(x.size for x in given) > _SMALL or self._full:
            return None
        if any(x.dtype.char != "f" for x in given):
            return None
        if (kernels() if self.weighty else compiled()) is None:
            return None
        from pytest_ane.reference.assembler import assemble

        takes = tuple(zip(self.takes, shapes, strict=True))
        self._programs[shapes] = program = assemble(self.names, self.parts, takes, self.gives)
        return program


def segments(steps: Sequence[tuple[Operation, Step]]) -> Iterator[Step]:
    """The steps of operations, what may run as one put together."""
    weighty = any(_half(step) for _, step in steps)
    for fits, group in groupby(steps, key=lambda one: _fits(one[0], one[1], weighty)):
        row = list(group)
        if fits and len(row) >= _FEWEST:
            yield _segment(row, weighty)
        else:
            yield from (step for _, step in row)


def _fits(op: Operation, step: Step, weighty: bool) -> bool:
    kinds = [out.type for out in op.outputs]
    known = op.op in ARITHMETIC | MOVES or (weighty and op.op in WITH_WEIGHTS)
    return (
        isinstance(step, Compute)
        and known
        and (op.op not in ("conv", "linear") or _half(step))
        and all(isinstance(k, TensorType) and k.dtype in _FLOATS for k in kinds)
    )


def _half(step: Step) -> bool:
    """Whether a step multiplies with a weight held in fp16, and does nothing else."""
    bound = getattr(step.compute, "keywords", {}) if isinstance(step, Compute) else {}
    return isinstance(bound.get("weight"), HalfWeight) and bound.get("bias") is None


def _segment(row: Sequence[tuple[Operation, Any]], weighty: bool) -> Segment:
    parts = tuple(step for _, step in row)
    made = [slot for part in parts for slot, _ in part.outputs]
    used = [slot for part in parts for _, slots in part.inputs for slot in _all(slots)]
    freed = {slot for part in parts for slot in part.last_use}
    return Segment(
        names=tuple(op.op for op, _ in row),
        parts=parts,
        takes=tuple(dict.fromkeys(slot for slot in used if slot not in made)),
        gives=tuple(slot for slot in made if slot not in freed),
        hidden=frozenset(made) & freed,
        weighty=weighty,
    )


def _all(slots: int | tuple[int, ...]) -> tuple[int, ...]:
    return (slots,) if isinstance(slots, int) else slots
