"""`pytest-ane recommend`: search the smallest compression that passes every gate."""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ane.cli.options import add_arithmetics, add_budget, add_project, positive
from pytest_ane.cli.output import Failed, Output, tell

if TYPE_CHECKING:
    from pytest_ane.tools._recommend_search import Candidate

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
    from pytest_ane.tools import _recommend as found
    from pytest_ane.tools._recommend_manifest import diff, rewritten, save
    from pytest_ane.tools._recommend_search import best, best_single, recommend

    file = options.manifest or Path("shards.toml")
    project = read_project(file, options.cache, backend_name="cpu", arithmetic=options.arithmetic)
    model = choose_model(project.manifest, options.model)
    found.check_searchable(model)
    settings = found.menu_of(options.menu)
    cache, backend = project.cache, project.backend
    with project.use():
        opened = project.model(model.name)
        assert isinstance(opened, OpenModel)  # It has a family.
        opened.check_logits()
        opened.check_compared()
        log = found.log_of(options.log, opened, cache, backend)
        yield f"log: {log.file}" + (f" ({len(log)} measurements in it already)" if len(log) else "")
        evaluator = found.ModelEvaluator(
            opened, cache, backend, settings, log, minutes=options.minutes or math.inf,
            evaluations=options.evaluations or math.inf, progress=tell,
        )  # fmt: skip
        start = time.monotonic()
        candidates: list[Candidate] = []
        for candidate in recommend(evaluator, model.policy.behaviour.max_kl):
            tell("")
            candidates.append(candidate)
            yield found.line(candidate)
        tell("")
        winner, seconds = best(candidates), time.monotonic() - start
        yield from ("", *found.table(candidates, winner), "")
        old = len(candidates) - evaluator.measured
        yield (
            f"{evaluator.measured} whole models measured in {seconds / 60:.1f} minutes "
            f"({backend.name})" + (f"; {old} more were in the log" if old > 0 else "")
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
        yield found.saved(winner, best_single(candidates))
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
