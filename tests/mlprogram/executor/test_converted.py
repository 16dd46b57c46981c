"""Programs that coremltools converted and compressed, run from disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.model import load, read_model
from pytest_ane.mlprogram.records import Blob, MLModel
from tests.mlprogram.executor.converted import SIZE, Attention, causal

COMPRESSIONS = [
    "palette-2-grouped", "palette-3-grouped", "palette-4-grouped", "palette-4-tensor",
    "palette-6-grouped", "palette-8-tensor", "int4-block", "int8-channel",
]  # fmt: skip


def probe(length: int) -> dict[str, np.ndarray]:
    x = np.random.default_rng(length).standard_normal((1, SIZE, length, 1)).astype(np.float32)
    return {"x": x, "mask": causal(length)}


def weights(model: MLModel) -> dict[str, np.ndarray]:
    """Every dense weight of 1x1 convolutions, by the name it had before compression."""
    session = Session(model)
    names = {op.inputs["weight"][0].name for op in model.program.walk() if op.op == "conv"}
    dense = session.predict(probe(1), outputs=sorted(names))
    return {n.replace("_palettized", "").replace("_quantized", ""): w for n, w in dense.items()}


@pytest.mark.parametrize("length", [1, 5, 8])
@pytest.mark.slow
def test_the_block_computes_what_torch_does(
    packages: dict[str, Path], block: Attention, length: int
) -> None:
    inputs = probe(length)
    with torch.no_grad():
        expected = block(*(torch.from_numpy(a) for a in inputs.values())).numpy()
    session = Session(read_model(packages["fp16"]))
    exact = Session(read_model(packages["fp16"]), precision="float32")
    np.testing.assert_allclose(session.predict(inputs)["y"], expected, atol=2e-2)
    np.testing.assert_allclose(exact.predict(inputs)["y"], expected, atol=4e-3)


@pytest.mark.slow
def test_declared_shapes(packages: dict[str, Path]) -> None:
    x, mask = read_model(packages["fp16"]).inputs
    assert x.ranges == ((1, 1), (SIZE, SIZE), (1, 8), (1, 1))
    assert mask.ranges == ((1, 1), (1, 8), (1, 8))


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_compressed_weights_decode_as_coremltools_decodes_them(
    packages: dict[str, Path], name: str
) -> None:
    ours = weights(read_model(packages[name]))
    theirs = weights(read_model(packages[f"{name}-dense"]))
    assert len(ours) == 7
    assert ours.keys() == theirs.keys()
    for key, expected in theirs.items():
        np.testing.assert_array_equal(ours[key], expected, err_msg=key)


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_compressed_and_decompressed_packages_give_one_output(
    packages: dict[str, Path], name: str
) -> None:
    ours = Session(read_model(packages[name])).predict(probe(3))["y"]
    theirs = Session(read_model(packages[f"{name}-dense"])).predict(probe(3))["y"]
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_compression_is_in_the_file(packages: dict[str, Path], name: str) -> None:
    """The comparison above would pass for packages that were never compressed."""
    model = read_model(packages[name])
    kinds = {op.op for op in model.program.walk() if op.op.startswith("constexpr_")}
    assert len(kinds) == 1
    assert not (kinds & {op.op for op in read_model(packages[f"{name}-dense"]).program.walk()})


def test_every_blob_loads(packages: dict[str, Path]) -> None:
    model = read_model(packages["palette-6-grouped"])
    values = [
        a
        for op in model.program.walk()
        for arguments in op.inputs.values()
        for a in arguments
        if isinstance(getattr(a, "data", None), Blob)
    ]
    assert len(values) >= 14
    assert all(load(model, v).size for v in values)
