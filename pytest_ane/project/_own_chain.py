"""A chain of the user's own packages, as the manifest writes it: what a family is elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

import pytest_ane
from pytest_ane.backends import Backend, CpuBackend, Runner
from pytest_ane.make import Artifact, Cache
from pytest_ane.manifest import GOLDEN, Model, Shard
from pytest_ane.manifest.chain import FIRST, LOGITS, ChainEntry
from pytest_ane.manifest.ids import without_function
from pytest_ane.manifest.inputs import questions
from pytest_ane.mlprogram.arrays import Array, FloatArray
from pytest_ane.mlprogram.digests import content_digest, digests, key_digest, tree_digest
from pytest_ane.mlprogram.errors import BuildError, GoldenError, SourceError, UnprovenError
from pytest_ane.mlprogram.model import counterpart, read_model
from pytest_ane.mlprogram.pairing import program_digest
from pytest_ane.models.chain import Chain, ChainStep, lead, likeliest_token
from pytest_ane.models.families import LanguageModel, Reference, Wire
from pytest_ane.models.families.own import code_digests, running
from pytest_ane.models.sources import RowTable, open_rows
from pytest_ane.models.sources.base import Tokenizer
from pytest_ane.models.sources.files import COMPANIONS
from pytest_ane.models.sources.tokenizer import read_tokenizer
from pytest_ane.probes.domains import domains
from pytest_ane.probes.exact_chain import GoldenPrompt
from pytest_ane.probes.recording import RECORDING_VERSION, TokenPrompt, check_finite, load, save
from pytest_ane.project._package_chain import PackageLayout, ShardSequence
from pytest_ane.project.models import SPELLERS, OpenModel


class OwnReference:
    """A function of the user's from token ids to logits, and perhaps to each shard's outputs."""

    def __init__(self, model: Model) -> None:
        assert isinstance(model.reference, str)
        self._target = model.reference
        self._label = f"{model.name}: reference {self._target!r}"

    def logits(self, ids: Sequence[int]) -> FloatArray:
        """Float32 logits `[T, V]` of a text; `BuildError` where the function fails."""
        logits = self._answer(ids).get(LOGITS)
        if logits is None or logits.ndim != 2 or len(logits) != len(ids):
            shape = "nothing" if logits is None else list(logits.shape)
            raise BuildError(
                f"{self._label} gave logits of the shape {shape} for {len(ids)} tokens; return "
                f"[{len(ids)}, V]."
            )
        return logits

    def states(self, prompt: TokenPrompt) -> dict[str, FloatArray]:
        """Each shard's outputs `[T, C]` side by side, of the shards that the function tells."""
        return {name: rows for name, rows in self._answer(prompt.ids).items() if name != LOGITS}

    def _answer(self, ids: Sequence[int]) -> dict[str, FloatArray]:
        with running(self._target, self._label) as function:
            answer = function(list(ids))
            tables = answer if isinstance(answer, dict) else {LOGITS: answer}
            return {name: _rows(value) for name, value in tables.items()}


class GoldenLogits:
    """Logits of the golden prompts, and perhaps outputs of shards, in a safetensors file.

    Of each prompt `{prompt}.logits [T + n, V]`: after the prompt's own T rows those of the n
    likeliest tokens, one after another. `{prompt}.ids [T]` are checked where they are there, and
    `{prompt}/{shard} [T, C]` are a shard's outputs, side by side.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def states(self, prompt: TokenPrompt) -> dict[str, FloatArray]:
        """Each shard's outputs `[T, C]`, of those that are in the file."""
        prefix = f"{prompt.name}/"
        names = [name for name in self._tensors if name.startswith(prefix)]
        return {name.removeprefix(prefix): self._tensor(name) for name in names}

    def prompt(
        self, prompt: TokenPrompt, greedy: int, decode: Callable[[Sequence[int]], str]
    ) -> GoldenPrompt:
        """A golden prompt with what the file says of it, or `GoldenError`."""
        label = f"{self._path}: {prompt.name!r}"
        ids, count = f"{prompt.name}.ids", len(prompt.ids)
        if ids in self._tensors and tuple(self._tensor(ids).astype(int)) != prompt.ids:
            raise GoldenError(f"{label} is of other token ids; record it again.")
        logits = self._tensor(f"{prompt.name}.logits")
        if logits.ndim != 2 or len(logits) < count or not np.isfinite(logits).all():
            raise GoldenError(
                f"{label} has logits {list(logits.shape)}; they must be finite, [T + n, V], with "
                f"T = {count}."
            )
        rows = logits[count - 1 :][:greedy]
        if len(rows) < greedy:
            raise GoldenError(
                f"{label} has logits for {len(rows)} greedy tokens, and greedy = {greedy} asks for "
                "more; record more rows, or ask for fewer."
            )
        tokens = tuple(map(likeliest_token, rows))
        leads = tuple(map(lead, rows))
        return GoldenPrompt(prompt.name, prompt.ids, logits[:count], tokens, leads, decode(tokens))

    def _tensor(self, name: str) -> FloatArray:
        if name not in self._tensors:
            raise GoldenError(f"{self._path}: has no tensor {name!r}; record it again.")
        return np.asarray(self._tensors[name], np.float32)

    @cached_property
    def _tensors(self) -> dict[str, Array]:
        try:
            return load_file(self._path)
        except FileNotFoundError:
            raise GoldenError(f"{self._path}: no such file; check the chain's reference.") from None
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise GoldenError(f"{self._path}: cannot be read ({error}).") from None


