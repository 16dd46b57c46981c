"""Protobuf messages, and programs read from them."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.package import parse_package
from pytest_ane.mlprogram.proto import canonical_bytes, definitions
from pytest_ane.mlprogram.records import (
    DictionaryType,
    DType,
    ListType,
    Ref,
    StateType,
    TensorType,
    TupleType,
)
from tests.fuzz.targets import every_dtype
from tests.mlprogram.packages import Program, doubling, set_type

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
@pytest.mark.parametrize("code", [READ + REAL + READ, REAL + READ])
def test_the_real_coremltools_can_be_imported_before_and_afterwards(
    tmp_path: Path, code: str
) -> None:
    run(code, doubling().save(tmp_path))


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
    """Whether the bytes are those of an equal message, and no longer."""
    data = canonical_bytes(message)
    return bool(type(message).FromString(data) == message) and len(data) <= message.ByteSize()


def test_maps_are_in_the_order_of_their_keys() -> None:
    message = model().description.metadata
    keys = ["B", "a", "a_b", "ab", "b", "é"]
    for key in reversed(keys):
        message.userDefined[key] = "value"
    data = canonical_bytes(message)
    entries = [b"\n" + bytes([len(k.encode())]) + k.encode() + b"\x12\x05value" for k in keys]
    at = [data.index(entry) for entry in entries]
    assert at == sorted(at)
    assert kept(message)
    classes = definitions().DataStructures__pb2.Int64ToStringMap()
    for key in (7, -1, 0, 300):
        classes.map[key] = str(key)
    data = canonical_bytes(classes)
    at = [data.index(f"\x12{chr(len(text))}{text}".encode()) for text in ("-1", "0", "7", "300")]
    assert at == sorted(at)
    assert kept(classes)
    counts = definitions().DataStructures__pb2.StringToInt64Map()
    counts.map["a"], counts.map["b"], counts.map[""] = -5, 0, 7
    assert kept(counts)
    weights = definitions().DataStructures__pb2.StringToDoubleMap()
    weights.map["b"], weights.map["a"] = 0.5, 0.0
    assert kept(weights)


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


def test_operations(tmp_path: Path) -> None:
    const, add = read_model(doubling().save(tmp_path)).program.walk()
    assert add.op == "add"
    assert add.name == "y"
    assert add.inputs == {"x": (Ref("x"),), "y": (Ref("x"),)}
    assert add.outputs[0].type == TensorType(DType.FP32, (2, 3))
    assert const.attributes["val"].type == TensorType(DType.FP16, (4,))
    program = doubling()
    program.block.operations[-1].type = "ios18.add"
    assert list(read_model(program.save(tmp_path / "ios18")).program.walk())[-1].op == "add"
    program = doubling()
    program.op("abs", "z", shape=(None, 3), x="x")
    kind = list(read_model(program.save(tmp_path / "open")).program.walk())[-1].outputs[0].type
    assert str(kind) == "fp32[?,3]"


def test_inputs_and_attributes_are_in_one_order_in_every_process(tmp_path: Path) -> None:
    """As text and in digests; protobuf's maps are in another order in each process."""
    program = doubling()
    names = [f"n{i}" for i in range(20)]
    operation = program.block.operations[-1]
    for name in reversed(names):
        operation.inputs[name].CopyFrom(operation.inputs["x"])
        operation.attributes[name].CopyFrom(program.block.operations[0].attributes["val"])
    *_, add = read_model(program.save(tmp_path)).program.walk()
    assert list(add.inputs) == sorted([*names, "x", "y"])
    assert list(add.attributes) == sorted(add.attributes)
    assert add.attributes.keys() >= {*names}


def test_the_block_of_the_functions_own_opset(tmp_path: Path) -> None:
    program = doubling()
    program.function.block_specializations["CoreML5"].operations.add().type = "other"
    function = read_model(program.save(tmp_path)).program.main
    assert function.opset == "CoreML8"
    assert [op.op for op in function.walk()] == ["const", "add"]


