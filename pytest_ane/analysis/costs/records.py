"""Costs of operations, and of the programs they make up."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class OpCost:
    """One operation of a call.

    Attributes:
        name: of its first result; the op's type where it has none.
        op: its type, such as `conv`.
        macs: multiply-accumulates; 0 for all but convolutions, matrix products, attention and
            recurrent layers. One is two floating-point operations.
        width: extent of its result's last axis.
        weights: bytes of weights as stored, palettes' indices and tables; those that several
            operations read count for the first.
        elements: numbers that those weights are once decompressed.
        states: bytes it reads from a state or writes to one.
    """

    name: str
    op: str
    macs: int = 0
    width: int = 1
    weights: int = 0
    elements: int = 0
    states: int = 0

    def padded(self, lanes: int) -> int:
        """MACs where the last axis is padded to a multiple of `lanes`."""
        width = max(self.width, 1)
        return self.macs // width * (math.ceil(width / lanes) * lanes)


@dataclass(frozen=True)
class Costs:
    """A call of a program.

    Attributes:
        tokens: the T of its flexible inputs; None where all its shapes are fixed.
        operations: in program order, constants left out.
        inputs, outputs: bytes of the host's tensors.
        held: bytes of its states.
    """

    tokens: int | None
    operations: tuple[OpCost, ...]
    inputs: int
    outputs: int
    held: int

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all operations."""
        return sum(op.macs for op in self.operations)

    def padded(self, lanes: int) -> int:
        """MACs where every result's last axis is padded to a multiple of `lanes`."""
        return sum(op.padded(lanes) for op in self.operations)

    @property
    def weights(self) -> int:
        """Bytes of all weights as stored."""
        return sum(op.weights for op in self.operations)

    @property
    def elements(self) -> int:
        """Numbers that the weights are once decompressed."""
        return sum(op.elements for op in self.operations)

    @property
    def states(self) -> int:
        """Bytes that are read from states and written to them."""
        return sum(op.states for op in self.operations)
