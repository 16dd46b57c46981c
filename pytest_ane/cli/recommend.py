"""`pytest-ane recommend`."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_ane.core.errors import ManifestError, NotRunError
from pytest_ane.manifest import Model


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
    from pytest_ane.cli.status import tell
    from pytest_ane.project import threads
    from pytest_ane.project.choose import choose_model
    from pytest_ane.project.models import OpenModel
    from pytest_ane.project.project import read_project
    from pytest_ane.recommend.evaluate import ModelEvaluator
    from pytest_ane.recommend.log import Log
    from pytest_ane.recommend.menu import menu_of
    from pytest_ane.recommend.rewrite import diff, rewritten, save
    from pytest_ane.recommend.search import best, best_single, recommend
    from pytest_ane.report.recommend import line, table

    threads.choose()
    file = manifest or Path("shards.toml")
    project = read_project(file, cache, backend_name="cpu")
    model = choose_model(project.manifest, name)
    _check(model)
    settings = menu_of(model.menu, menu)
    store, backend = project.cache, project.backend
    with project.use():
        opened = project.model(model.name)
        assert isinstance(opened, OpenModel)  # It has a family.
        opened.check_compared()
        kept = Log(
            log or store.root / "recommend" / f"{model.name}.jsonl", _context(opened, backend)
        )
        yield f"log: {kept.file}" + (
            f" ({len(kept)} measurements in it already)" if len(kept) else ""
        )
        evaluator = ModelEvaluator(
            opened, store, backend, settings, kept, minutes=minutes or math.inf,
            evaluations=evaluations or math.inf, progress=tell,
        )  # fmt: skip
        start, candidates = time.monotonic(), []
        for candidate in recommend(evaluator, model.policy.behaviour.max_kl):
            tell("")
            candidates.append(candidate)
            yield line(candidate)
        tell("")
        winner, single = best(candidates), best_single(candidates)
        yield ""
        yield from table(candidates, winner)
        yield ""
        seconds = time.monotonic() - start
        old = len(candidates) - evaluator.measured
        logged = f"; {old} more were in the log" if old > 0 else ""
        yield (
            f"{evaluator.measured} whole models measured in {seconds / 60:.1f} minutes "
            f"({backend.name}){logged}"
        )
        if winner is None:
            raise NotRunError(
                f"{model.name}: nothing that was measured passes every gate; add settings of more "
                "bits to the menu, or give the search more time."
            )
        yield _saved(winner, single)
        text = file.read_bytes().decode("utf-8-sig")
        new = rewritten(text, file, model.name, evaluator.compression(winner.choice))
        if new == text:
            yield f"{file} has these settings already"
        elif write:
            yield from diff(text, new, file)
            save(file, new)
            yield f"{file} written"
        else:
            yield f"--write puts it into {file}"


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
                    "of what is candidates."
                )


def _context(opened: Any, backend: Any) -> dict[str, Any]:
    """What decides a measurement besides the candidate: the log is valid for these alone."""
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
