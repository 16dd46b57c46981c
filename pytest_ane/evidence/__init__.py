"""Evidence: measurements kept as files, so that another machine can judge them."""

from __future__ import annotations

from pytest_ane.evidence.judge import changes
from pytest_ane.evidence.statement import Statement, plain
from pytest_ane.evidence.store import FOLDER, Store

__all__ = ["FOLDER", "Statement", "Store", "changes", "plain"]
