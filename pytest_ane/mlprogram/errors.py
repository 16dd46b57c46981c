"""The errors a person may see: one sentence that says what is wrong, where, and what to do."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pytest_ane.mlprogram.text import printable


class AneError(Exception):
    """Base of every error this package raises on bad input or a bad environment.

    `str(error)` is written for the person at the terminal; the plugin and the command line
    print it without a traceback. It may quote what stands in a file, so characters that a terminal
    would obey are shown as escapes, and a text of more than 1,000 characters loses its middle.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class ManifestError(AneError):
    """`shards.toml`, an option or a selection is wrong; several problems have a line each."""

    def __init__(self, message: str) -> None:
        Exception.__init__(self, "\n".join(map(printable, message.split("\n"))))


class SourceError(AneError):
    """A source of weights (GGUF, safetensors, seeded) is missing, broken or lacks a tensor."""


class ProgramError(AneError):
    """A Core ML package cannot be read: missing, truncated, hostile or of an unsupported kind.

    All that reads one raises it, and says which file it is and where.
    """


class PlanError(AneError):
    """A recorded placement plan cannot be read: damaged, contradictory or of an unknown format."""


class ExecutionError(AneError):
    """A program cannot be run on the given inputs: wrong name, dtype, shape, or unknown op."""


class BudgetError(ExecutionError):
    """Running a program would take more memory or time than allowed."""


class BackendError(AneError):
    """A backend cannot be used on this machine."""


class BuildError(AneError):
    """A shard could not be converted, compressed or stored."""


class DiskError(BuildError):
    """The disk of the machine that builds is full, too small or failing."""


class NotRunError(AneError):
    """A gate was not asked, because something else has to be put right first."""


class EvidenceError(AneError):
    """A record, or a file of records, cannot be read or written: damaged, too large or edited."""


UnprovenKind: TypeAlias = Literal[
    "missing", "damaged", "edited", "stale", "incomplete", "backend", "replayed", "simulated",
    "device", "chip", "os", "compute-units", "age", "future", "unsigned", "signer", "signature",
    "library",
]  # fmt: skip
"""Why evidence proves nothing; `stale` is of other bytes, or of another question; `incomplete`
leaves out something that was asked."""


class UnprovenError(AneError):
    """What a policy asks for is not proven: evidence is missing, stale or not to be trusted.

    The kind is what is the matter, for those who record anew.
    """

    def __init__(self, message: str, kind: UnprovenKind = "missing") -> None:
        super().__init__(message)
        self.kind = kind


class RecordingError(AneError):
    """A recording of Core ML's answers cannot be read, or does not hold what was asked for."""


class HistoryError(AneError):
    """The memory of many runs cannot be written or asked, or holds nothing of what was asked."""


class GoldenError(AneError):
    """Golden tensors cannot be read or written, or are not those of the shard."""


class ReportError(AneError):
    """A report of a run cannot be read, or lacks what is to be shown."""


class OutputError(AneError):
    """The command line's standard output cannot be written, such as on a full disk."""


class ClusterError(AneError):
    """A cluster's scheduler or workers cannot be had, or are not to be used."""


class CacheError(AneError):
    """The cache folder cannot be read or written."""
