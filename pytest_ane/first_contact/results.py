"""The folder of a run: its setup, the facts of each step, the step that is running."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytest_ane.first_contact.steps import STEPS, Facts, Setup
from pytest_ane.mlprogram.atomic import write_atomically
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.strict_json import strict

_SETUP, _RUNNING = "setup.json", "running.json"


class Results:
    """Results of steps as files, so that a killed run goes on where it was."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, setup: Setup, identity: dict[str, Any]) -> None:
        """Begin a run, or go on with the same.

        Args:
            setup: of the run.
            identity: versions and steps, which must be the same to go on.

        Raises:
            ExecutionError: the folder holds a run of another setup, or cannot be written.
        """
        data = {**{k: str(v) for k, v in asdict(setup).items() if k != "folder"}, **identity}
        try:
            (self.folder / "steps").mkdir(parents=True, exist_ok=True)
            known = self._read(_SETUP)
            if known is None:
                self._write(_SETUP, data)
        except OSError as error:
            raise ExecutionError(f"{self.folder}: cannot be written ({error.strerror}).") from None
        if known is not None and known != data:
            differs = next(key for key in {**known, **data} if known.get(key) != data.get(key))
            raise ExecutionError(
                f"{self.folder}: holds a run with another {differs} ({known.get(differs)!r}, now "
                f"{data.get(differs)!r}); delete it, or name another folder with --folder."
            )

    def setup(self) -> Setup:
        """As the run was opened with."""
        data = self._read(_SETUP) or {}
        return Setup(self.folder, *(data[key] for key in ("shard", "manifest", "replay")))

    def steps(self) -> list[str]:
        """Of this run, in order."""
        return list((self._read(_SETUP) or {}).get("steps", STEPS))

    def left(self) -> list[str]:
        """Steps without facts, in order."""
        return [name for name in self.steps() if self.facts(name) is None]

    def forget_unsettled(self, seconds: float) -> None:
        """Let a later run measure what failed, and what took longer than a lower limit."""
        for name in self.steps():
            facts = self.facts(name) or {}
            if "failed" in facts or facts.get("hung", seconds) < seconds:
                (self.folder / f"steps/{name}.json").unlink()

    def begin(self, name: str) -> None:
        """Say which step is running."""
        self._write(_RUNNING, {"step": name})

    def running(self) -> str | None:
        """The step that a child began last; None before the first."""
        data = self._read(_RUNNING)
        return str(data["step"]) if data else None

    def forget_running(self) -> None:
        """Before a child is started."""
        (self.folder / _RUNNING).unlink(missing_ok=True)

    def write(self, name: str, facts: Facts) -> None:
        """Keep a step's facts."""
        self._write(f"steps/{name}.json", facts)

    def facts(self, name: str) -> Facts | None:
        """A step's facts, if there are any."""
        return self._read(f"steps/{name}.json")

    def _write(self, name: str, data: Any) -> None:
        text = json.dumps(strict(data), indent=1, ensure_ascii=False)
        write_atomically(self.folder / name, text.encode(errors="backslashreplace"))

    def _read(self, name: str) -> Facts | None:
        with suppress(FileNotFoundError, ValueError):
            data = json.loads((self.folder / name).read_bytes())
            return data if isinstance(data, dict) else None
        return None
