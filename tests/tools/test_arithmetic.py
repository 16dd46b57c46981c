"""`--arithmetic` of the commands that run programs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from pytest_ane.cli import main
from tests.mlprogram.executor.ane.test_simulation import INPUTS, OUTPUTS, package, program
from tests.tools.conftest import AsJson
from tests.tools.stacks import Stacks

LABEL = "simulated ANE (h16+)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`add`: x + 1. `sums`: (x0 + x1, x0 - x1) by a linear layer; and inputs that overflow it."""
    monkeypatch.chdir(tmp_path)
    made = {
        "add": program("add", (1, 2), y=1.0),
        "sums": program("linear", (1, 2), weight=np.array([[1, 1], [1, -1]])),
        "silu": program("silu", (1, 64)),
        "soft": program("softsign", (1, 2)),
    }
    for name, built in made.items():
        built.save(tmp_path / name).rename(tmp_path / f"{name}.mlpackage")
    np.save("x.npy", np.float16([[2048, 2050]]))
    np.save("large.npy", np.float16([[20000, 20000]]))
    return tmp_path


def test_run_in_the_arithmetic(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "add.mlpackage", "--input", "x=x.npy", "--arithmetic", "ane"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines() == [
        "y: float32 [1, 2] · 2050 to 2052 · mean 2051",
        f"{LABEL}: operations by rules 100% recorded",
        f"run by pytest-ane's CPU executor as {LABEL}, not by Core ML",
    ]


def test_run_names_overflow_and_what_has_no_rule(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "sums.mlpackage", "--input", "x=large.npy", "--arithmetic=ane"]) == 0
    out = capsys.readouterr().out
    assert f"{LABEL}: multiply-accumulates by rules 100% recorded; operations 100% recorded" in out
    assert "overflowed to infinity: 1 output of y" in out
    assert main(["run", "soft.mlpackage", "--input", "x=x.npy", "--arithmetic=ane"]) == 0
    assert f"{LABEL}: operations by rules 100% unknown (softsign)" in capsys.readouterr().out


def test_run_as_json(folder: Path, as_json: AsJson) -> None:
    arguments = ("run", "sums.mlpackage", "--input", "x=large.npy")
    plain = as_json(*arguments)
    assert plain["arithmetic"] == "typed"
    assert "rules" not in plain
    ane = as_json(*arguments, "--arithmetic", "ane")
    assert ane["arithmetic"] == LABEL
    assert ane["rules"]["products"] == {"recorded": 4}
    assert ane["rules"]["infinite"] == {"y": 1}


def test_run_scales_after_accumulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    codes = np.full((OUTPUTS, INPUTS), 127, np.int8)
    quantized = package(
        tmp_path, "linear", codes=codes, scale=np.full((OUTPUTS, 1), 0.001, np.float16)
    )
    np.save("x.npy", np.full((3, INPUTS), 10, np.float16))
    arguments = ["run", str(quantized), "--input", "x=x.npy"]
    assert main([*arguments, "--arithmetic=ane"]) == 0
    assert "NaN or infinite" not in capsys.readouterr().out
    assert main([*arguments, "--arithmetic=ane", "--scale-after"]) == 0
    out = capsys.readouterr().out
    assert "18 of 18 NaN or infinite" in out
    assert f"as {LABEL}, scales after accumulation (inferred), not by Core ML" in out
    assert main([*arguments, "--scale-after"]) == 1
    assert "it needs arithmetic 'ane'" in capsys.readouterr().err


