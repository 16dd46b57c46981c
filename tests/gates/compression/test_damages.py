"""A package that somebody brought, held row by row to the weights that its family converts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.gates.compression import judge, measure
from pytest_ane.gates.verdict import Verdict
from pytest_ane.make import Artifact
from pytest_ane.manifest import Shard
from pytest_ane.manifest.policy import CompressionPolicy
from pytest_ane.mlprogram.blob import packed
from pytest_ane.mlprogram.model import read_model
from tests.gates.fidelity import blocks
from tests.make.test_distortion import package

Edit = Callable[[dict[str, np.ndarray[Any, Any]]], None]


def edited(source: Path, edit: Edit) -> Path:
    """The package with its constants changed in place: tables, packed indices, a plain weight."""
    model, found = read_model(source), {}
    file = source / "Data/com.apple.CoreML/weights/weight.bin"
    content = bytearray(file.read_bytes())
    for op in model.main.walk():
        if op.op == "const":
            value, name = op.attributes["val"], op.name
        elif op.op == "constexpr_lut_to_dense":
            for key in ("lut", "indices"):
                (argument,) = op.inputs[key]
                found[f"{op.name.removesuffix('_palettized')} {key}"] = packed(model, argument)  # type: ignore[arg-type]
            continue
        else:
            continue
        found[name] = packed(model, value)
    before = {name: np.array(data) for name, data in found.items()}
    after = {
        name: data.copy().view(np.uint8 if name.endswith("indices") else np.float16)
        for name, data in before.items()
    }
    edit(after)
    for name, data in before.items():
        assert content.count(data.tobytes()) == 1, name
        at = content.index(data.tobytes())
        content[at : at + data.nbytes] = after[name].tobytes()
    file.write_bytes(content)
    return source


def zeroed(c: dict[str, Any]) -> None:
    c["first lut"][16:] = 0


def entry(c: dict[str, Any]) -> None:
    c["second lut"][5] = 1.0


def bit(c: dict[str, Any]) -> None:
    c["first indices"][100] ^= 8


def norm(c: dict[str, Any]) -> None:
    c["third"][:32] = 0


def exchanged(c: dict[str, Any]) -> None:
    rows = c["second indices"].reshape(32, -1)
    rows[[2, 3]] = rows[[3, 2]]


def larger(c: dict[str, Any]) -> None:
    for name in ("first lut", "second lut"):
        c[name] *= np.float16(1.02)


def other(c: dict[str, Any]) -> None:
    c["third"][7] += 0.01


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return blocks.plain(tmp_path)


def verdict(path: Path, converted: Path) -> Verdict:
    shard = Shard.model_validate(
        {"model": "m", "id": "L00", "artifact": path, "reference": "float32", "family": "llama"}
    )
    measured = measure(shard, Artifact(path), read_model(path), converted)
    assert measured.against == "family"
    return judge(measured, CompressionPolicy(), shard.qualified, None)


@pytest.mark.parametrize("mode", ["kmeans", "uniform"])
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6, 8])
def test_right_ones(plain: Path, tmp_path: Path, bits: int, mode: str) -> None:
    """Whoever made the tables: what the scheme is, the file tells."""
    small = blocks.palettized(plain, tmp_path / "s", {"first": bits, "second": bits}, mode)
    assert verdict(small, plain).status == "passed"


@pytest.mark.parametrize(("mode", "bits"), [("kmeans", 1), ("kmeans", 2), ("uniform", 8)])
def test_right_ones_of_coremltools(tmp_path: Path, mode: str, bits: int) -> None:
    """Its k-means ends early, and it divides by the step of an even table in fp16."""
    import coremltools as ct
    import coremltools.optimize.coreml as cto
    from coremltools.converters.mil import Builder as mb

    from pytest_ane.make.coremltools_quiet import converter_notes

    values = (np.random.default_rng(6).standard_normal((64, 64)) / 10).astype(np.float16)
    half = ct.converters.mil.mil.types.fp16

    @mb.program(input_specs=[mb.TensorSpec((1, 64), half)], opset_version=ct.target.iOS18)
    def program(x: Any) -> Any:
        return mb.linear(x=x, weight=values)

    settings = cto.OpPalettizerConfig(mode=mode, nbits=bits, weight_threshold=0)
    small, plain = tmp_path / "small.mlpackage", tmp_path / "plain.mlpackage"
    with converter_notes():
        model = ct.convert(program, minimum_deployment_target=ct.target.iOS18, skip_model_load=True)
        model.save(str(plain))
        cto.palettize_weights(model, cto.OptimizationConfig(settings)).save(str(small))
    assert verdict(small, plain).status == "passed"


@pytest.mark.parametrize("edit", [zeroed, entry, bit, norm, exchanged, larger, other])
def test_damaged_ones(plain: Path, tmp_path: Path, edit: Edit) -> None:
    small = blocks.palettized(plain, tmp_path / "small", {"first": 4, "second": 4})
    found = verdict(edited(small, edit), plain)
    assert found.status == "failed"


def test_weights_without_counterparts_are_unproven(plain: Path, tmp_path: Path) -> None:
    another = package(tmp_path / "another", ("w", np.ones((2, 9))))
    found = verdict(blocks.palettized(plain, tmp_path / "small", {"first": 4}), another)
    assert found.status == "unproven"
    assert "have no counterpart in the other" in found.reasons[0].reason
    assert "uncompressed = " in found.reasons[0].remedy
