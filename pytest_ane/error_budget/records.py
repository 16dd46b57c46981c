"""The records of an error budget."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Error:
    """How far two runs are apart, relative to what the reference adds to the residual path.

    Attributes:
        greatest: relative L2 error of the worst position; infinite where a value is not finite.
        rms: root of the mean square over all positions of all probes.
        probe, output, position: where it is greatest.
        gain: how many times the reference's contribution the other one is, by least squares; NaN
            where nothing is added.
        lengths: `(T, greatest)` of the positions of calls of each length.
        positions: `(position, error)` of the worst probe, of up to 512 positions.
        channels: first and last of the few channels that have nine tenths of the worst probe's
            squared error; empty where they are not few.
        experts: `(expert, greatest)` of the positions at which the reference uses each.
        adds: whether there is a residual path that the output is added to.
    """

    greatest: float
    rms: float
    probe: str = ""
    output: str = ""
    position: int = 0
    gain: float = 1.0
    lengths: tuple[tuple[int, float], ...] = ()
    positions: tuple[tuple[int, float], ...] = ()
    channels: tuple[int, ...] = ()
    experts: tuple[tuple[int, float], ...] = ()
    adds: bool = True

    def __post_init__(self) -> None:
        if self.greatest < 0 or self.rms < 0:
            raise ValueError("an error is negative")


@dataclass(frozen=True)
class ErrorBudget:
    """What a shard's errors are made of; a part is None where its program is missing.

    Attributes:
        algebra: of the uncompressed program in float32, against the reference.
        rounding: of the uncompressed program as typed, against itself in float32.
        compression: of the compressed program, against the uncompressed one, both in float32.
        overflow: the first operation whose result fp16 does not hold, with its largest magnitude
            in float32, `mul square_1: 4.1e+06`; empty where there is none.
    """

    algebra: Error | None
    rounding: Error
    compression: Error | None
    overflow: str = ""
