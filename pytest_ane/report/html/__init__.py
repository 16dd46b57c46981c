"""The report as one page: HTML that needs no network, opened from disk."""

from __future__ import annotations

from pytest_ane.report.html.page import page

__all__ = ["page"]
