"""`pytest-ane recommend`."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_ane.core.errors import ManifestError, NotRunError
from pytest_ane.manifest import Model, load
from pytest_ane.manifest.ids import nearest


def run(
    name: str | None,
    *,
    manifest: Path | None,
    cache: Path | None,
    menu: Path | None,
    log: Path | None,
    minutes: float | None,
    evaluations: int | None,
    write: bool,
) -> Iterator[str]:
    """Search the smallest compression of a model that passes every gate; write it if asked."""
    from pytest_ane.backends import get_backend
    from pytest_ane.build import Cache
    from pytest_ane.core.digests import remembered
    from pytest_ane.families import make_importable
    from pytest_ane.plugin import threads
    from pytest_ane.project.models import OpenModel
    from pytest_ane.project.stack import Stack
    from pytest_ane.recommend import menu_of
    from pytest_ane.recommend.evaluate import Measuring
    from pytest_ane.recommend.log import Log
    from pytest_ane.recommend.rewrite import diff, rewritten, save
    from pytest_ane.recommend.run import best, best_single, recommend
    from pytest_ane.recommend.table import line, table

    threads.choose()
    file = manifest or Path("shards.toml")
    read = load(file)
    make_importable(read)
    model = _chosen(read.models, name)
    _check(model)
    settings = menu_of(model.menu, menu)
    store = Cache(cache)
    with remembered(store.root / "digests"):
        opened = OpenModel(model, store)
        opened.check_compared()
        backend = get_backend("cpu")
        kept = Log(
            log or store.root / "recommend" / f"{model.name}.jsonl", _context(opened, backend)
        )
        yield f"log: {kept.file}" + (
            f" ({len(kept)} measurements in it already)" if len(kept) else ""
        )
        progress = _Progress()
        bench = Measuring(
            opened, store, backend, lambda artifacts, loads: Stack(opened, artifacts, loads),
            settings, kept, minutes=minutes or math.inf, evaluations=evaluations or math.inf,
            say=progress.say,
        )  # fmt: skip
        start, found = time.monotonic(), []
        for candidate in recommend(bench, model.policy.behaviour.max_kl):
            progress.clear()
            found.append(candidate)
            yield line(candidate)
        progress.clear()
        winner, single = best(found), best_single(found)
        yield ""
        yield from table(found, winner)
        yield ""
        seconds = time.monotonic() - start
        old = len(found) - bench.measured
        logged = f"; {old} more were in the log" if old > 0 else ""
        yield (
            f"{bench.measured} whole models measured in {seconds / 60:.1f} minutes "
            f"({backend.name}){logged}"
        )
        if winner is None:
            raise NotRunError(
                f"{model.name}: nothing that was measured passes every gate; add settings of more "
                "bits to the menu, or give the search more time."
            )
        yield _saved(winner, single)
        text = file.read_bytes().decode("utf-8-sig")
        new = rewritten(text, file, model.name, bench.compression(winner.choice))
        if new == text:
            yield f"{file} already says so"
        elif write:
            yield from diff(text, new, file)
            save(file, new)
            yield f"{file} written"
        else:
            yield f"--write puts it into {file}"


def _chosen(models: tuple[Model, ...], name: str | None) -> Model:
    if name is None and len(models) == 1:
        return models[0]
    names = [model.name for model in models]
    if name is None:
        raise ManifestError(f"the manifest has several models; name one: {', '.join(names)}.")
    found = next((model for model in models if model.name == name), None)
    if found is None:
        raise ManifestError(f"the manifest has no model {name!r}; {nearest(name, names)}.")
    return found


def _check(model: Model) -> None:
    """Say why nothing can be recommended for a model, if so."""
    if model.family is None:
        raise ManifestError(
            f"{model.name} has no family, so its shards are not compressed here; recommend needs a "
            "family and a source."
        )
    if not model.prompts:
        raise ManifestError(
            f"{model.name} has no golden prompts, and without them nobody knows what compression "
            "does to the whole stack; add [[models.NAME.prompts]]."
        )
    for shard in model.shards:
        if shard.artifact is not None:
            raise ManifestError(
                f"{shard.qualified} is a package of your own, which is not compressed here; "
                "recommend needs shards that are all built from the source."
            )
        for gate in ("placement", "compression", "fidelity", "behaviour"):
            if shard.policy.requires_evidence(gate):
                raise ManifestError(
                    f"{shard.qualified}: policy.{gate} asks for what a device measured, which "
                    "candidates do not have; search without that requirement, and record evidence "
                    "of what is found."
                )


def _context(opened: Any, backend: Any) -> dict[str, Any]:
    """What every measurement depends on beside the candidate."""
    from pytest_ane.build.shard import BUILD_VERSION
    from pytest_ane.probes.recording import RECORDING_VERSION
    from pytest_ane.recommend.gates import GATES_VERSION

    model = opened.model
    return {
        "identity": opened.identity,
        "backend": backend.provenance(),
        "versions": [BUILD_VERSION, RECORDING_VERSION, GATES_VERSION],
        "prompts": opened.prompt_spec,
        "policy": model.policy.model_dump(mode="json"),
        "shards": [s.model_dump(mode="json", exclude={"compression"}) for s in model.shards],
        "keep": [list(shard.requested.keep) for shard in model.shards],
    }


def _saved(winner: Any, single: Any) -> str:
    head = f"recommended: {winner.name}, {winner.size / 1e6:.1f} MB, passed every gate here"
    if single is None:
        return f"{head}; no single setting of the menu that was measured did"
    if winner is single:
        return f"{head}; no mixture that was measured is smaller"
    less = 1 - winner.size / single.size
    return f"{head}; {less:.1%} smaller than {single.name} for all ({single.size / 1e6:.1f} MB)"


class _Progress:
    """One line on a terminal; nothing elsewhere."""

    def say(self, text: str) -> None:
        """Show what is going on."""
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{text[:100]}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Erase the line."""
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