def _rows(value: Any) -> FloatArray:
    if isinstance(value, dict):
        return np.concatenate([_rows(each) for each in value.values()], axis=1)
    if hasattr(value, "detach"):
        value = value.detach().float().numpy()
    return np.asarray(value, np.float32)


_SAME_FUNCTION = 0.02
"""Relative L2 above which a package is another function, as `max-algebra` has it: weights in fp16
and another order of sums stay at a tenth of it."""


class PackageChain:
    """The packages of a chain as a `LanguageModel`: nothing of it is built or converted."""

    missing: Sequence[str] = ()

    def __init__(self, model: Model) -> None:
        self._model = model
        self._shards = {without_function(shard.id)[0]: shard for shard in model.shards}

    @property
    def description(self) -> dict[str, Any]:
        """How many tokens there are, where the embedding is a table."""
        return {"vocabulary": self._table.height} if self._table is not None else {}

    @property
    def positions(self) -> int:
        """The longest sequence: the context of states, and one call of what sees its call only."""
        longest = [layout.most for layout in self._layouts.values() if layout.sees == "call"]
        return min([self._model.context, *longest])

    @property
    def vocabulary(self) -> int:
        """How many logits the chain gives for a position."""
        return sum(
            width
            for layout in self._layouts.values()
            for (_, stream, _), width in zip(layout.outputs, layout.branches, strict=True)
            if stream == LOGITS
        )

    @cached_property
    def wiring(self) -> tuple[Wire, ...]:
        return tuple(layout.wire() for layout in self._layouts.values())

    def layout(self, shard: str) -> PackageLayout:
        return self._layouts[shard]

    def embed(self, ids: Sequence[int]) -> FloatArray:
        """Rows `[T, C]` of the embedding; the ids themselves, `[T, 1]`, where there is none."""
        if self._table is None:
            return np.asarray(ids, np.float32).reshape(-1, 1)
        return self._table.rows(ids)

    def reference(self, shard: str) -> Reference:
        """The shard's reference package in float32 on this machine, or `UnprovenError`."""
        layout = self._reference_layouts[shard]
        runner = layout.load(CpuBackend("float32"), self._package(shard))

        def run(sequences: Sequence[FloatArray]) -> list[FloatArray]:
            return [ShardSequence(runner, layout, layout.most)(each) for each in sequences]

        return run

    def check_rows(self, shard: str, rows: FloatArray, prompt: str) -> None:
        """Raise `SourceError` where a reference's outputs of a shard have not its shape."""
        known = {name: sum(layout.branches) for name, layout in self._layouts.items()}
        if rows.ndim != 2 or rows.shape[1] != known.get(shard):
            shapes = ", ".join(f"{name} [T, {width}]" for name, width in known.items())
            raise SourceError(
                f"{self._model.name}: the reference tells outputs of {shard!r} of the shape "
                f"{list(rows.shape)} for the prompt {prompt!r}; the chain has {shapes}."
            )

    def check_place(
        self, shard: str, entering: Sequence[FloatArray], told: Sequence[FloatArray]
    ) -> None:
        """Check that the chain leads to a shard what the reference has there.

        Its uncompressed package, given what enters it by the chain, gives what the reference tells
        of it; else the chain, or that package, is another function: `UnprovenError`.
        """
        if not self._stands_for(shard):
            return
        own = self.reference(shard)(entering)
        error, norm = (
            math.hypot(*(float(np.linalg.norm(x)) for x in rows))
            for rows in ([a - b for a, b in zip(own, told, strict=True)], told)
        )
        if not error <= _SAME_FUNCTION * norm:
            names = [wire.shard for wire in self.wiring]
            before = ", ".join(names[: names.index(shard)][-4:]) or "the embedding"
            raise UnprovenError(
                f"{self._model.name}:{shard}: its uncompressed package gives other outputs than "
                f"the reference tells (relative L2 {error / (norm or 1):.3g}), on what enters it "
                f"by the chain (after {before}); correct the chain there, or the package."
            )

    @property
    def without_reference(self) -> list[str]:
        """Shards that no package stands for."""
        return [entry.shard for entry in self._model.chain if not self._stands_for(entry.shard)]

    def identity(self, root: Path) -> dict[str, Any]:
        """What its reference depends on; digests of large files are remembered below `root`."""
        model = self._model
        inputs = {name: questions(shard.inputs) for name, shard in self._shards.items()}
        packages = {name: self._stands_for(name) for name in self._shards}
        embedding, reference = model.embedding, model.reference
        if embedding is not None:
            files = {"file": embedding.path} if embedding.path.is_file() else {}
            asked = embedding.model_dump(mode="json", exclude={"file"})
            table = {**asked, "name": embedding.name, **digests(files, root)}
        code = isinstance(reference, str) and ":" in reference
        return {
            "chain": [entry.model_dump(mode="json") for entry in model.chain],
            "inputs": {name: asked for name, asked in inputs.items() if asked},
            "embedding": None if embedding is None else table,
            "tokenizer": _spelled_by(model.tokenizer),
            "packages": {
                name: tree_digest(path)
                for name, path in packages.items()
                if path is not None and path.exists()
            },
            "reference": content_digest(reference)
            if isinstance(reference, Path)
            else [reference, code_digests(reference.partition(":")[0]) if code else {}],
            "depends": {str(p): content_digest(p) for p in model.depends if p.is_file()},
            "context": [model.context, model.max_tokens],
            "versions": {"pytest-ane": pytest_ane.__version__, "numpy": np.__version__},
        }

    @cached_property
    def _table(self) -> RowTable | None:
        table = self._model.embedding
        return None if table is None else open_rows(table)

    @cached_property
    def _layouts(self) -> dict[str, PackageLayout]:
        return self._laid_out(lambda name: self._shards[name].artifact)

    @cached_property
    def _reference_layouts(self) -> dict[str, PackageLayout]:
        return self._laid_out(self._package)

    def _laid_out(self, package: Callable[[str], Path | None]) -> dict[str, PackageLayout]:
        """The layouts of all packages; each tells the streams of those after it."""
        widths = {FIRST: 1 if self._table is None else self._table.width}
        layouts: dict[str, PackageLayout] = {}
        for entry in self._model.chain:
            shard = self._shards[entry.shard]
            path = package(entry.shard)
            assert path is not None  # A model without a family has artifacts.
            layouts[entry.shard] = layout = self._layout(entry, shard, path, widths)
            widths |= dict(layout.widths(widths))
        return layouts

    def _layout(
        self, entry: ChainEntry, shard: Shard, path: Path, widths: dict[str, int]
    ) -> PackageLayout:
        chosen = shard.function if shard.id == entry.shard else None
        names: tuple[str | None, ...] = entry.functions or (chosen,)
        if path != shard.artifact:
            names = tuple(counterpart(path, name) for name in names)
        programs = [(name, read_model(path, weights=False, function=name)) for name in names]
        features = {each.name: each for _, model in programs for each in model.inputs}
        known = domains(tuple(features.values()), shard.inputs, path)
        return PackageLayout(
            shard.qualified, entry, programs, known, widths, self._model.max_tokens
        )

    def _stands_for(self, shard: str) -> Path | None:
        """The package that is a shard's reference, its program before compression otherwise."""
        own = self._shards[shard]
        if isinstance(own.reference, Path) and own.reference.suffix not in GOLDEN:
            return own.reference
        return own.uncompressed

    def _package(self, shard: str) -> Path:
        if (path := self._stands_for(shard)) is None:
            raise UnprovenError(
                f"{self._model.name}:{shard}: has no package for a reference; name one in its "
                "reference or uncompressed, or let the model's reference be a function."
            )
        return path

    def check_apart(self) -> None:
        """Raise `UnprovenError` where every package is its own reference."""
        for entry in self._model.chain:
            both = self._shards[entry.shard].artifact, self._package(entry.shard)
            if len({program_digest(read_model(path)) for path in both if path}) > 1:
                return
        raise UnprovenError(
            f"{self._model.name}: every package is its own reference, so comparing proves nothing; "
            "name the programs before compression, or let the model's reference be a function."
        )


