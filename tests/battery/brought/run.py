"""What the gates say of packages that people bring, for each form of naming references."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import coremltools.optimize as cto
import numpy as np
import torch

from pytest_ane.gates.registry import GATES
from pytest_ane.gates.verdict import Finding, Verdict
from pytest_ane.make.coremltools_quiet import converter_notes
from pytest_ane.mlprogram.errors import AneError
from pytest_ane.project.project import Project, read_project
from pytest_ane.report.verdict import reasons
from tests.battery.brought import plain, stateful
from tests.battery.brought.kind import F16, Flaw, Kind, ct, run
from tests.battery.run import _no_modules

Status = Literal["failed", "unproven", "passed"]
STATUSES: tuple[Status, ...] = ("failed", "unproven", "passed")
"""The worst first."""
KINDS = {kind.name: kind for kind in (*plain.KINDS, *stateful.KINDS)}
RIGHT = Flaw("", "right")
FORMS = {
    "few": 'reference = "{golden}-few.npz"',
    "golden": 'reference = "{golden}.npz"',
    "package": 'reference = "{right}"',
    "uncompressed": 'reference = "{right}"\nuncompressed = "{right}"',
    "own": 'reference = "{golden}.npz"\nuncompressed = "{wrong}"',
    "both": 'reference = "{golden}.npz"\nuncompressed = "{right}"',
}
"""Keys of the manifest that name the references, by form.

Golden tensors are of the float32 module. `few` has one length or four calls, the others every
length or the whole of a state and a second sequence. `own` names the program that was compressed,
faults and all; `package`, `uncompressed` and `both` name the right one in fp16.
"""
CAUSES = {
    "wrong function": r"wrong function|another (function|program)",
    "fp16": r"fp16|overflow",
    "interface": r"interface|colou?r|image|default|scale|bias",
    "compression": r"^(?!.*wrong function).*(compress|palett|table|weight|quanti)",
}
"""How the first sentence of a verdict names each cause."""


@dataclass(frozen=True)
class Said:
    """What the gates said of one package in one form of naming references.

    Attributes:
        status: the worst of all gates and functions.
        sentence: the first reason for it.
        seconds: wall time.
    """

    kind: str
    flaw: str
    form: str
    seed: int
    status: Status
    sentence: str
    seconds: float

    @property
    def named(self) -> bool:
        """Whether the first sentence names the right cause."""
        flaw = flaw_of(self.kind, self.flaw)
        return bool(re.search(CAUSES[flaw.cause], self.sentence))


def flaw_of(kind: str, name: str) -> Flaw:
    """A fault by name; the empty name is the right package."""
    return next(f for f in (RIGHT, *KINDS[kind].flaws) if f.name == name)


def convert(kind: Kind, wrong: str, plain: Path, small: Path) -> None:
    """Convert a kind's module with a fault; save it in fp16, and compressed by coremltools."""
    if not kind.functions:
        model = _converted(kind, wrong, "main")
        model.save(str(plain))
        _compressed(kind, model).save(str(small))
        return
    default = kind.functions[-1 if wrong == "prefill is the default" else 0]
    for name in kind.functions:
        model = _converted(kind, wrong, name)
        for path, part in ((plain, model), (small, _compressed(kind, model))):
            part.save(str(path.with_name(f"{path.stem}-{name}.mlpackage")))
    for path in (plain, small):
        several = ct.utils.MultiFunctionDescriptor()
        several.default_function_name = default
        for name in kind.functions:
            part = path.with_name(f"{path.stem}-{name}.mlpackage")
            several.add_function(str(part), "main", name)
        with converter_notes():
            ct.utils.save_multifunction(several, str(path))


def _converted(kind: Kind, wrong: str, function: str) -> Any:
    module = kind.module(wrong).eval()
    call = kind.prepared(kind.sequences(np.random.default_rng(0), function, True)[0][0])
    given = [torch.from_numpy(np.asarray(x)) for x in call.values()]
    floats = tuple(x if x.dtype == torch.int32 else x.float() for x in given)
    states = [
        ct.StateType(ct.TensorType(shape=getattr(module, name).shape, dtype=F16), name=name)
        for name in module.states
    ]
    with converter_notes(), torch.no_grad():
        return ct.convert(
            torch.jit.trace(module, floats, check_trace=False),
            inputs=[*kind.inputs(function, wrong)],
            outputs=[ct.TensorType(name=n, dtype=dtype) for n, dtype in kind.outputs.items()],
            states=states or None,
            minimum_deployment_target=ct.target.iOS18,
            skip_model_load=True,
        )


def _compressed(kind: Kind, model: Any) -> Any:
    settings = dict(kind.compression) | {"weight_threshold": 512}
    with converter_notes():
        if settings.pop("linear", False):
            config: Any = cto.coreml.OpLinearQuantizerConfig(mode="linear_symmetric", **settings)
            quantize = cto.coreml.linear_quantize_weights
            return quantize(model, cto.coreml.OptimizationConfig(config))
        config = cto.coreml.OpPalettizerConfig(mode="kmeans", **settings)
        return cto.coreml.palettize_weights(model, cto.coreml.OptimizationConfig(config))


