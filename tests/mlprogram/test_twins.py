"""Real models, as packages and as Apple's compiler made them: the same program, the same results.

The folder that PYTEST_ANE_MODELS names holds, at any depth, pairs `packages/<name>.mlpackage` and
`compiled/<name>.mlmodelc`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.parse import parse, write
from pytest_ane.mlprogram.records import MLModel
from tests.mlprogram.same import differences

MODELS = os.environ.get("PYTEST_ANE_MODELS")
PAIRS = [
    (package, twin)
    for twin in sorted(Path(MODELS).rglob("compiled/*.mlmodelc") if MODELS else ())
    if (package := twin.parent.parent / "packages" / f"{twin.stem}.mlpackage").is_dir()
]

pytestmark = pytest.mark.skipif(
    not PAIRS, reason="PYTEST_ANE_MODELS names no folder with packages and their compiled twins"
)


@pytest.mark.parametrize(("package", "twin"), PAIRS, ids=lambda path: path.name)
def test_a_twin_is_the_same_model(package: Path, twin: Path, tmp_path: Path) -> None:
    """What it declares stands in coremldata.bin too; and a program survives its own text."""
    shutil.copytree(twin, bare := tmp_path / twin.name)
    (bare / "metadata.json").unlink()
    a, others = read_model(package), [read_model(path) for path in (twin, bare)]
    for b in others:
        assert differences(a, b) == []
        assert (a.inputs, a.outputs, a.states) == (b.inputs, b.outputs, b.states)
        assert a.specification_version == b.specification_version
        assert a.metadata == b.metadata
    for model in (a, others[0]):
        assert differences(parse(write(model.program)), model.program) == []
    expected, found = results(a), results(others[0])
    assert expected.keys() == found.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])


def results(model: MLModel) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    session = Session(model)
    inputs = {f.name: generator.standard_normal(f.shape).astype(np.float32) for f in model.inputs}
    return session.predict(inputs)
