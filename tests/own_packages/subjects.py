"""Programs of coremltools' own builder, each with the faults that people make in it.

A subject is a function of a `Variant` and its inputs. The reference and the right package come from
it without a fault; the right one has slightly other weights, as rounding leaves them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import Function, Program, types

from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools

ct = import_coremltools()
Status = Literal["passed", "failed", "unproven"]
Array = npt.NDArray[Any]
NOISE = 2e-4
"""Relative error of the right package's weights: once more rounded to fp16 they have as much."""


@dataclass
class Variant:
    """The reference, the right package, or one with a fault.

    Attributes:
        subject: whose program is built.
        fault: the one it has; empty for none.
        noise: relative error of its weights.
        function: the one of several that is built.
    """

    subject: Subject
    fault: str = ""
    noise: float = 0.0
    function: str = ""
    _drawn: int = 0

    def __getitem__(self, fault: str) -> bool:
        assert fault in self.subject.faults, fault
        return self.fault == fault

    def weight(self, *shape: int, scale: float | None = None) -> Array:
        """Normal weights in fp16, the same in all variants but for the noise."""
        self._drawn += 1
        rng = np.random.default_rng(zlib.crc32(f"{self.subject.name}/{self._drawn}".encode()))
        values = rng.standard_normal(shape) * (shape[0] ** -0.5 if scale is None else scale)
        return (values * (1 + self.noise * rng.standard_normal(shape))).astype(np.float16)


Body = Callable[..., Any]


@dataclass(frozen=True)
class Subject:
    """A program, and what may be wrong with it.

    Attributes:
        name: the model's in the manifest.
        exercises: the kind of input, output, state, length or reference that it stands for.
        body: its operations, of a variant and the inputs.
        specs: the inputs by name, and the states.
        faults: by name, the verdict of a package that has it.
        inputs: tables of the manifest below `[models.NAME.shard]`, by input.
        convert: further arguments of `coremltools.convert`.
        finish: changes the converted model, as compression does.
        reference: what the shards name; by default the package without a fault.
        right: the verdict of the right package.
        shard: further keys of the shards' tables; `{package}` is the shard's own.
        model: further keys of the model's table.
        functions: by name, the inputs of each function, in place of `specs`.
        prepare: writes further files into the folder of the manifest.
        noise: relative error of the right package's weights.
    """

    name: str
    exercises: str
    body: Body
    specs: Mapping[str, Any]
    faults: Mapping[str, Status]
    inputs: Mapping[str, str] = field(default_factory=dict)
    convert: Callable[[Variant], Mapping[str, Any]] = lambda variant: {}
    finish: Callable[[Variant, Any], Any] = lambda variant, model: model
    reference: str = "reference.mlpackage"
    right: Status = "passed"
    shard: str = ""
    model: str = ""
    functions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    prepare: Callable[[Subject, Path], None] = lambda subject, folder: None
    noise: float = NOISE

    def save(self, variant: Variant, path: Path) -> None:
        """Convert a variant and save it, its functions in one package."""
        if not self.functions:
            self._convert(variant, self.specs, path)
            return
        several = ct.utils.MultiFunctionDescriptor()
        first, *_, last = self.functions
        several.default_function_name = last if "by default" in variant.fault else first
        for name, specs in self.functions.items():
            if "missing" not in variant.fault or name == first:
                part = path.with_name(f"{path.stem}-{name}.mlpackage")
                self._convert(replace(variant, function=name), specs, part)
                several.add_function(str(part), "main", name)
        with converter_notes():
            ct.utils.save_multifunction(several, str(path))

    def _convert(self, variant: Variant, specs: Mapping[str, Any], path: Path) -> None:
        target = ct.target.iOS18
        with converter_notes():
            with Function({name: spec() for name, spec in specs.items()}, target) as function:
                outputs = self.body(variant, *function.inputs.values())
                function.set_outputs([*outputs] if isinstance(outputs, tuple) else [outputs])
            program = Program()
            program.add_function("main", function)
            model = ct.convert(
                program,
                convert_to="mlprogram",
                minimum_deployment_target=target,
                skip_model_load=True,
                **self.convert(variant),
            )
            model = self.finish(variant, model)
        model.user_defined_metadata["variant"] = path.stem
        model.save(str(path))


SUBJECTS: dict[str, Subject] = {}


def subject(
    exercises: str,
    faults: str | Sequence[str] | Mapping[str, Status],
    *,
    inputs: Mapping[str, str] | None = None,
    **more: Any,
) -> Callable[[Body], Body]:
    """Register a program; options that `Subject` has not are its inputs, in order.

    Faults are `failed` where no verdict stands with them.
    """
    options = {name: more.pop(name) for name in (*more,) if name in Subject.__annotations__}

    def register(body: Body) -> Body:
        named = faults.split(", ") if isinstance(faults, str) else faults
        verdicts = named if isinstance(named, Mapping) else dict.fromkeys(named, "failed")
        name = options.pop("name", body.__name__.replace("_", "-"))
        assert name not in SUBJECTS, name
        SUBJECTS[name] = Subject(name, exercises, body, more, verdicts, inputs or {}, **options)
        return body

    return register


def exchanged(op: Callable[..., Any], v: Variant, a: Any, b: Any) -> Any:
    """A sum or product whose operands are exchanged in the right package.

    Without weights, in which there is noise, it would be the reference itself.
    """
    x, y = (b, a) if v.noise else (a, b)
    return op(x=x, y=y, name="y")


def half(*shape: Any) -> Any:
    return partial(mb.TensorSpec, shape, types.fp16)


def single(*shape: Any) -> Any:
    return partial(mb.TensorSpec, shape, types.fp32)


def whole(*shape: Any) -> Any:
    return partial(mb.TensorSpec, shape, types.int32)


def state(*shape: int) -> Any:
    return partial(mb.StateTensorSpec, shape, types.fp16)
