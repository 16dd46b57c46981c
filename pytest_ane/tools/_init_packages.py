"""`pytest-ane init --package`: a manifest of packages as they are found."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from pytest_ane.gates.compression import judge, measure
from pytest_ane.make.outcome import claim
from pytest_ane.make.record import Artifact
from pytest_ane.manifest import GOLDEN, Shard, package_ids, parse
from pytest_ane.manifest.compression import setting_keys
from pytest_ane.manifest.policy import CompressionPolicy
from pytest_ane.manifest.problems import dotted, toml_text
from pytest_ane.mlprogram.digests import tree_bytes, tree_digest
from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.mlprogram.model import SUFFIXES, counterpart, entry_points, read_any, read_model
from pytest_ane.mlprogram.records import Feature, MLModel, Pipeline
from pytest_ane.mlprogram.text import printable, size_ratio
from pytest_ane.probes.domains import domains
from pytest_ane.probes.golden import read_golden
from pytest_ane.probes.inputs import COVERED, Domain


class Made(NamedTuple):
    """A manifest to be written, lines for the person, the same as data, and files beside it."""

    text: str
    lines: tuple[str, ...]
    facts: Mapping[str, Any]
    files: Mapping[str, bytes] = MappingProxyType({})


def render(template: str, **values: object) -> str:
    """A file of `templates`, whose filter `quoted` writes a TOML string."""
    environment = Environment(
        loader=PackageLoader("pytest_ane.tools"), trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True, autoescape=False, undefined=StrictUndefined,
    )  # fmt: skip
    environment.filters |= {"printable": printable, "quoted": quoted}
    return environment.get_template(template).render(values)


def quoted(text: str) -> str:
    """A TOML string; `ManifestError` for a character that no TOML file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ManifestError(
            f"{printable(text)}: its name is no valid text, which shards.toml could not hold; "
            "rename it."
        ) from None
    escaped = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped)


MODEL = "mine"
"""The model's name in the manifest."""
_INPUT = re.compile(r"(?:\d+\.)?in\.(.+)")
"""A probe's golden input, perhaps of one of several calls."""
_MOST_CALLS = 200
"""Calls over which probes surely draw every id of an input."""
_IOS = {6: "15", 7: "16", 8: "17", 9: "18"}
"""Deployment targets by specification version."""


def of_packages(
    packages: Sequence[Path],
    references: Sequence[str],
    manifest: Path,
    ids: Sequence[str] = (),
    alone: Sequence[str] = (),
) -> Made:
    """A manifest of packages, a shard each, with a line on each and what to run next.

    Shards are called as `ids` says, else after their packages; those of `alone` are their own
    uncompressed form.
    """
    if references and len(references) != len(packages):
        raise ManifestError(
            f"{len(packages)} --package and {len(references)} --reference were given; give one for "
            "each package, in their order, 'none' among them."
        )
    for package in packages:
        if not package.exists():
            raise ManifestError(f"--package {package}: no such package; check the path.")
    texts, folder = references or ["none"] * len(packages), manifest.absolute().parent
    shards = [
        _shard(shard, path, _reference(path, text), folder) | {"alone": shard in alone}
        for shard, path, text in zip(ids or package_ids(packages), packages, texts, strict=True)
    ]
    text = render("packages.toml.jinja", shards=shards)
    parse(text, manifest)
    lines = tuple(f"{MODEL}:{shard['id']}: {shard['summary']}" for shard in shards)
    return Made(text, (*lines, "next: pytest --ane-shards=all -m gate"), {"packages": lines})


def _reference(package: Path, text: str) -> Path | None:
    if text == "none":
        return None
    path = Path(text)
    if not path.exists():
        raise ManifestError(f"--reference {text} does not exist; check the path, or say 'none'.")
    functions = entry_points(package) or (None,)
    mine = [read_any(package, weights=False, function=each) for each in functions]
    if path.suffix in GOLDEN:
        golden = read_golden(path)
        if golden.hidden:
            raise ManifestError(
                f"--reference {path}: holds hidden states of a family's shard; record the "
                "package's own inputs and outputs: pytest-ane golden record PACKAGE --out FILE."
            )
        found = (_INPUT.fullmatch(name) for probe in golden.probes for name in probe)
        names = {match[1] for match in found if match}
        known = [{feature.name for feature in model.inputs} for model in mine]
        if not any(names <= each for each in known):
            _refuse(text, package, names, set().union(*known))
        return path
    if path.suffix not in SUFFIXES:
        raise ManifestError(
            f"--reference {text}: must be a .mlpackage, a .mlmodelc, golden .safetensors or .npz, "
            "or 'none'."
        )
    if tree_digest(path) == tree_digest(package):
        raise ManifestError(
            f"--reference {text} is the package itself, so comparing proves nothing; name an "
            "uncompressed package, or 'none'."
        )
    for function, model in zip(functions, mine, strict=True):
        other = read_any(path, weights=False, function=counterpart(path, function))
        ports, others = ({f.name for f in (*m.inputs, *m.outputs)} for m in (model, other))
        if ports != others:
            _refuse(text, package, others, ports)
    return path


