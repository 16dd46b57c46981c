"""Every error for people is an `AneError`."""

from __future__ import annotations

import pytest

from pytest_ane.mlprogram import errors


@pytest.mark.parametrize(
    "name",
    [
        "ManifestError",
        "SourceError",
        "ProgramError",
        "PlanError",
        "ExecutionError",
        "BuildError",
        "CacheError",
    ],
)
def test_an_error_is_caught_as_one_of_ours_and_shows_its_sentence(name: str) -> None:
    kind = getattr(errors, name)
    with pytest.raises(errors.AneError, match=r"^The file is damaged; fetch it again\.$"):
        raise kind("The file is damaged; fetch it again.")


def test_no_error_is_forgotten() -> None:
    ours = {
        kind.__name__ for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.AneError)
    } - {"AneError"}  # fmt: skip
    assert ours == {name for name in vars(errors) if name.endswith("Error")} - {"AneError"}


def test_what_is_unproven_says_of_which_kind() -> None:
    error = errors.UnprovenError("L01.json\x1b is of other bytes; record it again.", "stale")
    assert (error.kind, str(error)) == (
        "stale",
        r"L01.json\x1b is of other bytes; record it again.",
    )
