"""The manifest that `init --package` writes: of packages as they are found."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pytest_ane.gates.compression import judge, measure
from pytest_ane.gates.compression.measure import CompressionMeasurement
from pytest_ane.make.outcome import claim
from pytest_ane.make.record import Artifact
from pytest_ane.manifest import GOLDEN, Compression, Shard, package_ids, parse
from pytest_ane.manifest.compression import setting_keys
from pytest_ane.manifest.policy import CompressionPolicy
from pytest_ane.manifest.problems import dotted, toml_text
from pytest_ane.mlprogram.digests import tree_bytes, tree_digest
from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.mlprogram.model import counterpart, entry_points, read_any, read_model
from pytest_ane.mlprogram.records import Feature, MLModel, Pipeline
from pytest_ane.mlprogram.text import size_ratio
from pytest_ane.probes.domains import domains
from pytest_ane.probes.golden import read_golden
from pytest_ane.probes.inputs import COVERED, Domain
from pytest_ane.tools._init_text import Made, render

MODEL = "mine"
"""The model's name in the manifest."""
_INPUT = re.compile(r"(?:\d+\.)?in\.(.+)")
"""A probe's golden input, perhaps of one of several calls."""
_MOST_CALLS = 200
"""Calls over which probes surely draw every id of an input."""


def of_packages(packages: Sequence[Path], references: Sequence[str], manifest: Path) -> Made:
    """A manifest of packages, a shard each, with a line on each and what to run next.

    Raises:
        ManifestError: references are not as many as packages, or are none of theirs.
        ProgramError: a package cannot be read.
    """
    if references and len(references) != len(packages):
        raise ManifestError(
            f"{len(packages)} --package and {len(references)} --reference were given; give one for "
            "each package, in their order, 'none' among them."
        )
    for package in packages:
        if not package.exists():
            raise ManifestError(f"--package {package}: no such package; check the path.")
    texts = references or ["none"] * len(packages)
    shards = [
        _Own(shard, path, _reference(path, text), manifest.absolute().parent)
        for shard, path, text in zip(package_ids(packages), packages, texts, strict=True)
    ]
    text = render("packages.toml.jinja", shards=shards, golden=GOLDEN)
    parse(text, manifest)
    lines = tuple(shard.line for shard in shards)
    return Made(text, (*lines, "next: pytest --ane-shards=all -m gate"), {"packages": lines})


def _reference(package: Path, text: str) -> Path | None:
    """What a package is compared with, if it can be; None for nothing."""
    if text == "none":
        return None
    path = Path(text)
    if not path.exists():
        raise ManifestError(f"--reference {text} does not exist; check the path, or say 'none'.")
    if path.suffix in GOLDEN:
        _check_golden(path, package)
        return path
    if path.suffix not in (".mlpackage", ".mlmodelc"):
        raise ManifestError(
            f"--reference {text}: must be a .mlpackage, a .mlmodelc, golden .safetensors or .npz, "
            "or 'none'."
        )
    if tree_digest(path) == tree_digest(package):
        raise ManifestError(
            f"--reference {text} is the package itself, so comparing proves nothing; name an "
            "uncompressed package, or 'none'."
        )
    for function in entry_points(package) or (None,):
        mine = read_any(package, weights=False, function=function)
        other = read_any(path, weights=False, function=counterpart(path, function))
        for what in ("inputs", "outputs"):
            names, others = ({f.name for f in getattr(m, what)} for m in (mine, other))
            if names != others:
                raise ManifestError(
                    f"--reference {text}: has the {what} {', '.join(sorted(others))}, but "
                    f"{package} has {', '.join(sorted(names))}; name a package of the same program."
                )
    return path


def _check_golden(path: Path, package: Path) -> None:
    """Refuse golden tensors that cannot be read, or are not of a package's inputs."""
    golden = read_golden(path)
    if golden.hidden:
        raise ManifestError(
            f"--reference {path}: holds hidden states of a family's shard; record the package's "
            "own inputs and outputs: pytest-ane golden record PACKAGE --out FILE."
        )
    named = (_INPUT.fullmatch(name) for probe in golden.probes for name in probe)
    inputs = {match[1] for match in named if match}
    models = [
        read_any(package, weights=False, function=f) for f in entry_points(package) or (None,)
    ]
    known = [{feature.name for feature in model.inputs} for model in models]
    if not any(inputs <= names for names in known):
        raise ManifestError(
            f"--reference {path}: has the inputs {', '.join(sorted(inputs))}, but {package} has "
            f"{', '.join(sorted(set().union(*known)))}; name golden tensors of this package."
        )


