"""`--arithmetic` of the commands that run programs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from pytest_ane.cli import main
from tests.mlprogram.executor.ane.test_simulation import INPUTS, OUTPUTS, package, program
from tests.tools.conftest import AsJson, Says
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


def test_run_in_the_arithmetic(folder: Path, says: Says) -> None:
    assert says("run", "add.mlpackage", "--input", "x=x.npy", "--arithmetic", "ane") == [
        "y: float32 [1, 2] · 2050 to 2052 · mean 2051",
        f"{LABEL}: operations by rules 100% recorded",
        f"run by pytest-ane's CPU executor as {LABEL}, not by Core ML",
    ]


def test_run_names_overflow_and_what_has_no_rule(folder: Path, says: Says) -> None:
    out = says("run", "sums.mlpackage", "--input", "x=large.npy", "--arithmetic=ane")
    assert f"{LABEL}: multiply-accumulates by rules 100% recorded; operations 100% recorded" in out
    assert "overflowed to infinity: 1 output of y" in out
    out = says("run", "soft.mlpackage", "--input", "x=x.npy", "--arithmetic=ane")
    assert f"{LABEL}: operations by rules 100% unknown (softsign)" in out


def test_run_as_json(folder: Path, as_json: AsJson) -> None:
    arguments = ("run", "sums.mlpackage", "--input", "x=large.npy")
    plain = as_json(*arguments)
    assert plain["arithmetic"] == "typed"
    assert "rules" not in plain
    ane = as_json(*arguments, "--arithmetic", "ane")
    assert ane["arithmetic"] == LABEL
    assert ane["rules"]["products"] == {"recorded": 4}
    assert ane["rules"]["infinite"] == {"y": 1}


def test_run_scales_after_accumulation(folder: Path, says: Says) -> None:
    codes, scale = np.full((OUTPUTS, INPUTS), 127, np.int8), np.full((OUTPUTS, 1), 0.001)
    quantized = package(folder, "linear", codes=codes, scale=scale.astype(np.float16))
    np.save("x.npy", np.full((3, INPUTS), 10, np.float16))
    arguments = ["run", quantized, "--input", "x=x.npy"]
    assert "NaN or infinite" not in "\n".join(says(*arguments, "--arithmetic=ane"))
    first, *_, last = says(*arguments, "--arithmetic=ane", "--scale-after")
    assert "18 of 18 NaN or infinite" in first
    assert f"as {LABEL}, scales after accumulation (inferred), not by Core ML" in last
    assert "it needs arithmetic 'ane'" in says(*arguments, "--scale-after", code=1)[-1]


def test_diff_of_two_packages_in_the_arithmetic(folder: Path, says: Says) -> None:
    arguments = ["add.mlpackage", "add.mlpackage", "--input", "x=x.npy", "--arithmetic=ane"]
    assert says("diff", *arguments) == [
        "1 operations compared, by name",
        f"{LABEL} in both",
        f"first: {LABEL}: operations by rules 100% recorded",
        f"second: {LABEL}: operations by rules 100% recorded",
        "no operation differs by more than 0.01",
    ]


def test_diff_of_a_package_with_itself_as_typed(folder: Path, says: Says, as_json: AsJson) -> None:
    arguments = ["diff", "add.mlpackage", "--input", "x=x.npy", "--arithmetic=ane"]
    *out, error = says(*arguments, "--tolerance=1e-4", code=1)
    assert out == [
        "! y  add                  relative 0.00069, largest 2",
        "1 operations compared, by name",
        f"{LABEL} against the same package as typed",
        f"{LABEL}: operations by rules 100% recorded",
    ]
    assert error.startswith("pytest-ane: add 'y' is the first operation that differs by more than")
    data = as_json(*arguments)
    assert data["arithmetic"] == [LABEL, "typed"]
    assert data["rules"][0]["operations"] == {"recorded": 1}
    assert data["rules"][1] is None


def test_blame_of_the_engine(folder: Path, says: Says, as_json: AsJson) -> None:
    arguments = ["blame", "silu.mlpackage", "--ane-cache", "cache", "--arithmetic", "ane"]
    cause, _, errors, rules, _, header, operation, *_ = says(*arguments)
    assert cause == "the ANE's arithmetic: as typed, less than half of the error is left"
    assert f" as {LABEL}, " in errors
    assert " as typed" in errors
    assert rules == f"{LABEL}: operations by rules 100% fitted"
    assert header.split("  ")[3].strip() == "as typed"
    assert operation.split()[1] == "silu"
    (blame,) = as_json(*arguments)["shards"].values()
    assert blame["arithmetic"] == LABEL
    (suspect,) = blame["operations"]
    assert suspect["own"] > 10 * suspect["typed"] > 0
    assert blame["error"] > 10 * blame["typed"] > 0
    (typed,) = as_json(*arguments[:-1], "typed")["shards"].values()
    assert typed["arithmetic"] == "typed"
    assert typed["error"] == blame["typed"]
    assert typed["typed"] == "NaN"


def test_blame_names_sums_that_overflow(folder: Path, says: Says) -> None:
    """Of 15,000 x the ANE makes infinity from x = 2.2 on, fp16 from 4.4 on."""
    program("linear", (1, 64), weight=15000 * np.eye(64)).save(folder / "w").rename("w.mlpackage")
    out = "\n".join(says("blame", "w.mlpackage", "--ane-cache", "cache", "--arithmetic", "ane"))
    assert out.startswith("the ANE's arithmetic: as typed, less than half of the error is left")
    assert re.search(r"overflowed to infinity: \d outputs of y", out)
    assert re.search(
        r"\nhazard: y \(linear\) on gaussian .*, as the accumulator met 32,768 .*; ", out
    )
    assert re.search(r"infinite on the ANE: \d\d,\d{3} in float32", out)


def test_blame_takes_the_arithmetic_of_the_manifest(folder: Path, says: Says) -> None:
    Path("shards.toml").write_text(
        '[models.own]\narithmetic = ["typed", "ane"]\n[models.own.shard.one]\n'
        'artifact = "silu.mlpackage"\nreference = "none"\n'
    )
    assert LABEL in "\n".join(says("blame", "all", "--ane-cache", "cache"))


@pytest.mark.drawn(1)
@pytest.mark.slow
def test_drift_and_bisect_in_the_arithmetic(
    stacks: Stacks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: Says, as_json: AsJson
) -> None:
    monkeypatch.chdir(tmp_path)
    stacks.write(tmp_path / "shards.toml")
    arguments = ["drift", f"--ane-cache={stacks.cache}"]
    typed = as_json(*arguments)
    lines = says(*arguments, "--arithmetic=ane")
    assert lines[1].startswith(f"{LABEL}: multiply-accumulates by rules 100% recorded; operations")
    assert max(map(len, lines[:-2])) <= 80
    ane = as_json(*arguments, "--arithmetic=ane")
    assert (typed["arithmetic"], ane["arithmetic"]) == ("typed", LABEL)
    assert ane["provenance"]["arithmetic"] == LABEL
    assert "unknown" not in ane["rules"]["products"]
    first, *_ = says("bisect", f"--ane-cache={stacks.cache}", "--arithmetic=ane")
    assert first.startswith(f"{LABEL}: multiply-accumulates by rules 100%")
    first, other = (d["shards"][0]["own"]["rest"]["relative_l2"] for d in (ane, typed))
    assert first > other


@pytest.mark.parametrize(
    ("arguments", "sentence"),
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
    folder: Path, says: Says, arguments: list[str], sentence: str
) -> None:
    (line,) = says(*arguments, code=1)
    assert sentence in line


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
