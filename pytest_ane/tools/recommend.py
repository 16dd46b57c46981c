"""`pytest-ane recommend`: search the smallest compression that passes every gate."""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Any

from pytest_ane.cli.options import add_arithmetics, add_shared, positive
from pytest_ane.cli.output import Failed, Output, tell
from pytest_ane.manifest import Settings, parse
from pytest_ane.manifest.base import TOMLDecodeError, loads
from pytest_ane.manifest.compression import setting_keys
from pytest_ane.manifest.problems import dotted, toml_text
from pytest_ane.mlprogram.atomic import write_atomically
from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.project import process
from pytest_ane.project.choose import choose_model
from pytest_ane.project.models import OpenModel
from pytest_ane.project.project import read_project
from pytest_ane.report.table import columns
from pytest_ane.tools._recommend import ModelEvaluator, check_searchable, log_of, menu_of
from pytest_ane.tools._recommend_search import Candidate, best, recommend

EXAMPLE = "pytest-ane recommend smollm2 --minutes 30"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, its menu, and when to stop."""
    add = parser.add_argument
    add("model", nargs="?", help="of the manifest; may be left out if it has one")
    add_shared(parser, "manifest", "cache")
    add("--menu", type=Path, metavar="FILE", help="settings to choose from (TOML)")
    add("--log", type=Path, metavar="FILE", help="every number measured (default: in the cache)")
    add("--minutes", type=positive, help="begin nothing new after so long")
    add("--evaluations", type=positive, help="measure at most so many stacks")
    add("--write", action="store_true", help="put the result into the manifest")
    add_arithmetics(parser)
    add_shared(parser, "memory", "time")


def run(options: argparse.Namespace) -> Output:
    """Search the smallest compression of a model that passes every gate; write it with `--write`.

    It fails where no candidate passes.
    """
    process.choose()
    file = options.manifest or Path("shards.toml")
    project = read_project(file, options.cache, backend_name="cpu", arithmetic=options.arithmetic)
    model = choose_model(project.manifest, options.model)
    check_searchable(model)
    menu = menu_of(options.menu)
    with project.use():
        opened = project.model(model.name)
        assert isinstance(opened, OpenModel)  # It has a family.
        opened.check_logits()
        opened.check_compared()
        log = log_of(options.log, opened, project.cache, project.backend)
        yield f"log: {log.file}, {len(log)} measurements in it"
        evaluator = ModelEvaluator(
            opened, project.cache, menu, log,
            minutes=options.minutes or math.inf, evaluations=options.evaluations or math.inf,
        )  # fmt: skip
        start, limit = time.monotonic(), model.policy.behaviour.max_kl
        candidates: list[Candidate] = []
        for candidate in recommend(evaluator, limit):
            tell("")
            candidates.append(candidate)
            yield line(candidate)
        tell("")
        winner, seconds = best(candidates), time.monotonic() - start
        yield from ("", *table(candidates, winner), "")
        yield (
            f"{evaluator.measured} whole models measured in {seconds / 60:.1f} minutes "
            f"({project.backend.name})"
        )
        data = {
            "command": "recommend", "model": model.name, "max_kl": limit, "log": log.file,
            "candidates": list(map(_data, candidates)), "seconds": seconds,
        }  # fmt: skip
        if winner is None:
            return Failed(
                f"{model.name}: nothing that was measured passes every gate; add settings of more "
                "bits to the menu, or give the search more time.",
                data,
            )
        saved = f"recommended: {winner.name}, {_mb(winner)} MB, passed every gate here"
        single = best([c for c in candidates if len(set(c.choice.values())) == 1])
        if single is not None and single is not winner:
            less = 1 - winner.size / single.size
            saved += f"; {less:.1%} smaller than {single.name} for all ({_mb(single)} MB)"
        yield saved
        compression = evaluator.compression(winner.choice)
        text = file.read_bytes().decode("utf-8-sig")
        new = rewritten(text, file, model.name, compression)
        if new == text:
            yield f"{file} has these settings already"
        elif options.write:
            names = str(file), f"{file} (recommended)"
            yield from unified_diff(text.splitlines(), new.splitlines(), *names, lineterm="")
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


_HEAD: tuple[str, ...] = ("candidate", "MB", "cosine", "top-1", "KL", "centred", "verdict")
_FORMS = {"cosine": ".4f", "top1": ".1%", "kl": ".4f", "centred_cosine.min": ".4f"}


def table(candidates: Sequence[Candidate], marked: Candidate | None) -> Iterator[str]:
    """Lines of the table, smallest first; the recommended one is marked."""
    rows = [_HEAD]
    for c in sorted(candidates, key=lambda c: c.size):
        facts = {**c.facts, "kl": c.kl}
        values = ((facts.get(name, math.nan), form) for name, form in _FORMS.items())
        figures = ("-" if math.isnan(value) else format(value, form) for value, form in values)
        rows.append((c.name, _mb(c), *figures, f"{c.status}{', recommended' * (c is marked)}"))
    yield from columns(rows, last=True)


def line(candidate: Candidate) -> str:
    """`mixed 3: 105.1 MB, KL 0.0381, passed`, or the first reason why not."""
    kl = "" if math.isnan(candidate.kl) else f", KL {candidate.kl:.4f}"
    reasons = candidate.reasons
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    why = f": {reasons[0]}{more}" if reasons else ""
    return f"{candidate.name}: {_mb(candidate)} MB{kl}, {candidate.status}{why}"


def _mb(candidate: Candidate) -> str:
    return f"{candidate.size / 1e6:.1f}"


def rewritten(text: str, file: Path, model: str, wanted: Mapping[str, Settings]) -> str:
    """A manifest's text with other compression for a model's shards, by id.

    The compression that most shards have becomes the model's, others get a table of their own.
    Other lines, comments and their order stay. The new text has to say exactly what was meant:
    `ManifestError` where the layout has no place.
    """
    before = parse(text, file)
    one = before.model_of(model)
    shards = tuple(s.model_copy(update={"compression": wanted[s.id]}) for s in one.shards)
    changed = one.model_copy(update={"shards": shards})
    models = tuple(changed if each is one else each for each in before.models)
    meant = before.model_copy(update={"models": models})
    if meant == before:
        return text
    tables = _tables(model, wanted)
    try:
        new = _replaced(text, model, tables)
        if parse(new, file) == meant:
            return new
    except ManifestError:
        pass
    raise ManifestError(
        f"{file}: the compression of {model} cannot be changed in place; replace its compression "
        f"tables by hand with:\n{tables}"
    )


def save(file: Path, text: str) -> None:
    """Replace a manifest's text at once, or `ManifestError`; a link stays one."""
    try:
        write_atomically(file.resolve(), text.encode())
    except OSError as error:
        raise ManifestError(f"{file} cannot be written: {error.strerror}.") from None