def test_diff_of_two_packages_in_the_arithmetic(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["add.mlpackage", "add.mlpackage", "--input", "x=x.npy", "--arithmetic=ane"]
    assert main(["diff", *arguments]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "1 operations compared, by name",
        f"{LABEL} in both",
        f"first: {LABEL}: operations by rules 100% recorded",
        f"second: {LABEL}: operations by rules 100% recorded",
        "no operation differs by more than 0.01",
    ]


def test_diff_of_a_package_with_itself_as_typed(
    folder: Path, capsys: pytest.CaptureFixture[str], as_json: AsJson
) -> None:
    arguments = ["diff", "add.mlpackage", "--input", "x=x.npy", "--arithmetic=ane"]
    assert main([*arguments, "--tolerance=1e-4"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "! y  add                  relative 0.00069, largest 2",
        "1 operations compared, by name",
        f"{LABEL} against the same package as typed",
        f"{LABEL}: operations by rules 100% recorded",
    ]
    assert err.startswith("pytest-ane: add 'y' is the first operation that differs by more than")
    data = as_json(*arguments)
    assert data["arithmetic"] == [LABEL, "typed"]
    assert data["rules"][0]["operations"] == {"recorded": 1}
    assert data["rules"][1] is None


def test_blame_of_the_engine(
    folder: Path, capsys: pytest.CaptureFixture[str], as_json: AsJson
) -> None:
    arguments = ["blame", "silu.mlpackage", "--ane-cache", "cache", "--arithmetic", "ane"]
    assert main(arguments) == 0
    cause, _, errors, rules, _, header, operation, *_ = capsys.readouterr().out.splitlines()
    assert cause == "the ANE's arithmetic: as typed, less than half of the error is left"
    assert f" as {LABEL}, " in errors
    assert " as typed" in errors
    assert rules == f"{LABEL}: operations by rules 100% fitted"
    assert header.split("  ")[3].strip() == "as typed"
    assert operation.startswith("silu")
    (blame,) = as_json(*arguments)["shards"].values()
    assert blame["arithmetic"] == LABEL
    (suspect,) = blame["operations"]
    assert suspect["own"] > 10 * suspect["typed"] > 0
    assert blame["error"] > 10 * blame["typed"] > 0
    (typed,) = as_json(*arguments[:-1], "typed")["shards"].values()
    assert typed["arithmetic"] == "typed"
    assert typed["error"] == blame["typed"]
    assert typed["typed"] == "NaN"


def test_blame_names_sums_that_overflow(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 15,000 x the ANE makes infinity from x = 2.2 on, fp16 from 4.4 on."""
    program("linear", (1, 64), weight=15000 * np.eye(64)).save(folder / "w").rename("w.mlpackage")
    assert main(["blame", "w.mlpackage", "--ane-cache", "cache", "--arithmetic", "ane"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("the ANE's arithmetic: as typed, less than half of the error is left")
    assert re.search(r"overflowed to infinity: \d outputs of y", out)
    assert re.search(
        r"\nhazard: y \(linear\) on gaussian .*, as the accumulator met 32,768 .*; ", out
    )
    assert re.search(r"infinite on the ANE: \d\d,\d{3} in float32", out)


def test_blame_takes_the_arithmetic_of_the_manifest(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("shards.toml").write_text(
        '[models.own]\narithmetic = ["typed", "ane"]\n[models.own.shard.one]\n'
        'artifact = "silu.mlpackage"\nreference = "none"\n'
    )
    assert main(["blame", "all", "--ane-cache", "cache"]) == 0
    assert LABEL in capsys.readouterr().out


@pytest.mark.slow
def test_drift_and_bisect_in_the_arithmetic(
    stacks: Stacks,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    as_json: AsJson,
) -> None:
    monkeypatch.chdir(tmp_path)
    stacks.write(tmp_path / "shards.toml")
    arguments = ["drift", f"--ane-cache={stacks.cache}"]
    typed = as_json(*arguments)
    assert main([*arguments, "--arithmetic=ane"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith(f"{LABEL}: multiply-accumulates by rules 100% recorded; operations")
    assert max(map(len, lines[:-2])) <= 80
    ane = as_json(*arguments, "--arithmetic=ane")
    assert (typed["arithmetic"], ane["arithmetic"]) == ("typed", LABEL)
    assert ane["provenance"]["arithmetic"] == LABEL
    assert "unknown" not in ane["rules"]["products"]
    assert main(["bisect", f"--ane-cache={stacks.cache}", "--arithmetic=ane"]) == 0
    assert capsys.readouterr().out.startswith(f"{LABEL}: multiply-accumulates by rules 100%")
    first, other = (d["shards"][0]["own"]["rest"]["relative_l2"] for d in (ane, typed))
    assert first > other


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["run", "add.mlpackage", "--arithmetic=ane", "--precision=float32"],
            "arithmetic 'ane' rounds as the ANE does, so it excludes precision 'float32'",
        ),
        (
            ["diff", "add.mlpackage"],
            "add.mlpackage alone has nothing to be compared with; name a second package, or give "
            "--arithmetic ane to compare it with itself as typed.",
        ),
    ],
)
def test_what_makes_no_sense_is_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert main(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


@pytest.mark.parametrize(
    "command", [["run", "x"], ["diff", "x"], ["drift"], ["bisect"], ["blame", "x"]]
)
@pytest.mark.parametrize(
    ("word", "says"),
    [("h13", "h13 to h15 (M1 to M3) sum in other ways"), ("fp8", "must be 'typed' or 'ane'")],
)
def test_other_words_are_refused(
    command: list[str], word: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*command, f"--arithmetic={word}"])
    assert caught.value.code == 2
    assert f"argument --arithmetic/--ane-arithmetic: {word}: {says}" in capsys.readouterr().err
