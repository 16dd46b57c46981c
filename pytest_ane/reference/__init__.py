"""The CPU executor: ML Programs run op by op with numpy, on any machine."""

from __future__ import annotations

from pytest_ane.reference.registry import register
from pytest_ane.reference.session import Session, eval_op

__all__ = ["Session", "eval_op", "register"]
