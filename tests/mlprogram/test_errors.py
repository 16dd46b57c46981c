"""Errors for people."""

from __future__ import annotations

from pytest_ane.mlprogram import errors


def test_what_is_unproven_says_of_which_kind() -> None:
    error = errors.UnprovenError("L01.json\x1b is of other bytes; record it.", "stale")
    assert isinstance(error, errors.AneError)
    assert (error.kind, str(error)) == (
        "stale",
        r"L01.json\x1b is of other bytes; record it.",
    )
