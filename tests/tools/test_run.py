"""`pytest-ane run`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.mlprogram.packages import Program
from tests.tools.conftest import AsJson, Says

X = np.float32([[1, -2, 3]])
ONE = ("run", "one.mlpackage", "--input", "x=x.npy")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_shard_of_the_manifest_stands_for_its_package(folder: Path, says: Says) -> None:
    """As in explain and diff; a line says where it lies."""
    for name in ("one", "two"):
        (folder / name).rmdir()
    table = '[models.m.shard."{0}"]\nartifact = "{0}.mlpackage"\nreference = "none"\n'
    Path("shards.toml").write_text(table.format("one") + table.format("two"))
    where = [f"{name}: {folder / name}.mlpackage" for name in ("one", "two")]
    assert says("run", "one", "--input", "x=x.npy")[0] == where[0]
    assert says("explain", "m:two")[0] == f"m:two: {folder / 'two.mlpackage'}"
    assert says("diff", "one", "two", "--input", "x=x.npy")[:2] == where
    (line,) = says("run", "*", code=1)
    assert line == "pytest-ane: * names 2 shards; name one, such as m:one."
    assert "three" in says("run", "three", code=1)[-1]
    Path("shards.toml").rename("other.toml")
    assert says("explain", "two", "--manifest=other.toml")[0] == where[1]
    assert "two" in says("explain", "two", code=1)[-1]


def test_a_single_output_into_a_file(folder: Path, says: Says) -> None:
    assert says(*ONE, "--out", "y.npy") == [
        "y: float32 [1, 3] · 1 to 3 · mean 2",
        "run by pytest-ane's CPU executor (as-typed), not by Core ML",
    ]
    assert np.load("y.npy").tolist() == [[1, 2, 3]]


def test_what_is_not_finite_is_counted(folder: Path, says: Says, as_json: AsJson) -> None:
    np.save("x.npy", np.float32([[1, np.nan, np.inf]]))
    assert says(*ONE)[0].endswith("1 to 1 · mean 1 · 2 of 3 NaN or infinite")
    np.save("x.npy", np.float32([[1, -2, np.inf]]))
    y = {"dtype": "float32", "shape": [1, 3], "size": 3, "not_finite": 1}
    assert as_json(*ONE)["outputs"] == {"y": y | {"min": 1, "max": 2, "mean": 1.5}}


def test_several_outputs_by_name_and_together(folder: Path, says: Says) -> None:
    np.savez("in.npz", x=X)
    says("run", "two.mlpackage", "--input", "in.npz", "--out", "z=z.npy", "--out", "all.npz")
    assert np.load("z.npy").tolist() == [[2, 4, 6]]
    with np.load("all.npz") as together:
        found = {name: array.tolist() for name, array in together.items()}
    assert found == {"y": [[1, 2, 3]], "z": [[2, 4, 6]]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["one", ""], "input 'x' is missing; it takes fp32 [1, 3]"),
        (["one", "x=gone.npy"], "gone.npy: cannot be read as arrays"),
        (["one", "x.npy"], "give NAME=FILE.npy"),
        (["one", "x=notes.txt"], "notes.txt: is no .npy file, and is no picture"),
        (["one", "x=pickled.npy"], "pickled.npy: cannot be read as arrays"),
        (["one", "cut.npz"], "cut.npz: cannot be read as arrays"),
        (["one", "objects.npz"], "objects.npz: cannot be read as arrays"),
        (["two", "x=x.npy", "--out", "y.npy"], "the model gives y, z; say"),
        (["one", "x=x.npy", "--out", "q=y.npy"], "no value 'q'; outputs are"),
        (["one", "x=x.npy", "--out", "no/y.npy"], "no/y.npy: cannot be writ"),
        (["one", "x=x.npy", "--out", "y=o.txt"], "ending in .npy or .npz"),
        (["one", "x=x.npy", "--out", "y.png"],
         "y.png: cannot be written (it is no image of 8 bits; write it as .npy)"),
        (["one", "x=x.npy", "--function", "f"], "has no function 'f'; it has main"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(
    folder: Path, says: Says, arguments: list[str], words: str
) -> None:
    Path("notes.txt").write_text("no picture")
    np.save("pickled.npy", np.array([{"a": 1}], object), allow_pickle=True)
    np.savez("objects.npz", x=np.array([{"a": 1}], object))
    whole = Path("objects.npz").read_bytes()
    Path("cut.npz").write_bytes(whole[: len(whole) // 2])
    name, given, *more = arguments
    (line,) = says(
        "run", f"{name}.mlpackage", *(["--input", given] if given else []), *more, code=1
    )
    assert line.startswith("pytest-ane: ")
    assert words in line


def test_an_image_goes_in_and_comes_out(folder: Path, says: Says) -> None:
    """`y = x + x` from picture to picture of 2 by 3 pixels."""
    program = Program()
    program.input("x", (1, 3, 2, 3))
    program.op("add", "y", shape=(1, 3, 2, 3), x="x", y="x")
    program.output("y")
    for side in (program.model.description.input, program.model.description.output):
        image = side[0].type.imageType
        image.width, image.height, image.colorSpace = 3, 2, 20
    painter = program.save(folder / "painter")
    Image.new("RGB", (3, 2), (100, 50, 200)).save("x.png")
    first, *_ = says("run", painter, "--input", "x=x.png", "--out", "y.png", "--out", "y.npy")
    assert first == "y: uint8 [2, 3, 3] · 100 to 255 · mean 185"
    pixels = np.load("y.npy")
    assert pixels[0, 0].tolist() == [200, 100, 255]
    np.testing.assert_array_equal(np.asarray(Image.open("y.png")), pixels)
