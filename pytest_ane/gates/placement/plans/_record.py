"""One record for every recorded placement plan, whatever tool wrote it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Device = Literal["ANE", "GPU", "CPU"]
Source = Literal["coremltools", "analytics", "counts", "log"]
RETRIED = "retriedFromCopy"
"""Field of a plan that was read once more, from a copy of the model at another path."""


@dataclass(frozen=True)
class PlannedOperation:
    """What a plan says of one operation.

    Attributes:
        name: the first output's name, the key that joins plan and program; empty where the
            source gives types alone.
        op: the type without opset prefix, such as `conv`; `None` where the source has none.
        preferred: the device Core ML intends to use: the placement. `None` for no device.
        supported: the devices that could run it, which is eligibility and no placement.
        cost: `estimatedCost`, a fraction of the whole.
        scope: the operations whose nested blocks it lies in, outermost first, each with the
            index of the block.
        boundary: whether it is no compute op, as the converter put it at the function's boundary
            or it only makes indices; it is counted apart.
        why: why it is off the ANE, in the source's words; empty where the source does not say.
        folded: whether the compiler left it out of its program, so that nothing runs.
        wires: what it reads and writes in the compiled program; None if not told.
        extra: fields of the source that have no place above.
    """

    name: str
    op: str | None = None
    preferred: Device | None = None
    supported: tuple[Device, ...] = ()
    cost: float | None = None
    scope: tuple[tuple[str, int], ...] = ()
    boundary: bool = False
    why: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    folded: bool = False
    wires: Wires | None = field(default=None, compare=False)

    @property
    def compile_time(self) -> bool:
        """Whether it is a constant, which nothing runs."""
        return self.op == "const" or (self.op or "").startswith("constexpr_")


@dataclass(frozen=True)
class Wires:
    """Names of the values that an operation reads and writes, those of constants included."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class PlannedFunction:
    """A function's operations in the order of the file, those of nested blocks included."""

    name: str
    operations: tuple[PlannedOperation, ...]


@dataclass(frozen=True)
class Tally:
    """How many operations of a type, or of all (None), the ANE runs, of how many with a device."""

    op: str | None
    ane: int
    total: int

    def __post_init__(self) -> None:
        if not 0 <= self.ane <= self.total:
            raise ValueError(f"{self.ane} operations on the ANE, of {self.total}")


@dataclass(frozen=True)
class Message:
    """A known line of a log: shortened, in a sentence, whether it failed, its number from 1."""

    text: str
    meaning: str
    failure: bool
    line: int


@dataclass(frozen=True)
class Plan:
    """A recorded plan.

    Attributes:
        source: the format it was read from.
        functions: what is said of single operations.
        tallies: what is said of numbers of operations, by sources that name none.
        compute_units: what Core ML was allowed to use, in the source's words; empty if unknown.
        ane_cores: `totalCoreCount` of the ANE, where told.
        unmatched: names that the plan's package does not have; set by `join`.
        added: operations that the compiler added, constants and casts, by type; set by `join`.
        renamed: how many operations have another name in the compiled program; set by `join`.
        version: the package's specification version; set by `join`, else 0.
        target: the package's deployment target, such as `iOS 17`; set by `join`, else empty.
        complete: whether every operation of the compiled program is listed, so that what is not
            there was left out by the compiler.
        extra: fields of the file that have no place above.
    """

    source: Source
    functions: tuple[PlannedFunction, ...] = ()
    tallies: tuple[Tally, ...] = ()
    messages: tuple[Message, ...] = ()
    compute_units: str = ""
    ane_cores: int | None = None
    unmatched: tuple[str, ...] = ()
    added: Mapping[str, int] = field(default_factory=dict)
    renamed: int = 0
    version: int = field(default=0, compare=False)
    target: str = ""
    complete: bool = field(default=False, compare=False)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def walk(self) -> Iterator[tuple[str, PlannedOperation]]:
        for function in self.functions:
            for operation in function.operations:
                yield function.name, operation
