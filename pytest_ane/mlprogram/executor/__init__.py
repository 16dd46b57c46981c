"""The CPU executor: ML Programs run op by op with numpy, on any machine.

What does not fit a program is an `ExecutionError`, and what takes too much a `BudgetError`. Inside
it is the `ValueError`, `TypeError` or `LookupError` of whoever notices.
"""

from __future__ import annotations

from pytest_ane.mlprogram.executor._pipeline import PipelineSession, open_session
from pytest_ane.mlprogram.executor._registry import register
from pytest_ane.mlprogram.executor.budget import Budget
from pytest_ane.mlprogram.executor.session import Session, eval_op

__all__ = ["Budget", "PipelineSession", "Session", "eval_op", "open_session", "register"]
