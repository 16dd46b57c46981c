"""The tokenizer beside the weights: its own BOS, templates in both places, and what is damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_ane.core.errors import SourceError
from pytest_ane.sources.tokenizer import read_tokenizer
from tests.sources.checkpoints import write_tokenizer

WORDS = ("hello", "user", ":", "answer")
TEMPLATE = (
    "{{ bos_token }}user: {{ messages[0]['content'] }}"
    "{% if add_generation_prompt %} answer{% endif %}"
)


def test_text_begins_as_the_tokenizer_says(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, WORDS)
    tokenizer = read_tokenizer(tmp_path)
    assert tokenizer.encode("hello user") == [0, 2, 3]
    assert tokenizer.decode([0, 2, 3]) == "<s> hello user"


@pytest.mark.parametrize(
    "settings",
    [
        {"chat_template": TEMPLATE, "bos_token": "<s>"},
        {"chat_template": TEMPLATE, "bos_token": {"content": "<s>", "lstrip": False}},
        {
            "chat_template": [
                {"name": "tools", "template": "x"},
                {"name": "default", "template": TEMPLATE},
            ],
            "bos_token": "<s>",
            "pad_token": None,
        },
    ],
)
def test_a_chat_has_the_template_s_bos_alone(tmp_path: Path, settings: dict[str, Any]) -> None:
    write_tokenizer(tmp_path, WORDS, **settings)
    assert read_tokenizer(tmp_path).chat("hello") == [0, 3, 4, 2, 5]


def test_a_template_of_its_own_file_wins(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, WORDS, chat_template="user", bos_token="<s>")
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    assert read_tokenizer(tmp_path).chat("hello") == [0, 3, 4, 2, 5]


def test_no_template(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, WORDS, chat_template=[{"name": "tools"}, 3])
    with pytest.raises(SourceError) as error:
        read_tokenizer(tmp_path).chat("hello")
    assert str(error.value) == f"{tmp_path}: no chat template; give the prompt as text or ids."


@pytest.mark.parametrize("text", ["", "{", '{"model": {"type": "Unheard"}}', "[]"])
def test_a_damaged_tokenizer(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(SourceError) as error:
        read_tokenizer(tmp_path)
    said = str(error.value)
    start = f"{tmp_path / 'tokenizer.json'}: the tokenizer is damaged or of a kind that is not"
    assert said.startswith(start)
    assert said.endswith("; fetch it again, or give prompts as ids.")
    assert "\n" not in said


def test_a_template_that_is_no_text(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, WORDS)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(SourceError, match=r"chat_template\.jinja: cannot be read \("):
        read_tokenizer(tmp_path)
