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


@pytest.mark.parametrize(
    ("keys", "prompt", "complaint"),
    [
        ("stateful = true", "", "'stateful' is for decoders; an encoder keeps no states"),
        ("", "greedy = 3", "must be left out, or 0: an encoder continues no text"),
        ("", "answer = 3", "must be left out, or 0: an encoder continues no text"),
    ],
)
def test_keys_of_decoders(complaints: Complaints, keys: str, prompt: str, complaint: str) -> None:
    (line,) = complaints(model(keys, prompt))
    assert complaint in line


def test_a_chat_needs_a_decoder(complaints: Complaints) -> None:
    (line,) = complaints(model().replace("text = ", "chat = "))
    assert "'chat' is for decoders; give an encoder's prompt as text" in line


def test_sentences_need_an_encoder(complaints: Complaints, tmp_path: Path) -> None:
    (tmp_path / "s.txt").write_text("a\nb\nc\n")
    text = model('sentences = "s.txt"').replace('"bert"', '"llama"')
    (line,) = complaints(text)
    assert "'sentences' needs an encoder: family 'bert'" in line


def test_a_decoder_s_expectation_needs_greedy_text(complaints: Complaints) -> None:
    text = model(prompt='expect = "a"\ngreedy = 0').replace('"bert"', '"llama"')
    (line,) = complaints(text)
    assert "expect needs greedy text to look in; set greedy to 1 or more" in line
