"""`pytest-ane bound`: of packages, and of a tiny model's manifest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_ane.cli import main
from pytest_ane.make import Cache
from pytest_ane.tools._devices import Device, save_device
from tests.packages import save_conv
from tests.tools.conftest import AsJson
from tests.tools.stacks import Stacks

Run = Callable[..., list[str]]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bound") / "conv.mlpackage"
    save_conv(path)
    return path


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str, status: int = 0) -> list[str]:
        cache = f"--ane-cache={tmp_path / 'cache'}"
        assert main(["bound", cache, *arguments]) == status
        out, err = capsys.readouterr()
        return (err if status else out).splitlines()

    return call


def test_a_package_at_1_and_at_its_largest_t(run: Run, package: Path) -> None:
    found = run(str(package), "--device", "M1")
    assert found[0].startswith("conv.mlpackage on M1: 60.87 GB/s, 11 TFLOP/s")
    assert [line for line in found if line.startswith("T = ")] == ["T = 1", "T = 4"]


def test_another_t_and_what_was_measured(run: Run, package: Path) -> None:
    found = run(str(package), "--tokens", "3", "--measured", "1000", "--measured", "2=5000")
    assert [line for line in found if line.startswith("T = ")] == ["T = 1", "T = 3", "T = 2"]
    shares = [line for line in found if line.startswith("  measured")]
    assert [share.split(",")[0] for share in shares] == [
        "  measured: 1000 tok/s",
        "  measured: 5000 tok/s",
    ]


def test_the_device_s_figures_may_be_replaced(run: Run, package: Path) -> None:
    found = run(str(package), "--bandwidth", "10", "--peak", "2", "--lanes", "1")
    assert found[0] == (
        "conv.mlpackage on M4 Max with another bandwidth, peak, lanes: "
        "10 GB/s, 2 TFLOP/s, ridge 200 FLOP/B"
    )
    row = next(line for line in found if line.startswith("package"))
    # 288 bytes of weights, 16 + 32 of the host, 128 MACs.
    assert row.split()[-4:] == ["0.000", "0.000", "0.000", "bytes"]
    assert float(row.split()[5]) == round(2 * 128 / (288 + 48), 1)


def test_as_json(as_json: AsJson, package: Path, tmp_path: Path) -> None:
    arguments = [str(package), "--device", "M1", f"--cache={tmp_path / 'cache'}"]
    found = as_json("bound", *arguments, "--measured", "2=5000")
    assert found["device"]["name"] == "M1"
    assert found["command"] == "bound"
    assert "model" not in found
    assert [call["tokens"] for call in found["calls"]] == [1, 4, 2]
    assert all(call["rate"] > 0 for call in found["calls"])
    assert found["measured"][0]["tok_s"] == 5000


def test_this_machine_once_it_is_measured(run: Run, package: Path, tmp_path: Path) -> None:
    device = Device(name="this machine", bandwidth=40, peak=0.1, held=4)
    save_device(device, Cache(tmp_path / "cache").root)
    assert "this machine: 40 GB/s" in run(str(package), "--device", "this machine")[0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--device", "M9"], "no such chip; there are: M1,"),
        (["--device", "this machine"], "run: pytest-ane calibrate --device"),
        (["--tokens", "9"], "T is 9, and input 'x' takes 1 to 4"),
        (["--measured", "fast"], "--measured fast: give tokens a second"),
        (["--measured", "0=5"], "--measured 0=5: give tokens a second"),
        (["--measured", "nan"], "--measured nan: give tokens a second"),
        (["--measured", "none.json"], "--measured none.json: cannot be read"),
    ],
)
def test_bad_options_are_one_sentence(
    run: Run, package: Path, arguments: list[str], says: str
) -> None:
    (sentence,) = run(str(package), *arguments, status=1)
    assert sentence.startswith("pytest-ane: ")
    assert says in sentence


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "shards.toml does not exist; name a manifest, an .mlpackage or an .mlmodelc."),
        (["--ane-manifest=shards.toml"], "shards.toml does not exist; name"),
        (["--manifest", "."], ". is a folder; name a manifest"),
        (["a.toml", "--manifest", "b.toml"], "Give a.toml or --manifest b.toml, not both."),
        (["none.mlpackage"], "none.mlpackage"),
    ],
)
def test_what_is_not_there_is_one_sentence(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (sentence,) = run(*arguments, status=1)
    assert says in sentence


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--bandwidth", "x"),
        ("--bandwidth", "-1"),
        ("--bandwidth", "1e-320"),
        ("--peak", "inf"),
        ("--lanes", "1.5"),
        ("--tokens", "0"),
    ],
)
def test_no_number_is_said_in_our_words(
    package: Path, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["bound", str(package), option, value])
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"argument {option}: {value} is no " in said


@pytest.mark.slow
def test_a_manifest_builds_one_of_each_kind(run: Run, stacks: Stacks, tmp_path: Path) -> None:
    manifest, cache = tmp_path / "shards.toml", tmp_path / "cache"
    stacks.write(manifest, spoilt=["L04"])
    found = run(str(manifest), f"--ane-cache={cache}")
    assert found[1] == "counted: L02 for 5 of block, head.1 for 2 of head"
    assert len(list((cache / "artifacts").iterdir())) == 3
    block, head, both = (line.split() for line in found[5:8])
    assert (block[:2], head[:2], both[:2]) == (["block", "6"], ["head", "2"], ["all", "8"])
    # All that is built counts for itself, and nothing more is built.
    assert run(str(manifest), f"--ane-cache={cache}") == found


def test_packages_of_one_s_own_say_which_t_they_take(
    run: Run, package: Path, tmp_path: Path
) -> None:
    manifest = tmp_path / "shards.toml"
    shard = '[models.mine.shard.{}]\nartifact = "{}"\nreference = "none"\n'
    manifest.write_text(shard.format("one", package) + shard.format("two", package))
    found = run(str(manifest))
    assert [line for line in found if line.startswith("T = ")] == ["T = 1", "T = 4"]
    assert [line.split()[:2] for line in found if line.startswith(("one", "two"))] == (
        2 * [["one", "1"], ["two", "1"]]
    )
