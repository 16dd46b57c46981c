"""Small programs that record on a Mac how its ANE computes, as rows for the rules of arithmetic."""

from __future__ import annotations

from pytest_ane.experiments.programs import EXPERIMENTS, Experiment, Sample
from pytest_ane.experiments.recorder import (
    Recording,
    chip_of,
    find_machine,
    older_generation,
    record,
    rows_of,
)
from pytest_ane.experiments.rows import COLUMNS, Row, to_csv

__all__ = [
    "COLUMNS",
    "EXPERIMENTS",
    "Experiment",
    "Recording",
    "Row",
    "Sample",
    "chip_of",
    "find_machine",
    "older_generation",
    "record",
    "rows_of",
    "to_csv",
]
