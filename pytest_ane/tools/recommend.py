"""`pytest-ane recommend`."""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ane.cli.options import add_arithmetics, add_budget, add_project, positive
from pytest_ane.cli.output import Failed, Output, tell
from pytest_ane.mlprogram.errors import ManifestError

if TYPE_CHECKING:
    from pytest_ane.manifest import Model
    from pytest_ane.tools._recommend_search import Candidate

HELP = "search the smallest compression that passes every gate"
EXAMPLE = "pytest-ane recommend smollm2 --minutes 30"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, its menu, and when to stop."""
    parser.add_argument("model", nargs="?", help="of the manifest; may be left out if it has one")
    add_project(parser)
    parser.add_argument("--menu", type=Path, metavar="FILE", help="settings to choose from (TOML)")
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="every number measured (default: in the cache)"
    )
    parser.add_argument("--minutes", type=positive, help="begin nothing new after so long")
    parser.add_argument("--evaluations", type=positive, help="measure at most so many stacks")
    parser.add_argument("--write", action="store_true", help="put the result into the manifest")
    add_arithmetics(parser)
    add_budget(parser)


def run(options: argparse.Namespace) -> Output:
    """Search the smallest compression of a model that passes every gate; write it with `--write`.

    It fails where no candidate passes.
    """
    from pytest_ane.project import process as threads

    threads.choose()
    from pytest_ane.project.choose import choose_model
    from pytest_ane.project.models import OpenModel
    from pytest_ane.project.project import read_project
    from pytest_ane.tools._recommend_builds import diff, menu_of, rewritten, save
    from pytest_ane.tools._recommend_evaluate import Log, ModelEvaluator, line, table
    from pytest_ane.tools._recommend_search import best, best_single, recommend

    file = options.manifest or Path("shards.toml")
    project = read_project(file, options.cache, backend_name="cpu", arithmetic=options.arithmetic)
    model = choose_model(project.manifest, options.model)
    _check(model)
    settings = menu_of(options.menu)
    store, backend = project.cache, project.backend
    with project.use():
        opened = project.model(model.name)
        assert isinstance(opened, OpenModel)  # It has a family.
        opened.check_logits()
        opened.check_compared()
        log = Log(
            options.log or store.root / "recommend" / f"{model.name}.jsonl",
            _context(opened, backend),
        )
        yield f"log: {log.file}" + (f" ({len(log)} measurements in it already)" if len(log) else "")
        evaluator = ModelEvaluator(
            opened, store, backend, settings, log, minutes=options.minutes or math.inf,
            evaluations=options.evaluations or math.inf, progress=tell,
        )  # fmt: skip
        start = time.monotonic()
        candidates: list[Candidate] = []
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
        data = {
            "command": "recommend", "model": model.name, "max_kl": model.policy.behaviour.max_kl,
            "log": log.file, "candidates": list(map(_data, candidates)), "seconds": seconds,
        }  # fmt: skip
        if winner is None:
            return Failed(
                f"{model.name}: nothing that was measured passes every gate; add settings of more "
                "bits to the menu, or give the search more time.",
                data,
            )
        yield _saved(winner, single)
        compression = evaluator.compression(winner.choice)
        text = file.read_bytes().decode("utf-8-sig")
        new = rewritten(text, file, model.name, compression)
        if new == text:
            yield f"{file} has these settings already"
        elif options.write:
            yield from diff(text, new, file)
            save(file, new)
            yield f"{file} written"
        else:
            yield f"--write puts it into {file}"
    written = options.write and new != text
    return {**data, "best": _data(winner), "compression": compression, "written": written}


def _data(candidate: Candidate) -> dict[str, Any]:
    """A candidate; in place of its choice, whose keys are records, the bytes of each setting."""
    sizes: Counter[str] = Counter()
    for unit, setting in candidate.choice.items():
        sizes[setting] += unit.option(setting).size
    data = {key: value for key, value in vars(candidate).items() if key != "choice"}
    return {**data, "passed": candidate.passed, "settings": dict(sizes)}


def _check(model: Model) -> None:
    """Say why nothing can be recommended for a model, if so."""
    from pytest_ane.gates.registry import GATES

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
        for gate in (gate.name for gate in GATES.values() if gate.recordable):
            if shard.policy.requires_evidence(gate):
                raise ManifestError(
                    f"{shard.qualified}: policy.{gate} asks for what a device measured, which "
                    "candidates do not have; search without that requirement, and record evidence "
                    "of the result."
                )


def _context(opened: Any, backend: Any) -> dict[str, Any]:
    """What decides a measurement besides the candidate: the log is valid for these alone."""
    from pytest_ane.make.shard import BUILD_VERSION
    from pytest_ane.probes.recording import RECORDING_VERSION
    from pytest_ane.tools._recommend_evaluate import GATES_VERSION

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
