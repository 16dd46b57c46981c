"""`pytest-ane drift`: on real packages of a tiny model, one or two of them spoilt."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from pytest_ane.cli import main
from pytest_ane.report.charts._stack import drift as draw
from pytest_ane.tools.drift import Drift
from tests.tools.stacks import BLOCKS, Stacks

Run = Callable[..., list[str]]
NAMES = [f"L{i:02d}" for i in range(BLOCKS)]


@pytest.fixture
def run(
    stacks: Stacks,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """`run("drift", ..., spoilt=[...])`: the lines of a command; those of its error come last."""
    monkeypatch.chdir(tmp_path)

    def call(
        *arguments: str, spoilt: Sequence[str] = (), greedy: int = 3, positions: int = 8,
        code: int = 0,
    ) -> list[str]:  # fmt: skip
        stacks.write(tmp_path / "shards.toml", spoilt, greedy, positions)
        assert main([*arguments, f"--ane-cache={stacks.cache}"]) == code
        out, err = capsys.readouterr()
        assert bool(err) == bool(code)
        return [*out.splitlines(), *err.splitlines()]

    return call


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_the_spoilt_shard_is_named(run: Run, seed: int) -> None:
    guilty = random.Random(seed).choice(NAMES)
    found = run("drift", spoilt=[guilty])
    assert found[-1].startswith(f"{guilty} breaks it: it fails alone in an otherwise exact stack;")
    assert found[-2].startswith("stack failed: ")


@pytest.mark.slow
def test_two_spoilt_shards_are_named(run: Run) -> None:
    first, second = random.Random(3).sample(NAMES, 2)
    says = run("drift", spoilt=[first, second])[-1]
    assert says.startswith((f"{first} and {second} break it", f"{second} and {first} break it"))


@pytest.mark.slow
def test_a_good_stack(run: Run) -> None:
    found = run("drift")
    assert found[-1].startswith("No shard breaks it: ")
    assert found[-2].startswith("stack passed: ")
    rows = [line.split() for line in found if line.startswith(("L0", "head."))]
    assert [row[0] for row in rows] == [*NAMES, "head.0", "head.1"]
    assert all(row[1] == "1.0000" for row in rows)
    assert max(map(len, found[:-2])) <= 80


@pytest.mark.parametrize("command", ["drift", "bisect"])
def test_an_unproven_stack_is_not_green(run: Run, command: str) -> None:
    *found, error = run(command, code=1, positions=32)
    reason = "8 positions are judged, the first of each prompt left out; "
    assert "No shard" not in " ".join(found)
    if command == "drift":
        assert found[-2].startswith("stack unproven: ")
        assert found[-1].startswith(f"Unproven, so no shard can be blamed: {reason}")
        assert error == "pytest-ane: deep is unproven."
    else:
        assert [line.partition(" (")[0] for line in found] == [" 1. exact: none - unproven"]
        says = f"pytest-ane: deep is unproven as it is, so no shard can be blamed: {reason}"
        assert error.startswith(says)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["drift", "bisect"])
def test_a_spoilt_shard_is_named_where_little_is_judged(run: Run, command: str) -> None:
    assert "L03" in run(command, spoilt=["L03"], positions=32)[-1]


@pytest.mark.slow
def test_the_measurement_as_json(run: Run) -> None:
    text = "\n".join(run("drift", "--json", spoilt=["L02"]))
    found = TypeAdapter(Drift).validate_json(text)
    assert [one.shard for one in found.shards] == [*NAMES, "head.0", "head.1"]
    document = json.loads(text)
    assert (document["command"], document["model"]) == ("drift", "deep")
    picture = draw(document)
    assert picture is not None
    assert "It rises most at L02" in picture.description
    assert found.shards[2].own.rest is not None
    assert found.shards[2].own.rest.relative_l2 > 0.1
    assert {"backend", "L00", "head.1"} <= found.provenance.keys()
    assert len(found.end.prompts[0].positions) == 6


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "other"], "shards.toml has no model 'other'"),
        (["--ane-manifest", "absent.toml"], "absent.toml"),
    ],
)
@pytest.mark.parametrize("command", ["drift", "bisect"])
def test_what_is_wrong_is_said_in_a_sentence(
    stacks: Stacks,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    arguments: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    stacks.write(tmp_path / "shards.toml")
    assert main([command, *arguments, f"--ane-cache={stacks.cache}"]) == 1
    _, err = capsys.readouterr()
    assert err.startswith("pytest-ane: ")
    assert says in err
    assert err.count("\n") == 1


def test_a_manifest_without_a_whole_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shards.toml").write_text(
        '[models.half]\nfamily = "llama"\nsource = { path = "x.gguf" }\nshards = "L00"\n'
    )
    assert main(["drift"]) == 1
    assert "has no model that a family or a chain wires" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["drift", "bisect"])
def test_prompts_of_a_single_token(
    stacks: Stacks,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    """Their only position is the first, which is in no statistic."""
    monkeypatch.chdir(tmp_path)
    stacks.write(tmp_path / "shards.toml")
    text = re.sub(r"ids = .*", "ids = [5]", (tmp_path / "shards.toml").read_text())
    (tmp_path / "shards.toml").write_text(text)
    assert main([command, f"--ane-cache={stacks.cache}"]) == 1
    assert capsys.readouterr().err == (
        "pytest-ane: deep: no golden prompt has a second position, and the first is left out, so "
        "nothing can be compared; add a prompt of more tokens.\n"
    )


def test_a_model_without_prompts(
    stacks: Stacks,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    stacks.write(tmp_path / "shards.toml")
    text = (tmp_path / "shards.toml").read_text()
    (tmp_path / "shards.toml").write_text(text[: text.index("[[models.deep.prompts]]")])
    assert main(["drift"]) == 1
    assert "deep has no golden prompts" in capsys.readouterr().err
