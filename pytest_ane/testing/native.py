"""`coremltools.libcoremlpython` of a replayed Mac."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType
from typing import Any

from pytest_ane.mil import read_model
from pytest_ane.predict import native as served
from pytest_ane.testing import placed
from pytest_ane.testing.compiler import compile_model
from pytest_ane.testing.failing import Failures
from pytest_ane.testing.script import Script


class Answers:
    """What the native module asks: a script, and how far it has been played."""

    def __init__(self, script: Script, folder: Path) -> None:
        self.script = script
        self.failures = Failures(script, folder)
        self._paths: list[str] = []

    def plan(self, path: str, units: str) -> Any:
        """A compiled model's plan in coremltools' record.

        Raises:
            RuntimeError: a failure is due; or the model is a package, for which Core ML would end
                the whole process.
            ProgramError: the model cannot be read.
        """
        if Path(path).suffix != ".mlmodelc":
            raise RuntimeError(
                f"{path} is not compiled; Core ML would end this process. Compile it first."
            )
        self.failures.raise_due("plan", path)
        model = read_model(path, weights=False)
        usages = {} if self._broken(path) else placed.by_rules(self.script, model, units)
        return placed.compute_plan(model, usages, self.script.machine.cores)

    def _broken(self, path: str) -> bool:
        resolved = str(Path(path).resolve())
        if resolved not in self._paths:
            self._paths.append(resolved)
        return self._paths.index(resolved) < self.script.unassigned_paths


def native(answers: Answers) -> ModuleType:
    """A module that plays the answers; what is not asked of them is served by the executor."""
    module = ModuleType("coremltools.libcoremlpython", __doc__)
    vars(module).update({name: getattr(served, name) for name in served.__all__})
    vars(module).update(PYTEST_ANE=True, _MLModelProxy=_proxy(answers))
    return module


def _proxy(answers: Answers) -> type:
    script, failures = answers.script, answers.failures

    class _MLModelProxy(served._MLModelProxy):
        """A loaded model."""

        def __init__(
            self,
            path: str,
            compute_units: str,
            function_name: str = "",
            hints: dict[str, str] | None = None,
            asset: Any = None,
        ) -> None:
            failures.raise_due("load", path)
            super().__init__(path, compute_units, function_name, hints, asset)

        def predict(self, data: dict[str, Any], state: Any = None) -> dict[str, Any]:
            """A prediction of the executor."""
            failures.raise_due("predict", str(self._path))
            return super().predict(data, state)

        @staticmethod
        def compileModel(path: str) -> str:
            """A compiled model in a new folder."""
            target = Path(mkdtemp(prefix="pytest-ane-")) / f"{Path(path).stem}.mlmodelc"
            return str(compile_model(Path(path), target, script, failures))

        @staticmethod
        def get_compute_plan(path: str, compute_units: str) -> Any:
            """A plan."""
            return answers.plan(path, compute_units)

        @staticmethod
        def get_all_compute_devices() -> list[Any]:
            """CPU, GPU and Neural Engine."""
            return list(placed.devices(script.machine.cores).values())

        get_available_compute_devices = get_all_compute_devices

    return _MLModelProxy
