"""Answers of a tokenizer are kept, and it is opened for new questions alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_ane.make import Cache
from pytest_ane.manifest import load
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.sources.base import Tokenizer
from pytest_ane.project._own_chain import OpenChain
from pytest_ane.project.models import KeptTokenizer
from tests.manifest.test_chain import chain
from tests.models.sources.checkpoints import write_tokenizer


class Letters:
    """One token for each letter; no chat template."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def chat(self, text: str) -> list[int]:
        raise SourceError("no chat template")

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


class Opened:
    """How often the tokenizer was opened."""

    times = 0

    def __call__(self) -> Tokenizer:
        self.times += 1
        return Letters()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens" / "a.jsonl"


def test_another_run_opens_none(file: Path) -> None:
    for expected in (1, 0):
        opened = Opened()
        kept = KeptTokenizer(file, opened)
        assert kept.encode("hé\n") == [104, 233, 10]
        assert kept.decode((104, 233)) == kept.decode([104, 233]) == "hé"
        assert kept.encode("") == []
        assert opened.times == expected


def test_a_text_is_no_chat_and_a_refusal_is_not_kept(file: Path) -> None:
    assert KeptTokenizer(file, Opened()).encode("h") == [104]
    for _ in range(2):
        opened = Opened()
        with pytest.raises(SourceError, match="no chat template"):
            KeptTokenizer(file, opened).chat("h")
        assert opened.times == 1


def test_an_answer_is_the_caller_s_own(file: Path) -> None:
    kept = KeptTokenizer(file, Opened())
    kept.encode("h").append(1)
    assert kept.encode("h") == [104]


@pytest.mark.parametrize(
    "damage", [b"\n[", b'\n["encode", "h', b'\n3\n[]\n{}\n\xff\n["encode", "h", 3]']
)
def test_a_damaged_line_is_skipped(file: Path, damage: bytes) -> None:
    KeptTokenizer(file, Opened()).encode("h")
    file.write_bytes(file.read_bytes() + damage)
    assert KeptTokenizer(file, Opened()).encode("i") == [105]
    opened = Opened()
    kept = KeptTokenizer(file, opened)
    assert (kept.encode("h"), kept.encode("i"), opened.times) == ([104], [105], 0)


def test_a_folder_that_cannot_be_written_costs_time_alone(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("a file in its place")
    kept = KeptTokenizer(tmp_path / "tokens" / "a.jsonl", Opened())
    assert kept.encode("h") == kept.encode("h") == [104]


def test_a_chain_s_tokens_are_those_of_all_its_tokenizer_s_files(tmp_path: Path) -> None:
    (tmp_path / "shards.toml").write_text(chain('tokenizer = "tokenizer.json"'))
    (model,) = load(tmp_path / "shards.toml").models

    def opened() -> Tokenizer:
        return OpenChain(model, Cache(tmp_path / "cache")).tokenizer

    write_tokenizer(tmp_path, "ab")
    assert opened().encode("b") == [0, 3]
    write_tokenizer(tmp_path, "ba")
    assert opened().encode("b") == [0, 2]
    with pytest.raises(SourceError, match="no chat template"):
        opened().chat("b")
    write_tokenizer(tmp_path, "ba", chat_template="a {{ messages[0].content }}")
    assert opened().chat("b") == [3, 2]
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(SourceError, match=r"tokenizer\.json: no such file; add the tokenizer, or"):
        opened().chat("b")
