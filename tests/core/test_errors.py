"""Every error for people is an `AneError`."""

from __future__ import annotations

import pytest

from pytest_ane.core import errors


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
    ours = {kind.__name__ for kind in errors.AneError.__subclasses__()}
    assert ours == {name for name in vars(errors) if name.endswith("Error")} - {"AneError"}


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\nb", r"a\nb"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\u202e", r"\u202e"),
        ("\ud800", r"\ud800"),
        ("naïve 模型.mlmodel", "naïve 模型.mlmodel"),
    ],
)
def test_a_program_cannot_write_to_the_terminal(name: str, shown: str) -> None:
    assert str(errors.ProgramError(f"{name}: damaged.")) == f"{shown}: damaged."


@pytest.mark.parametrize("letter", ["a", "\0"])
def test_long_names_lose_their_middle(letter: str) -> None:
    text = str(errors.ProgramError(f"model.mlmodel: {letter * 100_000} is not defined."))
    assert len(text) == 1003
    assert text.startswith("model.mlmodel: ")
    assert text.endswith(" is not defined.")


def test_what_is_unproven_says_of_which_kind() -> None:
    error = errors.UnprovenError("L01.json\x1b is of other bytes; record it again.", "stale")
    assert (error.kind, str(error)) == (
        "stale",
        r"L01.json\x1b is of other bytes; record it again.",
    )
