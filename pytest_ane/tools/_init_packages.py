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
from pytest_ane.mlprogram.text import printable, size_ratio
from pytest_ane.probes.domains import domains
from pytest_ane.probes.golden import read_golden
from pytest_ane.probes.inputs import COVERED, Domain

MODEL = "mine"
"""The model's name in the manifest."""
_INPUT = re.compile(r"(?:\d+\.)?in\.(.+)")
"""A probe's golden input, perhaps of one of several calls."""
_MOST_CALLS = 200
"""Calls over which probes surely draw every id of an input."""
_HEAD = """\
# Packages of yours, for pytest-ane. Check it with: pytest --co -q --ane-shards=all -m gate
# Complete it in your editor with the schema that 'pytest-ane schema' prints.
"""
_TAIL = f"""\
# Accept only what Core ML itself said on a Mac, then or now; pytest --ane-record keeps it:
# [models.{MODEL}.policy]
# placement.require = "plan"          # in place of "forecast"
# evidence = {{ os = ["macOS 26"], max-age = "90 days" }}
"""
_NO_REFERENCE = """\
# reference = "none" asks only that a package runs, with finite output that the input changes. Name
# the package before compression, or golden tensors such as of 'pytest-ane golden record', instead.
"""


def of_packages(
    packages: Sequence[Path], references: Sequence[str], manifest: Path
) -> tuple[str, tuple[str, ...], str]:
    """The text of a manifest, lines on each package, and what to run next.

    Args:
        packages: a shard each, whose id comes from the file's name.
        references: what each is compared with, in their order; empty for nothing.
        manifest: where it will be; paths in it are relative to that.

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
    folder, ids = manifest.absolute().parent, package_ids(packages)
    shards = [
        _Own(shard, path, _reference(path, text), folder)
        for shard, path, text in zip(
            ids, packages, references or ["none"] * len(packages), strict=True
        )
    ]
    unproven = _NO_REFERENCE if any(shard.reference is None for shard in shards) else ""
    parts = ("\n".join(shard.lines()) for shard in shards)
    text = "\n".join([_HEAD + unproven, *parts, _TAIL])
    parse(text, manifest)
    return text, tuple(shard.line for shard in shards), "next: pytest --ane-shards=all -m gate"


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
    """A shard's part of the manifest.

    Attributes:
        id: of the shard.
        package: as it was given.
        reference: what it is compared with; None for nothing.
        folder: the manifest's.
    """

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

    @cached_property
    def measurements(self) -> tuple[CompressionMeasurement, ...]:
        """The census of each function; none of a pipeline."""
        if isinstance(self.model, Pipeline):
            return ()
        shard = Shard(model=MODEL, id=self.id, artifact=self.package, reference="none")
        of = (shard.model_copy(update={"function": f.function or None}) for f in self.functions)
        artifact = Artifact(self.package)
        return tuple(measure(each, artifact, f) for each, f in zip(of, self.functions, strict=True))

    @cached_property
    def compression(self) -> Compression | None:
        """What the package's compression is, where the gate finds it so; else None."""
        if not self.measurements:
            return None
        assert isinstance(self.model, MLModel)
        found = claim(self.model)
        verdicts = (judge(m, CompressionPolicy(), "", found) for m in self.measurements)
        findings = (finding for verdict in verdicts for finding in verdict.findings)
        return None if any(f.severity == "failed" for f in findings) else found

    @property
    def ratio(self) -> float:
        """How much smaller than fp16 the package is, of its functions the least, rounded down."""
        ratios = (m.census.dense_bytes / (m.size - m.others) for m in self.measurements)
        return math.floor(100 * min(ratios, default=0.0)) / 100

    @property
    def line(self) -> str:
        """What was found, for people."""
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

    def lines(self) -> Iterator[str]:
        """The shard's tables, with comments on what was found."""
        here = ("models", MODEL, "shard", self.id)
        version = self.model.specification_version
        yield f"# {self._shown(self.line.partition(': ')[2])}, for iOS {_IOS.get(version, '26')}"
        yield from (f"# {self._shown(line)}" for line in self._interface())
        yield f"[{dotted(here)}]"
        yield f"artifact = {toml_text(self._relative(self.package))}"
        if self.reference is None:
            yield 'reference = "none"  # its numbers are compared with nothing'
        else:
            yield f"reference = {toml_text(self._relative(self.reference))}"
            if self.kinds and self.reference.suffix in GOLDEN:
                yield '# uncompressed = "..."  # the package before compression shows each error'
        yield ""
        yield from self._inputs(here)
        yield from self._compressed(here)

    def _shown(self, text: str) -> str:
        return printable(text)

    def _relative(self, path: Path) -> str:
        return Path(os.path.relpath(path.absolute(), self.folder)).as_posix()

    def _interface(self) -> Iterator[str]:
        for each in self.functions if not isinstance(self.model, Pipeline) else (self.model,):
            name = each.function if isinstance(each, MLModel) else ""
            yield from ([f"function {name}:"] if name else [])
            for what in ("inputs", "outputs", "states"):
                for feature in getattr(each, what):
                    yield f"  {what[:-1]} {feature.name}: {_form(feature)}"

    def _inputs(self, here: tuple[str, ...]) -> Iterator[str]:
        """Tables of inputs whose ids are too many to draw, and what to say of those unknown."""
        known: dict[str, tuple[Feature, Domain]] = {}
        for each in self.functions if not isinstance(self.model, Pipeline) else (self.model,):
            function = each.function or None if isinstance(each, MLModel) else None
            found = domains(each.inputs, {}, self.package, function=function)
            known = {f.name: (f, found[f.name]) for f in each.inputs} | known
        for name, (feature, domain) in known.items():
            table = dotted((*here, "inputs", name))
            if domain.count and domain.source == "derived" and _too_many(feature, domain.count):
                yield f"[{table}]  # {self._shown(domain.sentence)}"
                yield f'kind = "ids"\ncount = {domain.count}'
                yield "sample = true  # too many for probes to draw each of them\n"
            elif domain.count and domain.source == "default":
                yield "# Nothing in the program says what these integers may be. Until a table says"
                yield "# it they are drawn as 0 and 1, and a shard with a reference is unproven:"
                yield f'# [{table}]\n# kind = "ids"\n# count = 2\n'

    def _compressed(self, here: tuple[str, ...]) -> Iterator[str]:
        if not self.kinds:
            return
        table = dotted((*here, "compression"))
        if self.compression is None:
            yield f"# Found compressed: {self._shown(self.kinds)}."
            yield f"# No table says all of it, so there is no [{table}].\n"
        else:
            yield f"# As found: {self._shown(self.kinds)}"
            yield f"[{table}]"
            keys = setting_keys(self.compression)
            if keys.get("granularity") == "per_tensor":
                keys.pop("group_size", None)
            yield from (f"{key} = {toml_text(value)}" for key, value in keys.items())
            yield ""
        if self.ratio > 1:
            yield f"[{dotted((*here, 'policy', 'compression'))}]"
            yield f"min-ratio = {self.ratio:.2f}  # as found: times smaller than fp16\n"


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
    extents = [high or default for (_, high), default in zip(
        feature.ranges, feature.shape or (1,) * len(feature.ranges), strict=False
    )] or feature.shape  # fmt: skip
    return ids > COVERED or ids > _MOST_CALLS * math.prod(extents)
