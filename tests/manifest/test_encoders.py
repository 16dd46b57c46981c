"""An encoder's model: its prompts, and the sentences that they rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.manifest.conftest import Complaints, Read

MODEL = """
[models.minilm]
family = "bert"
source = {{ path = "minilm" }}
shards = "L00, pooling"
{keys}
[[models.minilm.prompts]]
name = "music"
text = "Someone plays."
{prompt}
"""


def model(keys: str = "", prompt: str = "") -> str:
    return MODEL.format(keys=keys, prompt=prompt)


def test_prompts_continue_no_text_and_nothing_is_massive(read: Read) -> None:
    (encoder,) = read(model(prompt='expect = "guitar"')).models
    assert encoder.prompts[0].greedy == 0
    assert encoder.prompts[0].expect == "guitar"
    assert encoder.shards[0].probes.kinds == ("gaussian", "outlier", "captured")


def test_sentences_are_the_lines_of_a_file(read: Read, tmp_path: Path) -> None:
    (tmp_path / "s.txt").write_text("A cat.\n\n  A dog. \nÄ bird.\n", encoding="utf-8")
    (encoder,) = read(model('sentences = "s.txt"')).models
    assert encoder.sentences == ("A cat.", "A dog.", "Ä bird.")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot be read as UTF-8 text"),
        (b"\xff\n", "cannot be read as UTF-8 text"),
        (b"a\nb\n", "has 2 sentences; give 3 to 1,000, one a line"),
        (b"a\n" * 1001, "has 1001 sentences; give 3 to 1,000"),
        (b"a\nb\na\n", "has 'a' twice"),
        (b"a\nb\nmusic\n", "has 'music' twice, or as a prompt's name"),
    ],
)
def test_files_that_are_no_sentences(
    complaints: Complaints, tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    if content is not None:
        (tmp_path / "s.txt").write_bytes(content)
    (line,) = complaints(model('sentences = "s.txt"'))
    assert complaint in line


LLAMA = MODEL.replace('"bert"', '"llama"')


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (model("stateful = true"), "'stateful' is for decoders; an encoder keeps no states"),
        *((model("", f"{key} = 3"), "must be left out, or 0: an encoder continues no text")
          for key in ("greedy", "answer")),
        (model().replace("text = ", "chat = "),
         "'chat' is for decoders; give an encoder's prompt as text"),
        (LLAMA.format(keys='sentences = "s.txt"', prompt=""),
         "'sentences' needs an encoder: family 'bert'"),
        (LLAMA.format(keys="", prompt='expect = "a"\ngreedy = 0'),
         "expect needs greedy text to look in; set greedy to 1 or more"),
    ],
)  # fmt: skip
def test_keys_of_the_other_kind(
    complaints: Complaints, tmp_path: Path, text: str, complaint: str
) -> None:
    (tmp_path / "s.txt").write_text("a\nb\nc\n")
    (line,) = complaints(text)
    assert complaint in line
