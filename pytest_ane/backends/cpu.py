"""The `cpu` backend: our executor of ML Programs, on any machine."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import pytest_ane
from pytest_ane.backends.base import Arrays
from pytest_ane.mil import read_model
from pytest_ane.mil.records import Feature
from pytest_ane.reference import Session
from pytest_ane.reference.state import States


class CpuRunner:
    """A package prepared for the executor; weights decoded once."""

    def __init__(self, path: Path) -> None:
        self._model = read_model(path)
        self._session = Session(self._model)

    @property
    def inputs(self) -> tuple[Feature, ...]:
        """The declared inputs."""
        return self._model.inputs

    def make_state(self) -> States | None:
        """Fresh states, all zero."""
        return self._session.make_state() if self._model.states else None

    def predict(self, inputs: Arrays, state: States | None = None) -> dict[str, npt.NDArray[Any]]:
        """Run once; every fp16 result is rounded as the program's types say."""
        known = {f.name: inputs[f.name] for f in self._model.inputs if f.name in inputs}
        return self._session.predict(known, state)


class CpuBackend:
    """Runs packages op by op with numpy."""

    name = "cpu"

    def load(self, artifact: Path) -> CpuRunner:
        """Read and prepare a package."""
        return CpuRunner(artifact)

    def provenance(self) -> dict[str, str]:
        """Versions and machine."""
        return {
            "backend": self.name,
            "pytest-ane": pytest_ane.__version__,
            "numpy": np.__version__,
            "machine": f"{platform.system()} {platform.machine()}",
        }
