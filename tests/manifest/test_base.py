"""What all records have in common."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from pytest_ane.manifest.base import CoremlRecord, Form, Record, misplaced


class Words(Record):
    two_words: Annotated[str, Form("a+", "must be made of a")] = "a"


class Names(CoremlRecord):
    two_words: int = 0


def test_files_write_kebab_case_and_code_writes_names() -> None:
    assert Words.model_validate({"two-words": "aa"}) == Words(two_words="aa")
    assert Names.model_validate({"two_words": 1}) == Names(two_words=1)


def test_types_are_not_coerced() -> None:
    with pytest.raises(ValidationError, match="valid integer"):
        Names.model_validate({"two_words": "1"})


@pytest.mark.parametrize("text", ["", "b", "ab", "a\n"])
def test_a_form_holds_for_the_whole_text(text: str) -> None:
    with pytest.raises(ValidationError, match="must be made of a"):
        Words(two_words=text)


def test_a_form_reaches_the_schema() -> None:
    assert Words.model_json_schema()["properties"]["two-words"]["pattern"] == "^(?:a+)$"


def test_a_misplaced_error_keeps_braces() -> None:
    error = misplaced(("key",), "must be {x}")
    assert isinstance(error, PydanticCustomError)
    assert error.message() == "must be {x}"
