"""`pytest-ane speculate`: on real packages of a tiny model with states."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_ane.cli import main
from pytest_ane.report.charts.run import speculation
from pytest_ane.tools import _speculate as speculate
from tests.tools.conftest import AsJson
from tests.tools.stacks import Stacks

Capture = pytest.CaptureFixture[str]
STATEFUL = "max-tokens = 8\nstateful = true\ncontext = 32"


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory, cache_path: Path) -> Stacks:
    """Two blocks are as good as six where only tokens and their count matter."""
    return Stacks(tmp_path_factory.mktemp("stacks"), cache_path / "stacks", blocks=2)


@pytest.fixture
def manifest(stacks: Stacks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a model with states, in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "shards.toml"
    stacks.write(path)
    path.write_text(path.read_text().replace("max-tokens = 16", STATEFUL))
    return path


@pytest.mark.slow
def test_plain_and_speculative_decoding(
    manifest: Path, stacks: Stacks, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    arguments = ["--tokens", "16", "--prompt", "other", f"--ane-cache={stacks.cache}"]
    assert main(["speculate", *arguments]) == 0
    out, err = capsys.readouterr()
    head, costs, break_even, counters, outcome, same = out.splitlines()
    assert err == ""
    assert (
        head == "deep, prompt 'other': 4 tokens, then 16 greedy ones · backend cpu, processor time"
    )
    assert "(median of 15 steps) · verifier of width 4: " in costs
    assert break_even.startswith("break-even: a call must yield ")
    assert same == "the same 16 tokens as plain decoding"
    names = ("verifier_calls", "drafted", "accepted", "fallbacks")
    numbers = {name: int(re.findall(rf"\b{name}=(\d+)", counters)[0]) for name in names}
    assert numbers["verifier_calls"] + numbers["accepted"] + numbers["fallbacks"] == 15
    assert re.search(r"\d tok/s, \d+\.\d\dx plain; predicted \d+\.\d\d tok/s", outcome)


@pytest.mark.drawn
@pytest.mark.slow
def test_other_tokens_than_plain_decoding_are_an_error(
    manifest: Path, stacks: Stacks, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = speculate.speculate

    def wrong(*args: object, **options: object) -> object:
        found = honest(*args, **options)  # type: ignore[arg-type]
        found.tokens[1] += 1
        return found

    monkeypatch.setattr(speculate, "speculate", wrong)
    assert main(["speculate", "--tokens", "3", f"--ane-cache={stacks.cache}"]) == 1
    assert re.search(r"Token 2 is \d+, and \d+ in plain decoding: .* larger --margin\.$",
                     capsys.readouterr().err.strip())  # fmt: skip


@pytest.mark.drawn
@pytest.mark.slow
def test_a_prompt_of_ids_and_short_n_grams(
    manifest: Path, stacks: Stacks, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids in place of golden prompts, of which there need be none; one token alike drafts more."""
    text = manifest.read_text()
    manifest.write_text(text[: text.index("[[")])
    arguments = ["--tokens", "24", "--prompt-ids", "2,42", f"--ane-cache={stacks.cache}"]
    drafted = []
    for ngram_min in ("1", "9"):
        assert main(["speculate", *arguments, "--ngram-min", ngram_min]) == 0
        out = capsys.readouterr().out
        assert out.startswith("deep, prompt 'prompt-ids': 2 tokens, then 24 greedy ones")
        drafted.append(int(re.findall(r"drafted=(\d+)", out)[0]))
    assert drafted[0] > drafted[1]


@pytest.mark.parametrize(
    ("option", "says"),
    [
        *((f"--prompt-ids={ids}", "is no list of token ids") for ids in ("", "2,x", "-1", "2,,3")),
        ("--width=99999999", "is no whole number from 1 to 65536"),
        ("--width=0", "is no whole number from 1 to 65536"),
        ("--prompt-ids=2", "not allowed with argument --prompt"),
    ],
)
def test_options_that_no_model_could_take(option: str, says: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["speculate", "--prompt=other", option])
    assert says in capsys.readouterr().err


@pytest.mark.slow
def test_as_json(manifest: Path, stacks: Stacks, as_json: AsJson) -> None:
    found = as_json("speculate", "--tokens", "12", f"--cache={stacks.cache}")
    assert found["tokens"] == found["speculated"]["tokens"]
    assert len(found["tokens"]) == 12
    assert found["cost"]["t1"] > 0
    assert found["command"] == "speculate"
    widths = {each["width"]: each for each in found["widths"]}
    assert [*widths] == [2, 3, 4, 5, 6, 7, 8]
    assert widths[4]["calls"] == len(found["speculated"]["calls"])
    picture = speculation([found])
    assert (picture is None) == (not found["speculated"]["calls"])


def test_the_break_even_alone(capsys: Capture, as_json: AsJson) -> None:
    assert main(["speculate", "--times", "109", "483"]) == 0
    assert "unreachable, at best 0.90x" in capsys.readouterr().out
    assert as_json("speculate", "--times", "100", "400")["cost"]["t1"] == 0.1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--width", "1"], "A verifier of width 1 takes no draft"),
        (["--width", "9"], "A verifier of width 9 does not fit the shards, which take 1 to 8 "),
        (["--tokens", "1"], "--tokens 1: the first token comes from the prompt"),
        (["--tokens", "28"], "A prompt of 6 tokens and 28 more do not fit the 32 positions"),
        (["--prompt", "nobody"], "--prompt nobody: deep has no such golden prompt; there is: coun"),
        (["--margin", "-1"], "--margin -1.0: give a difference of logits, 0 or above."),
        (["--margin", "nan"], "--margin nan: give a difference of logits, 0 or above."),
        (["--prompt-ids", "2,64"], "Golden prompt 'prompt-ids' of deep has token 64, "),
        (["--model", "other"], "shards.toml has no model 'other'"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence_and_nothing_built(
    manifest: Path, tmp_path: Path, capsys: Capture, arguments: list[str], says: str
) -> None:
    assert main(["speculate", *arguments, f"--ane-cache={tmp_path / 'cache'}"]) == 1
    out, err = capsys.readouterr()
    assert err.startswith(f"pytest-ane: {says}")
    assert (out, err.count("\n")) == ("", 1)
    assert not list((tmp_path / "cache/artifacts").glob("*"))


def test_a_model_without_states(
    stacks: Stacks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    stacks.write(tmp_path / "shards.toml")
    assert main(["speculate", f"--ane-cache={tmp_path / 'cache'}"]) == 1
    assert "Shards without states take a whole text at once" in capsys.readouterr().err