def _tables(model: str, wanted: Mapping[str, Settings]) -> str:
    forms = {shard: setting.model_dump_json() for shard, setting in wanted.items()}
    common = Counter(forms.values()).most_common(1)[0][0]
    main = setting_keys(next(s for shard, s in wanted.items() if forms[shard] == common))
    tables: dict[tuple[str, ...], dict[str, Any]] = {("models", model): main}
    for shard, setting in wanted.items():
        if forms[shard] != common:
            keys = setting_keys(setting)
            if setting.method == main["method"]:
                # What the table above says is said again, if only to be the default.
                dumped = setting.model_dump(mode="json")
                keys |= {key: dumped[key] for key in main if key not in keys}
            tables["models", model, "shard", shard] = keys
    return "\n".join(
        f"[{dotted((*path, 'compression'))}]\n" + "".join(_lines(keys))
        for path, keys in tables.items()
    )


def _lines(keys: Mapping[str, Any]) -> Iterator[str]:
    for key, value in keys.items():
        if key == "overrides" and value:
            tables = "".join(f"    {toml_text(each)},\n" for each in value)
            yield f"{key} = [\n{tables}]\n"
        elif value is not None:
            yield f"{key} = {toml_text(value)}\n"


def _replaced(text: str, model: str, tables: str) -> str:
    """The text with these tables where the model's were, else below it; comment lines stay."""
    kept: list[str] = []
    header: tuple[str, ...] = ()
    place, below, goes = None, None, False
    for line in text.splitlines(keepends=True):
        if not line.strip() or line.lstrip().startswith("#"):
            kept.append(line)
            continue
        # A line without a key goes on with the value before it.
        if path := _path(line):
            if is_header := line.lstrip().startswith("["):
                header = path
            path = path if is_header else (*header, *path)
            goes = path[:2] == ("models", model) and "compression" in (*path[2:3], *path[4:5])
            if path == ("models", model, "compression") and is_header:
                place = len(kept)
        if not goes:
            kept.append(line)
            below = len(kept) if header == ("models", model) else below
    if place is None:
        place, tables = len(kept) if below is None else below, f"\n{tables}"
    after = kept[place:]
    return "".join((*kept[:place], tables, *["\n" for line in after[:1] if line.strip()], *after))


def _path(line: str) -> tuple[str, ...]:
    try:
        is_header = line.lstrip().startswith("[")
        table: Any = loads(line if is_header else f"{line.partition('=')[0]} = 0")
    except TOMLDecodeError:
        return ()
    path: list[str] = []
    while table and isinstance(table, dict | list):
        if isinstance(table, dict):
            ((key, table),) = table.items()
            path.append(key)
        else:
            table = table[0]
    return tuple(path)
