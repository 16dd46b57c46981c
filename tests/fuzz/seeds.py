"""`python -m tests.fuzz.seeds`: writes the seeds of the corpus anew.

Small models that hand-written programs and coremltools give, so that mutations begin deep within.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import coremltools as ct
import numpy as np
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types

from pytest_ane.mlprogram.compiled import write_compiled
from pytest_ane.mlprogram.model import read_model
from tests.fuzz.programs import single
from tests.fuzz.targets import every_dtype
from tests.mlprogram.packages import Program, doubling, model_file, set_type, weight_file
from tests.mlprogram.pipelines import three
from tests.mlprogram.test_parse import FULL

_CORPUS = Path(__file__).parent / "corpus"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("conv", "gather", "max_pool", "pad", "resize", "slice_by_index", "tile"):
            _write("run", f"{name}.mlmodel", single(name, False).model.SerializeToString())
        packages = dict(_packages(Path(folder)))
        pipeline = three().save(Path(folder) / "pipeline")
        _write("package", "pipeline.mlmodel", model_file(pipeline).read_bytes())
        for name, package in packages.items():
            _write("package", f"{name}.mlmodel", model_file(package).read_bytes())
            twin = Path(folder) / f"{name}.mlmodelc"
            write_compiled(read_model(package, weights=False), twin)
            _write("text", f"{name}.mil", (twin / "model.mil").read_bytes())
            _write("metadata", f"{name}.json", (twin / "metadata.json").read_bytes())
        _write("text", "full.mil", FULL.encode())
        _write("weights", "every.bin", weight_file(packages["every"]).read_bytes())
        manifest = (packages["every"] / "Manifest.json").read_bytes()
        _write("metadata", "manifest.json", manifest)
    image = {"name": "x", "type": "Image", "height": "2", "width": "4"}
    ranges = {"shapeRange": "[[1, 1], [1, -1]]", "enumeratedShapes": "[[1, 1], [1, 64]]"}
    array = {"name": "x", "type": "MultiArray", "dataType": "Float16", "shape": "[1, 1]"}
    tables = [{"name": "main", "inputSchema": [image, array | ranges]}]
    _write("metadata", "functions.json", json.dumps([{"functions": tables}]).encode())


def _write(target: str, name: str, data: bytes) -> None:
    (_CORPUS / target).mkdir(parents=True, exist_ok=True)
    (_CORPUS / target / name).write_bytes(data)


def _packages(folder: Path) -> Any:
    for name, program in (("every", every_dtype()), ("kinds", _kinds()), ("image", _image())):
        yield name, program.save(folder / name)
    for name, program in (("loop", _loop()), ("state", _state())):
        path = folder / f"{name}.mlpackage"
        ct.convert(program, convert_to="mlprogram", skip_model_load=True,
                   minimum_deployment_target=ct.target.iOS18).save(path)  # fmt: skip
        yield name, path


def _kinds() -> Program:
    """Types and constants of every kind."""
    program = doubling()
    for dtype, value in (("FLOAT16", [1.5]), ("BOOL", [True]), ("INT8", [-5]), ("FLOAT32", 1.0)):
        program.const(dtype.lower(), value, dtype)
    program.const("texts", ["a", "b"], "STRING")
    val = program.op("const", "pair").attributes["val"]
    for dtype in ("STRING", "INT32"):
        set_type(val.type.tupleType.types.add(), dtype, ())
        member = val.immediateValue.tuple.values.add()
        set_type(member.type, dtype, ())
        tensor = member.immediateValue.tensor
        (tensor.strings if dtype == "STRING" else tensor.ints).values.append(
            "a" if dtype == "STRING" else 7  # type: ignore[arg-type]
        )
    val = program.op("const", "table").attributes["val"]
    set_type(val.type.dictionaryType.keyType, "STRING", ())
    set_type(val.type.dictionaryType.valueType, "STRING", ())
    entry = val.immediateValue.dictionary.values.add()
    for part in (entry.key, entry.value):
        set_type(part.type, "STRING", ())
        part.immediateValue.tensor.strings.values.append("k")
    val = program.op("const", "listed").attributes["val"]
    set_type(val.type.listType.type, "INT32", (1,))
    item = val.immediateValue.list.values.add()
    set_type(item.type, "INT32", (1,))
    item.immediateValue.tensor.ints.values.append(3)
    cond = program.op("cond", "z", shape=(2, 3), pred="bool")
    for name in ("x", "y"):
        cond.blocks.add().outputs.append(name)
    return program


def _image() -> Program:
    """An image, an optional input and a flexible one."""
    program = Program("CoreML7")
    program.input("x", (1, 3), ranges=((1, 1), (1, 8)))
    program.input("o", (1, 3))
    description = program.model.description.input
    description[1].type.isOptional = True
    description[1].type.multiArrayType.floatDefaultValue = 1.5
    named = program.function.inputs.add()
    named.name = "i"
    set_type(named.type, "FLOAT32", (1, 3, 2, 4))
    image = description.add()
    image.name = "i"
    image.type.imageType.width, image.type.imageType.height = 4, 2
    image.type.imageType.colorSpace = 20
    image.type.imageType.enumeratedSizes.sizes.add().width = 4
    program.op("abs", "y", shape=(1, None), x="x")
    program.output("y")
    program.model.description.metadata.userDefined["source"] = "hand"
    return program


def _loop() -> Any:
    @mb.program(input_specs=[mb.TensorSpec((1, 4))], opset_version=ct.target.iOS18)
    def loop(x: Any) -> Any:
        def more(i: Any, a: Any) -> Any:
            return mb.less(x=i, y=3.0)

        def step(i: Any, a: Any) -> Any:
            return mb.add(x=i, y=1.0), mb.mul(x=a, y=np.float32(2))

        _, result = mb.while_loop(_cond=more, _body=step, loop_vars=(0.0, x))
        return mb.linear(x=result, weight=np.ones((4, 4), np.float32), name="y")

    return loop


def _state() -> Any:
    states = [mb.TensorSpec((1, 4)), mb.StateTensorSpec((1, 4), types.fp16)]

    @mb.program(input_specs=states, opset_version=ct.target.iOS18)
    def state(x: Any, kv: Any) -> Any:
        held = mb.read_state(input=kv)
        new = mb.add(x=held, y=mb.cast(x=x, dtype="fp16"))
        mb.coreml_update_state(state=kv, value=new)
        return mb.cast(x=new, dtype="fp32", name="y")

    return state


if __name__ == "__main__":
    main()
