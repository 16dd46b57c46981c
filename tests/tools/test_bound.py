"""`pytest-ane bound`: of packages, and of a tiny model's manifest."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from pytest_ane.cli import main
from pytest_ane.make import Cache
from pytest_ane.tools._devices import Device, save_device
from tests.packages import save_conv
from tests.tools.conftest import AsJson, Says
from tests.tools.stacks import Stacks


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bound") / "conv.mlpackage"
    save_conv(path)
    return path


@pytest.fixture
def run(tmp_path: Path, says: Says) -> Says:
    return partial(says, "bound", f"--ane-cache={tmp_path / 'cache'}")


def test_a_package_at_1_and_at_its_largest_t(run: Says, package: Path) -> None:
    found = run(str(package), "--device", "M1")
    assert found[0].startswith("conv.mlpackage on M1: 60.87 GB/s, 11 TFLOP/s")
    assert [line for line in found if line.startswith("T = ")] == ["T = 1", "T = 4"]


def test_another_t_and_what_was_measured(run: Says, package: Path) -> None:
    found = run(str(package), "--tokens", "3", "--measured", "1000", "--measured", "2=5000")
    assert [line for line in found if line.startswith("T = ")] == ["T = 1", "T = 3", "T = 2"]
    shares = [line for line in found if line.startswith("  measured")]
    assert [share.split(",")[0] for share in shares] == [
        "  measured: 1000 tok/s",
        "  measured: 5000 tok/s",
    ]


def test_the_device_s_figures_may_be_replaced(run: Says, package: Path) -> None:
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


def test_this_machine_once_it_is_measured(run: Says, package: Path, tmp_path: Path) -> None:
    device = Device(name="this machine", bandwidth=40, peak=0.1, held=4)
    save_device(device, Cache(tmp_path / "cache").root)
    assert "this machine: 40 GB/s" in run(str(package), "--device", "this machine")[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["conv", "--device", "M9"], "no such chip; there are: M1,"),
        (["conv", "--device", "this machine"], "run: pytest-ane calibrate --device"),
        (["conv", "--tokens", "9"], "T is 9, and input 'x' takes 1 to 4"),
        *((["conv", "--measured", x], f"--measured {x}: give tokens a second")
          for x in ("fast", "0=5", "nan")),
        (["conv", "--measured", "none.json"], "--measured none.json: cannot be read"),
        ([], "shards.toml does not exist; name a manifest, an .mlpackage or an .mlmodelc."),
        (["--manifest", "."], ". is a folder; name a manifest"),
        (["a.toml", "--manifest", "b.toml"], "Give a.toml or --manifest b.toml, not both."),
        (["none.mlpackage"], "none.mlpackage"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(
    run: Says,
    package: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (sentence,) = run(*(package if word == "conv" else word for word in arguments), code=1)
    assert sentence.startswith("pytest-ane: ")
    assert said in sentence


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
def test_a_manifest_builds_one_of_each_kind(run: Says, stacks: Stacks, tmp_path: Path) -> None:
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
    run: Says, package: Path, tmp_path: Path
) -> None:
    manifest = tmp_path / "shards.toml"
    shard = '[models.mine.shard.{}]\nartifact = "{}"\nreference = "none"\n'
    manifest.write_text(shard.format("one", package) + shard.format("two", package))
    found = run(str(manifest))
    assert [line for line in found if line.startswith("T = ")] == ["T = 1", "T = 4"]
    assert [line.split()[:2] for line in found if line.startswith(("one", "two"))] == (
        2 * [["one", "1"], ["two", "1"]]
    )
