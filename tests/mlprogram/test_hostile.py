"""Files made to hurt: a model, or one sentence that begins with the file it is about."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_ane.make.shard import canonicalize
from pytest_ane.mlprogram import blob
from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.model import read_model
from tests.mlprogram import compiled
from tests.mlprogram.packages import (
    CODES,
    SENTINEL,
    Program,
    doubling,
    model_file,
    set_type,
    weight_file,
)

EDGES = [0, 1, 31, 32, 33, 63, 64, 65, 128, 192, 256, 2**31, 2**32, 2**62, 2**63, 2**64 - 64]
UINT64 = st.sampled_from(EDGES) | st.integers(0, 2**64 - 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all examples of a test: each replaces the files of the one before."""
    made = tmp_path_factory.mktemp("hostile")
    compiled.save(doubling(), made)
    return made


def package(folder: Path, program: Program) -> Path:
    """A model in place of the one before it."""
    path = folder / "model.mlpackage"
    put(model_file(path), program.model.SerializeToString())
    put(weight_file(path), program.weights.to_bytes())
    return path


def put(file: Path, data: bytes) -> None:
    """A new file of its own: one that is mapped must not shrink."""
    fresh = file.with_name("fresh")
    fresh.write_bytes(data)
    fresh.replace(file)
    blob._map.cache_clear()


def sentence(path: Path, *, weights: bool = True) -> str:
    """What is said about a model; empty if it is read."""
    try:
        read_model(path, weights=weights)
    except ProgramError as error:
        text = str(error)
        assert text.startswith(str(path))
        assert text.isprintable()
        assert text.endswith((".", "git lfs pull", "cp -RL PACKAGE COPY"))
        assert len(text) <= 1003
        return text.removeprefix(str(path))
    return ""


@given(UINT64, UINT64, UINT64, st.sampled_from([SENTINEL, 0, SENTINEL + 1]), st.integers(0, 16))
@example(64, 128, 4, SENTINEL, 1)
@example(64, 0, 4, SENTINEL, 1)
@example(0, 128, 4, SENTINEL, 1)
@example(192, 128, 4, SENTINEL, 1)
def test_a_blob_is_read_only_if_it_is_whole(
    folder: Path, at: int, start: int, size: int, sentinel: int, code: int
) -> None:
    program = Program()
    program.blob("w", "FLOAT16", (2,), b"abcd", offset=at, code=code, sentinel=sentinel,
                 start=start, size=size)  # fmt: skip
    whole = (
        at == 64 and start in (0, 64, 128) and size == 4 and code == CODES["FLOAT16"]
        and sentinel == SENTINEL
    )  # fmt: skip
    text = sentence(package(folder, program))
    assert (text == "") is whole
    assert whole or "weight.bin" in text


@given(st.lists(st.integers(0, 9) | UINT64, max_size=40))
@example([2**24, 2**24])
@example([2**24, 2**24 + 1])
@example([2**48, 0])
@example([2**63, 2, 0])
@example([1] * 33)
def test_shapes_are_as_large_as_memory_might_be(folder: Path, shape: list[int]) -> None:
    program = doubling()
    program.op("abs", "z", shape=tuple(shape), x="x")
    fits = len(shape) <= 32 and math.prod(d or 1 for d in shape) <= 2**48
    assert (sentence(package(folder, program)) == "") is fits


def lists(kind: Any) -> Any:
    return kind.listType.type


def tuples(kind: Any) -> Any:
    return kind.tupleType.types.add()


def dictionaries(kind: Any) -> Any:
    set_type(kind.dictionaryType.keyType, "STRING", ())
    return kind.dictionaryType.valueType


@pytest.mark.parametrize("step", [lists, tuples, dictionaries])
@pytest.mark.parametrize("depth", [1, 31, 32, 33, 40, 80, 200])
def test_types_nest_no_deeper_than_32(folder: Path, step: Callable[[Any], Any], depth: int) -> None:
    program = doubling()
    kind = program.op("make", "z").outputs[0].type
    kind.Clear()
    for _ in range(depth):
        kind = step(kind)
    set_type(kind, "FLOAT16", (2,))
    text = sentence(package(folder, program))
    assert (text == "") is (depth <= 32)
    assert depth <= 32 or "types nest deeper than 32" in text or "cannot be parsed" in text


NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8)


@settings(max_examples=30)
@given(NAMES, st.integers(1, 2000))
@example("\x1b[2J\n", 1)
@example("\u202e", 3)
@example("a", 200_000)
def test_names_of_any_letters_and_length(folder: Path, name: str, times: int) -> None:
    """They are read as they are; what is said of them stays one sentence."""
    program = doubling()
    program.op("abs", name * times, shape=(2, 3), x="x")
    sound = sentence(package(folder, program))
    assert sound == "" or "is defined twice" in sound
    for kind, other in (("abs", name * times), (name * times, "z")):
        broken = doubling()
        broken.op(kind, other, shape=(2, 3), x="nowhere")
        assert sentence(package(folder, broken)).startswith("/Data/com.apple.CoreML/model.mlmodel")


PARTS = ["weight.bin", "link", "..", ".", "", "a", "C:", "\0", "\n", "é", "x" * 300, "~"]


