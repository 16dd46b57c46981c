"""coremltools' definitions without coremltools, in either order; each order needs a process."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.mlprogram.package import parse_package
from pytest_ane.mlprogram.proto import canonical_bytes, definitions
from tests.fuzz.targets import every_dtype
from tests.mlprogram.packages import doubling

READ = """
from pathlib import Path
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.executor import Session
model = read_model(Path({package!r}))
assert Session(model) is not None
"""
REAL = """
import logging, warnings
logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")
import coremltools as ct
spec = ct.utils.load_spec({package!r})
assert spec.specificationVersion == 9
assert ct.proto.Model_pb2.Model is type(spec)
"""


def run(code: str, package: Path) -> None:
    program = code.format(package=str(package))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_reading_and_preparing_import_neither_coremltools_nor_torch(tmp_path: Path) -> None:
    package = doubling().save(tmp_path)
    absent = "import sys\nassert not {{'coremltools', 'torch'}} & sys.modules.keys()\n"
    run(READ + absent, package)


@pytest.mark.slow
def test_the_real_coremltools_can_be_imported_afterwards(tmp_path: Path) -> None:
    run(READ + REAL + READ, doubling().save(tmp_path))


@pytest.mark.slow
def test_the_real_coremltools_can_have_been_imported_before(tmp_path: Path) -> None:
    run(REAL + READ, doubling().save(tmp_path))


ROOT = Path(__file__).parents[2]
DIGEST = """
import hashlib, pathlib, sys
from google.protobuf.internal import api_implementation
from pytest_ane.mlprogram.package import parse_package
from pytest_ane.mlprogram.proto import canonical_bytes
_, message = parse_package(pathlib.Path(sys.argv[1]))
print(api_implementation.Type(), hashlib.sha256(canonical_bytes(message)).hexdigest())
"""


def model() -> Any:
    return definitions().Model()


def kept(message: Any) -> bool:
    """Whether the bytes are those of an equal message, and of no other length."""
    data = canonical_bytes(message)
    return bool(type(message).FromString(data) == message) and len(data) == message.ByteSize()


def test_maps_are_in_the_order_of_their_keys() -> None:
    message = model().description.metadata
    keys = ["", "B", "a", "a_b", "ab", "b", "é"]
    for key in reversed(keys):
        message.userDefined[key] = "value"
    data = canonical_bytes(message)
    entries = [b"\n" + bytes([len(k.encode())]) + k.encode() + b"\x12\x05value" for k in keys]
    at = [data.index(entry) for entry in entries]
    assert at == sorted(at)
    assert kept(message)


def test_maps_of_integers() -> None:
    classes = definitions().DataStructures__pb2.Int64ToStringMap()
    for key in (7, -1, 0, 300):
        classes.map[key] = str(key)
    data = canonical_bytes(classes)
    at = [data.index(f"\x12{chr(len(text))}{text}".encode()) for text in ("-1", "0", "7", "300")]
    assert at == sorted(at)
    assert kept(classes)
    counts = definitions().DataStructures__pb2.StringToInt64Map()
    counts.map["a"], counts.map["b"] = -5, 0
    assert kept(counts)


def test_a_map_of_floating_point_numbers_is_refused() -> None:
    weights = definitions().DataStructures__pb2.StringToDoubleMap()
    weights.map["a"] = 0.5
    with pytest.raises(TypeError, match="a map of float"):
        canonical_bytes(weights)


def test_nothing_is_lost() -> None:
    assert kept(every_dtype().model)
    assert kept(doubling().model)
    chosen = model()
    chosen.isUpdatable = False  # A default is left out.
    chosen.neuralNetwork.SetInParent()  # A message without fields is not.
    assert canonical_bytes(chosen) == b"\xa2\x1f\x00"


@pytest.mark.parametrize("implementation", ["python", "upb"])
def test_another_implementation_of_protobuf_writes_the_same(
    implementation: str, tmp_path: Path
) -> None:
    path = every_dtype().save(tmp_path)
    _, message = parse_package(path)
    done = subprocess.run(
        [sys.executable, "-c", DIGEST, str(path)],
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    expected = hashlib.sha256(canonical_bytes(message)).hexdigest()
    assert done.stdout.split() == [implementation, expected]
