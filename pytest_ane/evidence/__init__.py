"""Evidence: measurements kept as files, so that another machine can judge them."""

from __future__ import annotations

from pytest_ane.evidence.change import changes
from pytest_ane.evidence.codec import Measurement
from pytest_ane.evidence.statement import Statement, plain
from pytest_ane.evidence.store import FOLDER, Store

__all__ = ["FOLDER", "Measurement", "Statement", "Store", "changes", "plain"]
