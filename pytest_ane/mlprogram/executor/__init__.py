"""The CPU executor: ML Programs run op by op with numpy, on any machine."""

from __future__ import annotations

from pytest_ane.mlprogram.executor._pipeline import PipelineSession, open_session
from pytest_ane.mlprogram.executor._registry import register
from pytest_ane.mlprogram.executor.budget import Budget
from pytest_ane.mlprogram.executor.session import Session, eval_op

__all__ = ["Budget", "PipelineSession", "Session", "eval_op", "open_session", "register"]
