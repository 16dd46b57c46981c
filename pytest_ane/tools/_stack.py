"""Opens a whole model for a command; shards that are not in the cache are built first."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_ane.cli.output import tell
from pytest_ane.mlprogram.arithmetic import Arithmetic
from pytest_ane.mlprogram.errors import UnprovenError
from pytest_ane.project import process
from pytest_ane.project.choose import choose_model
from pytest_ane.project.models import OpenModel
from pytest_ane.project.progress import Progress
from pytest_ane.project.project import BackendName, default_backend, read_project
from pytest_ane.project.stack import Stack


@contextmanager
def open_stack(
    manifest: Path | None,
    name: str | None,
    cache: Path | None,
    arithmetic: Arithmetic | None = "typed",
) -> Iterator[Stack]:
    """A model's shards, built and chained; on a Mac they run in Core ML.

    Args:
        manifest: default `shards.toml` here.
        name: the model's; may be left out where the manifest has one whole model.
        cache: its folder.
        arithmetic: with `ane` the CPU executor runs, on a Mac too; None for what the manifest says:
            `ane` if that is named and no device runs.

    Raises:
        AneError: there is no such whole model, it has no golden prompts, or cannot be built.
    """
    process.choose()
    backend: BackendName = "cpu" if arithmetic == "ane" else default_backend()
    project = read_project(manifest, cache, notify=tell, backend_name=backend)
    model = choose_model(project.manifest, name, stacks=True)
    if not model.prompts:
        raise UnprovenError(
            f"{model.name} has no golden prompts to run through the stack; add "
            f"[[models.{model.name}.prompts]] to {project.manifest.path.name}.",
            "missing",
        )
    project.shards = model.shards
    project.progress = Progress(len(model.shards), tell)
    with project.use():
        opened = project.model(model.name)
        assert isinstance(opened, OpenModel)  # A stack has a family.
        opened.check_logits()
        opened.check_compared()
        if sys.stderr and sys.stderr.isatty():
            for line in project.preflight.lines():
                tell(line, stays=True)
        if arithmetic is None:
            named = "ane" in model.arithmetic and project.backend.simulated() is not None
            arithmetic = "ane" if named else "typed"
        yield project.stack(model.name, arithmetic)
