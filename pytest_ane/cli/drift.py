"""`pytest-ane drift`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_ane.core.errors import ExecutionError
from pytest_ane.project import threads


def run(
    manifest: Path | None, model: str | None, cache: Path | None, file: Path | None
) -> Iterator[str]:
    """How hidden states drift along a stack, and what each shard alone does to it.

    Args:
        manifest: default `shards.toml` here.
        model: its name; may be left out where the manifest has one whole model.
        cache: the cache folder.
        file: where to write the measurement as JSON.
    """
    if file is not None and not file.absolute().parent.is_dir():
        raise ExecutionError(f"--json {file}: there is no folder {file.parent}.")
    threads.choose()
    from pytest_ane.analysis.drift import find_causes, measure_drift, to_json
    from pytest_ane.cli.stack import open_stack
    from pytest_ane.cli.status import tell
    from pytest_ane.report.drift import lines

    with open_stack(manifest, model, cache) as stack:
        found = measure_drift(
            stack.chain,
            stack.reference,
            stack.golden,
            stack.states,
            stack.provenance,
            lambda shard, done, total: tell(f"{shard} ({done + 1} of {total})"),
        )
        tell("")
        yield from lines(found, find_causes(found, stack.policy, stack.model), stack.model)
        if file is not None:
            _write(file, to_json(found))
            yield f"written to {file}"


def _write(path: Path, text: str) -> None:
    from pytest_ane.core.files import write_atomically

    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise ExecutionError(f"--json {path}: cannot be written ({error.strerror}).") from None
