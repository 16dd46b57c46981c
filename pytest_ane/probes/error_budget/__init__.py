"""The error budget of a shard: what its function, fp16 and its compression each cost.

Three runs of the CPU executor tell them apart, on the probes of the fidelity gate:

- *algebra*: the uncompressed program in float32 against the reference. It has to be nearly nothing,
  whatever the model: both compute one function, so what differs is another function.
- *rounding*: the uncompressed program as typed against itself in float32.
- *compression*: the compressed program against the uncompressed one, both in float32.

An error is relative to what the shard *adds* to its residual path, position by position: the path
of a transformer is ten times what a block adds to it, and would hide everything. Less is taken for
no error than rounding the output to its type takes.
"""

from __future__ import annotations

from pytest_ane.probes.error_budget.measure import (
    BUDGET_VERSION,
    Error,
    ErrorBudget,
    difference,
    measure_budget,
    total_error,
)

__all__ = ["BUDGET_VERSION", "Error", "ErrorBudget", "difference", "measure_budget", "total_error"]