class OpenChain(OpenModel):
    def __init__(self, model: Model, cache: Cache) -> None:
        super().__init__(model, cache)
        self.packages = PackageChain(model)
        # They have no more than a model must.
        self.language_model = cast("LanguageModel", self.packages)

    @property
    def wiring(self) -> tuple[Wire, ...]:
        return self.packages.wiring

    def _spelled_by(self) -> Any:
        return _spelled_by(self.model.tokenizer)

    def _open_tokenizer(self) -> Tokenizer:
        if self.model.tokenizer is None:
            raise SourceError(
                f'{self.model.name}: has no tokenizer; add tokenizer = "tokenizer.json", or give '
                "prompts as ids."
            )
        return read_tokenizer(self.model.tokenizer)

    @cached_property
    def identity(self) -> dict[str, Any]:
        return self.packages.identity(self.cache.root)

    def load(self, backend: Backend, shard: Shard, artifact: Artifact) -> Runner:
        """A package, with the functions that its place in the chain names."""
        return self.packages.layout(without_function(shard.id)[0]).load(backend, artifact.path)

    @cached_property
    def golden(self) -> list[GoldenPrompt]:
        if self._answers is None:
            self.packages.check_apart()
        if isinstance(answers := self._answers, GoldenLogits):
            asked = zip(self.prompts, self.model.prompts, strict=True)
            golden = [answers.prompt(own, p.greedy, self.decode) for own, p in asked]
        else:
            golden = super().golden
        for prompt in golden:
            if (words := prompt.logits.shape[1]) != self.packages.vocabulary:
                raise SourceError(
                    f"{self.model.name}: the reference gives {words} logits for a position of "
                    f"{prompt.name!r}, and the chain {self.packages.vocabulary}."
                )
        return golden

    @cached_property
    def has_states(self) -> bool:
        """Whether function, file or packages tell what every shard gives."""
        return self._told is not None or not self.packages.without_reference

    def check_compared(self) -> None:
        """Raise `UnprovenError` unless prompts, and what every shard gives, can be compared."""
        super().check_compared()
        if not self.has_states:
            self.packages.reference(self.packages.without_reference[0])

    @cached_property
    def _answers(self) -> OwnReference | GoldenLogits | None:
        if isinstance(reference := self.model.reference, Path):
            return GoldenLogits(reference)
        return OwnReference(self.model) if ":" in reference else None

    def _reference(self) -> Chain:
        if not isinstance(self._answers, OwnReference):
            return super()._reference()
        own = self._answers

        def run(ids: FloatArray) -> FloatArray:
            return own.logits(ids[:, 0].astype(int).tolist())

        def embed(ids: Sequence[int]) -> FloatArray:
            return np.asarray(ids, np.float32).reshape(-1, 1)

        # A block, for the logits of a position depend on all tokens before it; a head is given
        # the last rows only.
        whole = ChainStep(Wire("reference"), lambda: run, sees="call")
        logits = ChainStep(Wire("logits", gives=LOGITS), lambda: lambda rows: rows, sees="itself")
        return Chain(embed, (whole, logits))

    @cached_property
    def _told(self) -> dict[str, dict[str, FloatArray]] | None:
        """Outputs of every shard by prompt, where function or file tells those of all blocks."""
        if (answers := self._answers) is None:
            return None

        def make(folder: Path) -> None:
            tensors = {
                f"{prompt.name}/{shard}": rows
                for prompt in self.answered
                for shard, rows in answers.states(prompt).items()
            }
            for name, rows in tensors.items():
                check_finite(rows, name.partition("/")[2], f"golden prompt {name!r}")
            save(folder, tensors, {})

        key = {**self.identity, "recording": RECORDING_VERSION, "told": self._answered_spec}
        folder = self.cache.get_or_make("recordings", key_digest(key), make, self.model.name)
        told: dict[str, dict[str, FloatArray]] = {prompt.name: {} for prompt in self.model.prompts}
        for name, rows in load(folder)[0].items():
            prompt, _, shard = name.partition("/")
            self.packages.check_rows(shard, rows, prompt)
            told[prompt][shard] = rows
        blocks = {wire.shard for wire in self.wiring if not wire.is_head}
        complete = not any(blocks - states.keys() for states in told.values())
        return told if complete else None

    def _blocks(self) -> LanguageModel:
        """The packages, with outputs that the reference tells in each shard's place."""
        told, packages = self._told, self.packages
        if told is None:
            return super()._blocks()

        def reference(shard: str) -> Reference:
            rows = [states[shard] for states in told.values()]

            def run(sequences: Sequence[FloatArray]) -> list[FloatArray]:
                packages.check_place(shard, sequences, rows)
                return rows

            return run

        return cast("LanguageModel", SimpleNamespace(embed=packages.embed, reference=reference))


def _spelled_by(tokenizer: Path | None) -> list[str]:
    """Of a `tokenizer.json` the digests of what is read with it, and versions of what reads it."""
    if tokenizer is None:
        return []
    files = (tokenizer, *(tokenizer.with_name(name) for name in COMPANIONS))
    return [*map(content_digest, files), *map(version, SPELLERS)]