@dataclass(frozen=True)
class _Own:
    """A shard's part of the manifest, which lies in `folder`; `reference` None for nothing."""

    id: str
    package: Path
    reference: Path | None
    folder: Path

    @cached_property
    def model(self) -> MLModel | Pipeline:
        return read_any(self.package)

    @cached_property
    def functions(self) -> tuple[MLModel, ...]:
        """Its ML Programs: each function of several, each part of a pipeline."""
        if isinstance(self.model, Pipeline):
            return tuple(self.model.programs.values())
        names = entry_points(self.package)
        return tuple(read_model(self.package, function=name) for name in names) or (self.model,)

    @property
    def entries(self) -> tuple[MLModel | Pipeline, ...]:
        """What is called, with inputs and outputs of its own."""
        return (self.model,) if isinstance(self.model, Pipeline) else self.functions

    @cached_property
    def measurements(self) -> tuple[CompressionMeasurement, ...]:
        """The census of each function; none of a pipeline."""
        if isinstance(self.model, Pipeline):
            return ()
        shard = Shard(model=MODEL, id=self.id, artifact=self.package, reference="none")
        return tuple(
            measure(
                shard.model_copy(update={"function": f.function or None}), Artifact(self.package), f
            )
            for f in self.functions
        )

    @cached_property
    def compression(self) -> Compression | None:
        """What the package's compression is, where the gate finds it so; else None."""
        if not self.measurements:
            return None
        assert isinstance(self.model, MLModel)
        found = claim(self.model)
        verdicts = (judge(m, CompressionPolicy(), "", found) for m in self.measurements)
        failed = any(f.severity == "failed" for verdict in verdicts for f in verdict.findings)
        return None if failed else found

    @property
    def ratio(self) -> float:
        """How much smaller than fp16 the package is, of its functions the least, rounded down."""
        ratios = (m.census.dense_bytes / (m.size - m.others) for m in self.measurements)
        return math.floor(100 * min(ratios, default=0.0)) / 100

    @property
    def line(self) -> str:
        ops = sum(op.op != "const" for each in self.functions for op in each.main.walk())
        size = tree_bytes(self.package)
        how = size_ratio(self.ratio) if self.kinds else "nothing compressed"
        several = f" in {len(self.functions)} programs" if len(self.functions) > 1 else ""
        return f"{MODEL}:{self.id}: {ops:,} operations{several}, {size:,} bytes, {how}"

    @cached_property
    def kinds(self) -> str:
        """How weights are stored, `5 weights with 4 bits, ...`; empty where none is compressed."""
        weights = {w for m in self.measurements for w in m.census.weights if w.stages}
        counts = Counter(f"{w.nbits} bits ({w.storage})" for w in weights)
        return ", ".join(f"{number} weights of {kind}" for kind, number in counts.items())

    @property
    def system(self) -> str:
        """The iOS that it is for."""
        return _IOS.get(self.model.specification_version, "26")

    def table(self, *keys: str) -> str:
        return dotted(("models", MODEL, "shard", self.id, *keys))

    def relative(self, path: Path) -> str:
        return toml_text(Path(os.path.relpath(path.absolute(), self.folder)).as_posix())

    def interface(self) -> Iterator[str]:
        for each in self.entries:
            name = each.function if isinstance(each, MLModel) else ""
            yield from ([f"function {name}:"] if name else [])
            for what in ("inputs", "outputs", "states"):
                for feature in getattr(each, what):
                    yield f"  {what[:-1]} {feature.name}: {_form(feature)}"

    def ids(self) -> Iterator[tuple[str, Domain, bool]]:
        """Inputs of ids that are too many to draw, and of integers of which nothing is known."""
        known: dict[str, tuple[Feature, Domain]] = {}
        for each in self.entries:
            function = each.function or None if isinstance(each, MLModel) else None
            found = domains(each.inputs, {}, self.package, function=function)
            known = {f.name: (f, found[f.name]) for f in each.inputs} | known
        for name, (feature, domain) in known.items():
            if domain.count and domain.source == "derived" and _too_many(feature, domain.count):
                yield name, domain, True
            elif domain.count and domain.source == "default":
                yield name, domain, False

    def compression_keys(self) -> list[tuple[str, str]]:
        """The keys of the table of compression, as TOML writes them."""
        assert self.compression is not None
        keys = setting_keys(self.compression)
        if keys.get("granularity") == "per_tensor":
            keys.pop("group_size", None)
        return [(key, toml_text(value)) for key, value in keys.items()]


_IOS = {6: "15", 7: "16", 8: "17", 9: "18"}
"""Deployment targets by specification version."""


def _form(feature: Feature) -> str:
    """`fp16 [1, 8, 1, 1] up to [1, 8, 1, 64]`."""
    if feature.kind == "image":
        return f"image {feature.color} {list(feature.shape)}"
    text = f"{feature.dtype} {list(feature.shape) if feature.shape else 'of any shape'}"
    if feature.enumerated:
        return f"{text}, one of {len(feature.enumerated)} shapes"
    if any(low != high for low, high in feature.ranges):
        low, high = ([r[i] for r in feature.ranges] for i in (0, 1))
        top = ", ".join("any" if extent is None else str(extent) for extent in high)
        return f"{text}, from {low} to [{top}]"
    return text


def _too_many(feature: Feature, ids: int) -> bool:
    """Whether the probes will not draw every id."""
    defaults = feature.shape or (1,) * len(feature.ranges)
    extents = [high or d for (_, high), d in zip(feature.ranges, defaults, strict=False)]
    return ids > COVERED or ids > _MOST_CALLS * math.prod(extents or feature.shape)
