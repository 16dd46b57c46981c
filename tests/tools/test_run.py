"""`pytest-ane run`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pytest_ane.cli import main
from tests.mlprogram.packages import Program
from tests.tools.conftest import AsJson

X = np.float32([[1, -2, 3]])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`one`: y = |x|. `two`: y = |x| and z = 2 y. And `x.npy`."""
    for name in ("one", "two"):
        program = Program()
        program.input("x", (1, 3))
        program.op("abs", "y", shape=(1, 3), x="x")
        program.output("y")
        if name == "two":
            program.op("add", "z", shape=(1, 3), x="y", y="y")
            program.output("z")
        program.save(tmp_path / name).rename(tmp_path / f"{name}.mlpackage")
    np.save(tmp_path / "x.npy", X)
    return tmp_path


def test_a_single_output_into_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [f"{folder}/one.mlpackage", "--input", f"x={folder}/x.npy"]
    assert main(["run", *arguments, "--out", f"{folder}/y.npy"]) == 0
    assert np.load(folder / "y.npy").tolist() == [[1, 2, 3]]
    assert capsys.readouterr().out.splitlines() == [
        "y: float32 [1, 3] · 1 to 3 · mean 2",
        "run by pytest-ane's CPU executor (as-typed), not by Core ML",
    ]


def test_as_json(folder: Path, as_json: AsJson) -> None:
    np.save(folder / "x.npy", np.float32([[1, -2, np.inf]]))
    found = as_json("run", f"{folder}/one.mlpackage", "--input", f"x={folder}/x.npy")
    y = {"dtype": "float32", "shape": [1, 3], "size": 3, "not_finite": 1}
    assert found["outputs"] == {"y": y | {"min": 1, "max": 2, "mean": 1.5}}


def test_several_outputs_by_name_and_together(folder: Path) -> None:
    np.savez(folder / "in.npz", x=X)
    arguments = [f"{folder}/two.mlpackage", "--input", f"{folder}/in.npz"]
    targets = ["--out", f"z={folder}/z.npy", "--out", f"{folder}/all.npz"]
    assert main(["run", *arguments, *targets]) == 0
    assert np.load(folder / "z.npy").tolist() == [[2, 4, 6]]
    with np.load(folder / "all.npz") as together:
        assert {k: v.tolist() for k, v in together.items()} == {
            "y": [[1, 2, 3]],
            "z": [[2, 4, 6]],
        }


def test_what_is_not_finite_is_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(folder / "x.npy", np.float32([[1, np.nan, np.inf]]))
    assert main(["run", f"{folder}/one.mlpackage", "--input", f"x={folder}/x.npy"]) == 0
    assert "1 to 1 · mean 1 · 2 of 3 NaN or infinite" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["one.mlpackage"], "input 'x' is missing; it takes fp32 [1, 3]"),
        (["one.mlpackage", "--input", "x=gone.npy"], "gone.npy: cannot be read as arrays"),
        (["one.mlpackage", "--input", "x.npy"], "give NAME=FILE.npy"),
        (
            ["one.mlpackage", "--input", "x=notes.txt"],
            "notes.txt: is no .npy file, and is no picture",
        ),
        (["one.mlpackage", "--input", "x=pickled.npy"], "pickled.npy: cannot be read as arrays"),
        (["two.mlpackage", "--input", "x=x.npy", "--out", "y.npy"], "the model gives y, z; say"),
        (["one.mlpackage", "--input", "x=x.npy", "--out", "q=y.npy"], "no value 'q'; outputs are"),
        (["one.mlpackage", "--input", "x=x.npy", "--out", "no/y.npy"], "no/y.npy: cannot be writ"),
        (["one.mlpackage", "--input", "x=x.npy", "--out", "y=o.txt"], "ending in .npy or .npz"),
        (["one.mlpackage", "--input", "cut.npz"], "cut.npz: cannot be read as arrays"),
        (["one.mlpackage", "--input", "objects.npz"], "objects.npz: cannot be read as arrays"),
        (
            ["one.mlpackage", "--input", "x=x.npy", "--function", "f"],
            "has no function 'f'; it has main",
        ),
    ],
)
def test_bad_input_is_one_sentence(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    (folder / "notes.txt").write_text("no picture")
    np.save(folder / "pickled.npy", np.array([{"a": 1}], object), allow_pickle=True)
    np.savez(folder / "objects.npz", x=np.array([{"a": 1}], object))
    whole = (folder / "objects.npz").read_bytes()
    (folder / "cut.npz").write_bytes(whole[: len(whole) // 2])
    monkeypatch.chdir(folder)
    assert main(["run", *arguments]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("pytest-ane: ")
    assert words in line


@pytest.fixture
def painter(tmp_path: Path) -> Path:
    """`y = x + x` from picture to picture, and a picture of 2 by 3 pixels."""
    program = Program()
    program.input("x", (1, 3, 2, 3))
    program.op("add", "y", shape=(1, 3, 2, 3), x="x", y="x")
    program.output("y")
    for side in (program.model.description.input, program.model.description.output):
        image = side[0].type.imageType
        image.width, image.height, image.colorSpace = 3, 2, 20
    program.save(tmp_path).rename(tmp_path / "painter.mlpackage")
    Image.new("RGB", (3, 2), (100, 50, 200)).save(tmp_path / "x.png")
    return tmp_path


def test_an_image_goes_in_and_comes_out(painter: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [f"{painter}/painter.mlpackage", "--input", f"x={painter}/x.png"]
    targets = ["--out", f"{painter}/y.png", "--out", f"{painter}/y.npy"]
    assert main(["run", *arguments, *targets]) == 0
    assert capsys.readouterr().out.splitlines()[0] == ("y: uint8 [2, 3, 3] · 100 to 255 · mean 185")
    pixels = np.load(painter / "y.npy")
    assert pixels[0, 0].tolist() == [200, 100, 255]
    np.testing.assert_array_equal(np.asarray(Image.open(painter / "y.png")), pixels)


def test_what_is_no_image_is_no_picture(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [f"{folder}/one.mlpackage", "--input", f"x={folder}/x.npy"]
    assert main(["run", *arguments, "--out", f"{folder}/y.png"]) == 1
    assert "y.png: cannot be written (it is no image of 8 bits; write it as .npy)" in (
        capsys.readouterr().err
    )
