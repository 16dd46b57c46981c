"""Write-ups: the text of their pages, and a run as the answer to an intent."""

from __future__ import annotations

from pytest_ane.report.writeup.pages import Page, writeups

__all__ = ["Page", "writeups"]