def _refuse(reference: str, package: Path, has: set[str], needs: set[str]) -> None:
    raise ManifestError(
        f"--reference {reference}: has {', '.join(sorted(has))}, but {package} has "
        f"{', '.join(sorted(needs))}; name golden tensors of this package, or the same program."
    )


def _shard(shard: str, package: Path, reference: Path | None, folder: Path) -> dict[str, Any]:
    model = read_any(package)
    entries: list[MLModel | Pipeline] = [model]
    functions = [*model.programs.values()] if isinstance(model, Pipeline) else [model]
    measured, claimed = [], None
    if isinstance(model, MLModel):
        names = entry_points(package)
        functions = [read_model(package, function=each) for each in names] or [model]
        entries = [*functions]
        subject = Shard(model=MODEL, id=shard, artifact=package, reference="none")
        for each in functions:
            own = subject.model_copy(update={"function": each.function or None})
            measured.append(measure(own, Artifact(package), each))
        claimed = claim(model)
        verdicts = [judge(each, CompressionPolicy(), "", claimed) for each in measured]
        if any(f.severity == "failed" for verdict in verdicts for f in verdict.findings):
            claimed = None
    weights = {w for each in measured for w in each.census.weights if w.stages}
    counts = Counter(f"{w.nbits} bits ({w.storage})" for w in weights)
    ratios = (each.census.dense_bytes / (each.size - each.others) for each in measured)
    ratio = math.floor(100 * min(ratios, default=0.0)) / 100
    ops = sum(op.op != "const" for each in functions for op in each.main.walk())
    several = f" in {len(functions)} programs" if len(functions) > 1 else ""
    how = size_ratio(ratio) if weights else "nothing compressed"
    keys = setting_keys(claimed) if claimed is not None else {}
    if keys.get("granularity") == "per_tensor":
        keys.pop("group_size", None)

    def relative(path: Path) -> str:
        return toml_text(Path(os.path.relpath(path.absolute(), folder)).as_posix())

    return {
        "id": shard,
        "summary": f"{ops:,} operations{several}, {tree_bytes(package):,} bytes, {how}",
        "system": _IOS.get(model.specification_version, "26"),
        "table": lambda *keys: dotted(("models", MODEL, "shard", shard, *keys)),
        "artifact": relative(package),
        "reference": reference and relative(reference),
        "golden": reference is not None and reference.suffix in GOLDEN,
        "interface": [*_interface(entries)],
        "ids": [*_ids(package, entries)],
        "kinds": ", ".join(f"{number} weights of {kind}" for kind, number in counts.items()),
        "compression": {key: toml_text(value) for key, value in keys.items()},
        "ratio": ratio,
    }


def _interface(entries: Sequence[MLModel | Pipeline]) -> Iterator[str]:
    for each in entries:
        if isinstance(each, MLModel) and each.function:
            yield f"function {each.function}:"
        for what in ("inputs", "outputs", "states"):
            for feature in getattr(each, what):
                yield f"  {what[:-1]} {feature.name}: {_form(feature)}"


def _form(feature: Feature) -> str:
    """`fp16 [1, 8, 1, 1], from [1, 8, 1, 1] to [1, 8, 1, 64]`."""
    kind = f"image {feature.color}" if feature.kind == "image" else feature.dtype
    text = f"{kind} {list(feature.shape) if feature.shape else 'of any shape'}"
    if feature.enumerated:
        return f"{text}, one of {len(feature.enumerated)} shapes"
    if any(low != high for low, high in feature.ranges):
        low, high = ([r[i] for r in feature.ranges] for i in (0, 1))
        top = ", ".join("any" if extent is None else str(extent) for extent in high)
        return f"{text}, from {low} to [{top}]"
    return text


def _ids(package: Path, models: Sequence[MLModel | Pipeline]) -> Iterator[tuple[str, Domain, bool]]:
    seen: set[str] = set()
    for each in models:
        function = each.function or None if isinstance(each, MLModel) else None
        found = domains(each.inputs, {}, package, function=function)
        for feature in each.inputs:
            domain = found[feature.name]
            if not domain.count or feature.name in seen:
                continue
            seen.add(feature.name)
            defaults = feature.shape or (1,) * len(feature.ranges)
            most = [high or d for (_, high), d in zip(feature.ranges, defaults, strict=False)]
            drawn = min(COVERED, _MOST_CALLS * math.prod(most or feature.shape))
            if domain.source == "default" or (domain.source == "derived" and domain.count > drawn):
                yield feature.name, domain, domain.source == "derived"