@given(st.lists(st.sampled_from(PARTS), max_size=5), st.sampled_from("/\\"), st.booleans())
@example(["..", "weights", "weight.bin"], "/", True)
@example([".", "weight.bin"], "/", True)
def test_weights_lie_in_their_folder(
    folder: Path, parts: list[str], separator: str, prefix: bool
) -> None:
    """Those outside are not read even where they exist: `..` may lead back in."""
    path = separator.join(parts)
    file = f"@model_path/weights/{path}" if prefix else path
    program = doubling()
    program.blob("c", "FLOAT16", (2,), bytes(4), file=file)
    text = sentence(package(folder, program))
    sound = prefix and path in ("weight.bin", "./weight.bin", "././weight.bin")
    assert not (sound and text), text
    if text == "":
        resolved = (weight_file(folder / "model.mlpackage").parent / path).resolve()
        assert resolved == weight_file(folder / "model.mlpackage").resolve()
        assert ".." not in parts


@pytest.mark.parametrize("inside", [True, False])
def test_links_within_a_package_lead_anywhere_inside(tmp_path: Path, inside: bool) -> None:
    for number, where in enumerate(
        [lambda p: p / "Manifest.json", model_file, weight_file, lambda p: weight_file(p).parent]
    ):
        path = doubling().save(tmp_path / str(number))
        elsewhere = (path if inside else path.parent) / "elsewhere"
        where(path).rename(elsewhere)
        where(path).symlink_to(elsewhere)
        assert ("outside of its package" in sentence(path)) is not inside


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
@pytest.mark.parametrize("what", ["itself", "device", "pipe"])
def test_links_in_a_circle_pipes_and_devices_are_not_read(tmp_path: Path, what: str) -> None:
    """Reading them would never end."""
    for number, where in enumerate([model_file, weight_file, lambda p: p / "Manifest.json"]):
        path = doubling().save(tmp_path / str(number))
        where(path).unlink()
        if what == "pipe":
            os.mkfifo(where(path))
        else:
            where(path).symlink_to("/dev/zero" if what == "device" else where(path))
        said = sentence(path)
        assert said
    pipe = "/Manifest.json: cannot be read (it is no regular file)."
    assert (said == pipe) or what != "pipe"


@pytest.mark.parametrize("root", ["x" * 300, "x/" * 3000, "\ud800", "a\nb", "\x1b[2J", "é"])
def test_a_manifest_that_names_what_no_file_is_called(tmp_path: Path, root: str) -> None:
    path = doubling().save(tmp_path)
    manifest = {"itemInfoEntries": {"A": {"path": root}}, "rootModelIdentifier": "A"}
    (path / "Manifest.json").write_text(json.dumps(manifest))
    assert "missing" in sentence(path) or "cannot be read (File name too long)" in sentence(path)


def small_files(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Each small file of a package and of a compiled model, with its model."""
    path, twin = folder / "model.mlpackage", folder / "model.mlmodelc"
    for file in (path / "Manifest.json", weight_file(path)):
        yield path, file
    for name in ("model.mil", "metadata.json", "weights/weight.bin"):
        yield twin, twin / name


@pytest.mark.drawn
@pytest.mark.slow
def test_every_file_cut_short_at_every_length(tmp_path: Path) -> None:
    compiled.save(doubling(), tmp_path)
    for path, file in small_files(tmp_path):
        whole = file.read_bytes()
        padding = len(whole) - 136 if file.name == "weight.bin" else 0
        # What follows the last bracket or semicolon may be missing.
        spare = padding or len(whole) - len(whole.rstrip(b"\n;}")) + 1
        for size in range(len(whole)):
            put(file, whole[:size])
            text = sentence(path)
            assert text or size >= len(whole) - spare, (file.name, size)
        put(file, whole)


@pytest.mark.slow
def test_every_bit_of_every_small_file_flipped(tmp_path: Path) -> None:
    compiled.save(doubling(), tmp_path)
    package = tmp_path / "model.mlpackage"
    for path, file in (*small_files(tmp_path), (package, model_file(package))):
        whole = bytearray(file.read_bytes())
        for at in range(len(whole)):
            bit = 1 << at * 5 % 8
            whole[at] ^= bit
            put(file, whole)
            sentence(path)
            whole[at] ^= bit
        put(file, whole)
        assert sentence(path) == ""


@settings(max_examples=40)
@given(st.binary(max_size=300))
def test_random_bytes_in_place_of_each_file(folder: Path, data: bytes) -> None:
    for path, file in (*small_files(folder),):
        whole = file.read_bytes()
        put(file, data)
        assert sentence(path)
        put(file, whole)


JSON = [10**400, -1, 0, 1.5, True, None, "", "x", ".", "..", "/", [], [[]], {}, {"path": 3}]


@pytest.mark.parametrize("value", JSON, ids=repr)
def test_a_manifest_of_wrong_types(tmp_path: Path, value: Any) -> None:
    path = doubling().save(tmp_path)
    sound = json.loads((path / "Manifest.json").read_text())
    root = sound["rootModelIdentifier"]
    for manifest in (
        value,
        sound | {"itemInfoEntries": value},
        sound | {"rootModelIdentifier": value},
        sound | {"itemInfoEntries": {root: value}},
        sound | {"itemInfoEntries": {root: {"path": value}}},
    ):
        (path / "Manifest.json").write_text(json.dumps(manifest))
        assert sentence(path)
        with pytest.raises(ProgramError):
            canonicalize(path)
    others = sound["itemInfoEntries"] | {"other": value}
    (path / "Manifest.json").write_text(json.dumps(sound | {"itemInfoEntries": others}))
    assert sentence(path) == ""
    with pytest.raises(ProgramError, match="damaged"):
        canonicalize(path)
