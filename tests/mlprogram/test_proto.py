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


def complaint(tmp_path: Path, change: Callable[[Program], object]) -> str:
    program = doubling()
    change(program)
    with pytest.raises(ProgramError) as caught:
        read_model(program.save(tmp_path))
    text = str(caught.value)
    assert "\n" not in text
    assert "model.mlmodel" in text
    return text


def test_an_operation(tmp_path: Path) -> None:
    const, add = read_model(doubling().save(tmp_path)).program.walk()
    assert add.op == "add"
    assert add.name == "y"
    assert add.inputs == {"x": (Ref("x"),), "y": (Ref("x"),)}
    assert add.outputs[0].type == TensorType(DType.FP32, (2, 3))
    assert const.attributes["val"].type == TensorType(DType.FP16, (4,))


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


def test_the_prefix_of_an_opset_is_no_part_of_the_name(tmp_path: Path) -> None:
    program = doubling()
    program.block.operations[-1].type = "ios18.add"
    assert list(read_model(program.save(tmp_path)).program.walk())[-1].op == "add"


def test_an_open_dimension(tmp_path: Path) -> None:
    program = doubling()
    program.op("abs", "z", shape=(None, 3), x="x")
    kind = list(read_model(program.save(tmp_path)).program.walk())[-1].outputs[0].type
    assert str(kind) == "fp32[?,3]"


def test_the_block_of_the_functions_own_opset(tmp_path: Path) -> None:
    program = doubling()
    program.function.block_specializations["CoreML5"].operations.add().type = "other"
    function = read_model(program.save(tmp_path)).program.main
    assert function.opset == "CoreML8"
    assert [op.op for op in function.walk()] == ["const", "add"]


def test_nested_blocks_see_the_names_around_them(tmp_path: Path) -> None:
    program = doubling()
    cond = program.op("cond", "z", shape=(2, 3), pred="x")
    block = cond.blocks.add()
    block.outputs.append("x")
    nested = list(read_model(program.save(tmp_path)).program.walk())[-1].blocks
    assert nested[0].outputs == ("x",)


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


def test_an_undefined_input(tmp_path: Path) -> None:
    text = complaint(tmp_path, lambda p: p.op("abs", "z", x="nowhere"))
    assert text.endswith("function 'main', abs 'z': its input 'nowhere' is not defined before it.")


def test_a_value_used_before_it_is_defined(tmp_path: Path) -> None:
    def change(program: Program) -> None:
        program.op("abs", "z", x="later")
        program.op("abs", "later", x="x")

    assert "its input 'later' is not defined before it" in complaint(tmp_path, change)


def test_a_cycle(tmp_path: Path) -> None:
    text = complaint(tmp_path, lambda p: p.op("abs", "z", x="z"))
    assert "its input 'z' is not defined before it" in text


def test_a_name_defined_twice(tmp_path: Path) -> None:
    assert complaint(tmp_path, lambda p: p.op("abs", "y", x="x")).endswith(
        "function 'main', abs 'y': 'y' is defined twice."
    )


def test_an_input_declared_twice(tmp_path: Path) -> None:
    text = complaint(tmp_path, lambda p: p.function.inputs.add().CopyFrom(p.function.inputs[0]))
    assert text.endswith("function 'main': 'x' is defined twice.")


def test_an_undefined_output(tmp_path: Path) -> None:
    text = complaint(tmp_path, lambda p: p.block.outputs.append("nowhere"))
    assert text.endswith("function 'main': its output 'nowhere' is not defined.")


def test_a_declared_input_the_program_lacks(tmp_path: Path) -> None:
    text = complaint(tmp_path, lambda p: p.feature(p.model.description.input, "q", 65568, (1,)))
    assert text.endswith("the model declares the input 'q', which its program does not have.")


def test_a_declared_output_the_program_lacks(tmp_path: Path) -> None:
    text = complaint(tmp_path, lambda p: p.feature(p.model.description.output, "q", 65568))
    assert text.endswith("the model declares the output 'q', which its program does not have.")


def test_no_function(tmp_path: Path) -> None:
    text = complaint(tmp_path, lambda p: p.model.mlProgram.functions.clear())
    assert text.endswith("the program has no function.")


def test_no_block_for_the_opset(tmp_path: Path) -> None:
    def change(program: Program) -> None:
        program.function.opset = "CoreML9"

    assert complaint(tmp_path, change).endswith("has no block for its opset 'CoreML9'.")


@pytest.mark.parametrize("shape", [(2**40, 2**40), (2**63, 2), (2**49,)])
def test_a_shape_that_overflows(tmp_path: Path, shape: tuple[int, ...]) -> None:
    text = complaint(tmp_path, lambda p: p.op("abs", "z", shape=shape, x="x"))
    assert "has more elements than fit anywhere" in text


def test_an_element_type_nobody_defined(tmp_path: Path) -> None:
    def change(program: Program) -> None:
        program.op("abs", "z", x="x").outputs[0].type.tensorType.dataType = 77

    assert complaint(tmp_path, change).endswith("element type ? (77) is not known.")


def test_a_value_without_a_type(tmp_path: Path) -> None:
    text = complaint(tmp_path, lambda p: p.op("abs", "z", x="x").outputs[0].type.Clear())
    assert text.endswith("a value has no known type.")


def test_a_rank_that_is_not_the_number_of_dimensions(tmp_path: Path) -> None:
    def change(program: Program) -> None:
        program.op("abs", "z", x="x", shape=(2, 3)).outputs[0].type.tensorType.rank = 7

    assert complaint(tmp_path, change).endswith("a type of rank 7 lists 2 dimensions.")


@pytest.mark.parametrize("depth", [40, 49])
def test_blocks_nested_too_deep(tmp_path: Path, depth: int) -> None:
    def change(program: Program) -> None:
        block = program.block
        for _ in range(depth):
            operation = block.operations.add()
            operation.type = "cond"
            block = operation.blocks.add()

    assert complaint(tmp_path, change)


def test_a_const_without_a_value(tmp_path: Path) -> None:
    text = complaint(tmp_path, lambda p: p.op("const", "c"))
    assert text.endswith("const 'c': a constant holds no value.")


def test_a_const_without_a_result(tmp_path: Path) -> None:
    def change(program: Program) -> None:
        program.const("c", 1.0, "FLOAT32").outputs.pop()

    assert complaint(tmp_path, change).endswith("const 'const': a constant has 0 results.")