def test_types_of_every_kind(tmp_path: Path) -> None:
    program = doubling()
    op = program.op("make", "state")
    op.outputs[0].type.Clear()
    set_type(op.outputs[0].type.stateType.wrappedType, "FLOAT16", (2,))
    listed = op.outputs.add()
    listed.name = "list"
    set_type(listed.type.listType.type, "INT32", ())
    listed.type.listType.length.constant.size = 4
    pair = op.outputs.add()
    pair.name = "tuple"
    for _ in range(2):
        set_type(pair.type.tupleType.types.add(), "BOOL", ())
    table = op.outputs.add()
    table.name = "dictionary"
    set_type(table.type.dictionaryType.keyType, "STRING", ())
    set_type(table.type.dictionaryType.valueType, "FLOAT64", ())
    kinds = [o.type for o in list(read_model(program.save(tmp_path)).program.walk())[-1].outputs]
    boolean = TensorType(DType.BOOL)
    assert kinds == [
        StateType(TensorType(DType.FP16, (2,))),
        ListType(TensorType(DType.INT32), 4),
        TupleType((boolean, boolean)),
        DictionaryType(TensorType(DType.STRING), TensorType(DType.FP64)),
    ]


def too_deep(program: Program) -> None:
    block = program.block
    for _ in range(40):
        operation = block.operations.add()
        operation.type = "cond"
        block = operation.blocks.add()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda p: p.op("abs", "z", x="nowhere"),
         "function 'main', abs 'z': its input 'nowhere' is not defined before it."),
        (lambda p: [p.op("abs", "z", x="later"), p.op("abs", "later", x="x")],
         "its input 'later' is not defined before it."),
        (lambda p: p.op("abs", "z", x="z"), "its input 'z' is not defined before it."),
        (lambda p: p.op("abs", "y", x="x"), "function 'main', abs 'y': 'y' is defined twice."),
        (lambda p: p.function.inputs.add().CopyFrom(p.function.inputs[0]),
         "function 'main': 'x' is defined twice."),
        (lambda p: p.block.outputs.append("nowhere"),
         "function 'main': its output 'nowhere' is not defined."),
        (lambda p: p.feature(p.model.description.input, "q", 65568, (1,)),
         "the model declares the input 'q', which its program does not have."),
        (lambda p: p.feature(p.model.description.output, "q", 65568),
         "the model declares the output 'q', which its program does not have."),
        (lambda p: p.model.mlProgram.functions.clear(), "the program has no function."),
        (lambda p: setattr(p.function, "opset", "CoreML9"),
         "has no block for its opset 'CoreML9'."),
        *((lambda p, shape=shape: p.op("abs", "z", shape=shape, x="x"),
           f"shape {shape} has more elements than fit anywhere.")
          for shape in [(2**40, 2**40), (2**63, 2), (2**49,)]),
        (lambda p: p.op("abs", "z", shape=(1,) * 33, x="x"),
         "a shape has 33 dimensions, more than any tensor."),
        (lambda p: setattr(p.op("abs", "z", x="x").outputs[0].type.tensorType, "dataType", 77),
         "element type ? (77) is not known."),
        (lambda p: p.op("abs", "z", x="x").outputs[0].type.Clear(), "a value has no known type."),
        (lambda p: setattr(p.op("abs", "z", shape=(2,)).outputs[0].type.tensorType, "rank", 7),
         "a type of rank 7 lists 1 dimensions."),
        (too_deep, "."),
        (lambda p: p.op("const", "c"), "const 'c': a constant holds no value."),
        (lambda p: p.const("c", 1.0, "FLOAT32").outputs.pop(),
         "const 'const': a constant has 0 results."),
    ],
)  # fmt: skip
def test_what_is_wrong_and_where(
    tmp_path: Path, change: Callable[[Program], object], sentence: str
) -> None:
    program = doubling()
    change(program)
    with pytest.raises(ProgramError) as caught:
        read_model(program.save(tmp_path))
    text = str(caught.value)
    assert "\n" not in text
    assert "model.mlmodel" in text
    assert text.endswith(sentence)