def record(kind: Kind, function: str, path: Path, *, few: bool) -> None:
    """Golden tensors of the float32 module, as a script of a porter writes them."""
    module, tensors = kind.module(""), {}
    sequences = kind.sequences(np.random.default_rng(11), function, few)
    for i, sequence in enumerate(sequences):
        for j, (call, given) in enumerate(zip(sequence, run(kind, module, sequence), strict=True)):
            at = f"{i}.{j}" if kind.stateful else f"{i}"
            tensors |= {f"{at}.in.{name}": x for name, x in call.items()}
            tensors |= {f"{at}.out.{name}": x for name, x in given.items()}
    np.savez(path, allow_pickle=False, **tensors)


class Bench:
    """A folder of one kind's packages and golden tensors; the right ones are made once."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        folder.mkdir(parents=True, exist_ok=True)
        convert(kind, "", folder / "right.mlpackage", folder / "small.mlpackage")
        for function in kind.functions or ("main",):
            record(kind, function, folder / f"{function}.npz", few=False)
            record(kind, function, folder / f"{function}-few.npz", few=True)

    @contextmanager
    def package(self, flaw: Flaw) -> Iterator[tuple[str, str]]:
        """Names of a compressed package and of the program that was compressed."""
        if flaw is RIGHT:
            yield "small.mlpackage", "right.mlpackage"
            return
        wrong, small = (self.folder / f"{n}.mlpackage" for n in ("wrong", "wrong-small"))
        if flaw.put is not None:
            shutil.copytree(self.folder / "small.mlpackage", small)
            flaw.put(small, _no_modules)
        else:
            convert(self.kind, flaw.name, wrong, small)
        try:
            yield small.name, wrong.name if flaw.put is None else "right.mlpackage"
        finally:
            for path in self.folder.glob("wrong*.mlpackage"):
                shutil.rmtree(path)

    def manifest(self, form: str, artifact: str, wrong: str, seed: int) -> Path:
        """The manifest of a form: one shard, or one for each function where golden tensors are."""
        golden = "golden" in FORMS[form]
        each = self.kind.functions if golden and self.kind.functions else ("main",)
        lines = []
        for function in each:
            keys = FORMS[form].format(golden=function, right="right.mlpackage", wrong=wrong)
            chosen = f'function = "{function}"' if function in self.kind.functions else ""
            lines += [f"[models.brought.shard.{function}]", f'artifact = "{artifact}"']
            lines += [keys, chosen]
            lines += [f"probes = {{ seed = {seed} }}"]
            for name, table in self.kind.tables.items():
                lines += [f"[models.brought.shard.{function}.inputs.{name}]", table]
        path = self.folder / "shards.toml"
        path.write_text("\n".join(lines) + "\n")
        return path

    def said(self, flaw: Flaw, forms: Sequence[str], seed: int = 0) -> list[Said]:
        """What the gates say of a fault in each form."""
        results = []
        with self.package(flaw) as (artifact, wrong):
            for form in forms:
                start, store = time.perf_counter(), self.folder / "cache"
                project = read_project(self.manifest(form, artifact, wrong, seed), store)
                with project.use():
                    status, sentence = _worst(list(_verdicts(project)))
                shutil.rmtree(store, ignore_errors=True)
                seconds = time.perf_counter() - start
                results.append(
                    Said(self.kind.name, flaw.name, form, seed, status, sentence, seconds)
                )
        return results


def _verdicts(project: Project) -> Iterator[Verdict]:
    for name in ("fidelity", "compression"):
        gate = GATES[name]
        for shard in project.shards:
            for each in project.subjects(gate, shard):
                try:
                    measured = gate.measure(project.open_shard(each))  # type: ignore[arg-type]
                    yield gate.judge(measured, gate.policy(each.policy), each)
                except AneError as error:
                    finding = Finding("failed", str(error))
                    yield Verdict(name, each.qualified, findings=(finding,))


def _worst(verdicts: Sequence[Verdict]) -> tuple[Status, str]:
    for status in STATUSES:
        for verdict in verdicts:
            if verdict.status == status:
                return status, reasons(verdict)[0] if reasons(verdict) else ""
    raise AssertionError("no gate asked")


@cache
def bench(kind: str, folder: Path) -> Bench:
    """A process's own packages of a kind, in a folder of all processes."""
    return Bench(KINDS[kind], Path(tempfile.mkdtemp(prefix=kind, dir=folder)))


def judged(kind: str, flaw: str, forms: Sequence[str], seed: int, folder: Path) -> list[Said]:
    """What the gates say of a kind's fault; an empty name is the right package."""
    return bench(kind, folder).said(flaw_of(kind, flaw), forms, seed)


def quiet() -> None:
    """One thread in each process, and no warnings of tracing."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
