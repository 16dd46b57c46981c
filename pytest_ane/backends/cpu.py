"""The `cpu` backend: our executor of ML Programs, on any machine."""

from __future__ import annotations

import platform
from collections.abc import Collection, Sequence
from pathlib import Path
from weakref import WeakSet

import numpy as np

import pytest_ane
from pytest_ane.mlprogram.arithmetic import SIMULATED, Arithmetic, RuleShares
from pytest_ane.mlprogram.arrays import Array, Arrays
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor import PipelineSession, Session, open_session
from pytest_ane.mlprogram.executor.dtypes import Precision
from pytest_ane.mlprogram.executor.ops.lists import States
from pytest_ane.mlprogram.model import read_any
from pytest_ane.mlprogram.records import Pipeline

MEMORY_BUDGET = 64 << 20
"""Bytes of decoded weights that a runner holds; what is beyond is decoded in every call."""


class CpuRunner:
    """A package prepared for the executor."""

    def __init__(self, session: Session | PipelineSession) -> None:
        self.session, self.model = session, session.model
        raw = [
            name
            for part in (session.model.suppressions if isinstance(session.model, Pipeline) else ())
            for name in (part.confidence[0], part.coordinates[0])
        ]
        self._names = tuple(dict.fromkeys((*session.model.output_names, *raw))) if raw else None

    @property
    def rule_shares(self) -> RuleShares | None:
        """By which rules of the ANE all runs so far computed; None with arithmetic `typed`."""
        return self.session.rule_shares

    def make_state(self) -> States | None:
        """Fresh states, all zero; None where the package keeps none."""
        return self.session.make_state() if self.model.states else None

    def read_states(
        self, state: States | None, names: Collection[str] | None = None
    ) -> dict[str, Array]:
        """Copies of states by name: of all, or of some."""
        if state is None:
            return {}
        return {n: np.array(state[n].read()) for n in (state if names is None else names)}

    def write_states(self, state: States | None, values: Arrays) -> None:
        """Give states values; `ExecutionError` where there is none of that name or shape."""
        for name, value in values.items():
            if state is None or name not in state:
                listed = ", ".join(state or ()) or "none"
                raise ExecutionError(
                    f"{self.model.path}: there is no state {name!r}; states are: {listed}."
                )
            try:
                state[name].write(value)
            except ValueError as error:
                raise ExecutionError(f"{self.model.path}: {name!r}: {error}.") from None

    def predict(self, inputs: Arrays, state: States | None = None) -> dict[str, Array]:
        """Run once; of a detector's pipeline the numbers before suppression come with outputs."""
        return self.session.predict(self.session.known(inputs), state, self._names)

    def predict_all(
        self, inputs: Sequence[Arrays], states: Sequence[States | None]
    ) -> list[dict[str, Array]]:
        """Run once on each input; weights that are not held are decoded once for all."""
        known = [self.session.known(x) for x in inputs]
        return self.session.predict_all(known, states, self._names)


class CpuBackend:
    """Runs packages op by op with numpy; precision and arithmetic are as in `Session`."""

    name = "cpu"
    on_device = False

    def __init__(self, precision: Precision = "as-typed", arithmetic: Arithmetic = "typed") -> None:
        self._precision, self._arithmetic = precision, arithmetic
        self._runners: WeakSet[CpuRunner] = WeakSet()

    def load(self, artifact: Path, function: str | None = None) -> CpuRunner:
        """Read a model, or one of its functions, and prepare it, as of `Backend`."""
        model = read_any(artifact, function=function)
        options = {"precision": self._precision, "arithmetic": self._arithmetic}
        session = open_session(model, memory_budget=MEMORY_BUDGET, **options)
        self._runners.add(runner := CpuRunner(session))
        return runner

    def simulated(self) -> CpuBackend:
        """The executor in the ANE's arithmetic."""
        return CpuBackend(arithmetic="ane")

    @property
    def rule_shares(self) -> RuleShares:
        """By which rules of the ANE all that it loaded, and that is in use, computed so far."""
        return sum(filter(None, (r.rule_shares for r in self._runners)), RuleShares())

    def provenance(self) -> dict[str, str]:
        """Versions of pytest-ane and numpy, system and processor, and a simulated arithmetic."""
        return {
            "backend": self.name,
            "pytest-ane": pytest_ane.__version__,
            "numpy": np.__version__,
            "machine": f"{platform.system()} {platform.machine()}",
            **({"arithmetic": SIMULATED} if self._arithmetic == "ane" else {}),
        }
