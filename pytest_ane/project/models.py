"""Opened models: source, family or builder, prompts and recorded references, each when needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

from pytest_ane.backends import Backend, Runner
from pytest_ane.make import Artifact, Cache
from pytest_ane.manifest import Model, Shard
from pytest_ane.manifest import Prompt as ManifestPrompt
from pytest_ane.manifest.ids import without_function
from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.digests import key_digest
from pytest_ane.mlprogram.errors import ManifestError, SourceError, UnprovenError
from pytest_ane.models.chain import Chain
from pytest_ane.models.families import Cut, Inputs, LanguageModel, Layout, Ports, Wire, ports_of
from pytest_ane.models.families.own import BuilderModel, RenamedLayout, Renaming
from pytest_ane.models.families.registry import get_family, identify_family, is_encoder
from pytest_ane.models.sources import end_tokens, identify, open_source
from pytest_ane.models.sources.base import Tokenizer
from pytest_ane.probes.builder import builder_cases, record_builder
from pytest_ane.probes.cases import Case
from pytest_ane.probes.exact_chain import (
    LOGITS_VERSION,
    GoldenPrompt,
    record_golden,
    reference_chain,
)
from pytest_ane.probes.recording import (
    HiddenProbe,
    TokenPrompt,
    load,
    load_hidden,
    load_ports,
    load_probes,
    record_hidden,
    record_probes,
)

SPELLERS = ("tokenizers", "transformers")
"""Packages that turn text into token ids."""
_READERS = ("gguf", "numpy", *SPELLERS, "torch")
"""Packages that turn a source into weights, token ids and reference outputs."""


def cut_of(model: Model) -> Cut:
    """How the manifest cuts a model."""
    return Cut(model.ids, model.max_tokens, model.context, model.stateful, model.variant)


def open_language_model(model: Model) -> LanguageModel:
    """A model's source seen through its family, or `SourceError`; no weights are read yet."""
    assert model.family is not None
    assert model.source is not None
    family = get_family(model.family)
    return family.open_model(open_source(model.source, family.spread), cut_of(model))


class KeptTokenizer:
    """A tokenizer and what it answered, in a file of lines `[method, argument, answer]`.

    A warm run asks what an earlier one did, so it imports no transformers. Each line is appended
    in one write, so that processes need no lock; a damaged one is skipped.
    """

    def __init__(self, file: Path, opened: Callable[[], Tokenizer]) -> None:
        self._file, self._opened = file, cache(opened)
        self._known: dict[str, Any] = {}
        with suppress(OSError):
            for line in file.read_bytes().splitlines():
                with suppress(ValueError, TypeError, RecursionError):
                    method, argument, answer = json.loads(line)
                    if isinstance(answer, str if method == "decode" else list):
                        self._known[json.dumps([method, argument])] = answer

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        return list(self._answer("encode", text))

    def chat(self, text: str) -> list[int]:
        """Token ids of one user message in the chat template."""
        return list(self._answer("chat", text))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return str(self._answer("decode", list(map(int, ids))))

    def _answer(self, method: str, argument: Any) -> Any:
        if (key := json.dumps([method, argument])) not in self._known:
            answer = self._known[key] = getattr(self._opened(), method)(argument)
            with suppress(OSError):
                self._file.parent.mkdir(parents=True, exist_ok=True)
                with self._file.open("ab", buffering=0) as file:
                    # The break comes first: the line before may have been cut short.
                    file.write(f"\n{json.dumps([method, argument, answer])}".encode())
        return self._known[key]


class OpenModel:
    """A model with a family; nothing is read before it is used."""

    def __init__(self, model: Model, cache: Cache) -> None:
        self.model, self.cache = model, cache

    @cached_property
    def wiring(self) -> tuple[Wire, ...]:
        """The shards in running order."""
        return get_family(self.model.family or "").wiring(self.model.ids)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What weights and family depend on: the common part of every cache key."""
        assert self.model.source is not None
        cut = asdict(cut_of(self.model))
        return {
            "source": identify(self.model.source, self.cache.root),
            "family": identify_family(self.model.family or ""),
            "heads": [wire.shard for wire in self.wiring if wire.is_head],
            "cut": {k: v for k, v in cut.items() if k != "shards" and v is not None},
            "versions": {name: version(name) for name in _READERS},
        }

    @cached_property
    def language_model(self) -> LanguageModel:
        """The source seen through the family."""
        return open_language_model(self.model)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The source's own tokenizer, which is opened for what it was not asked before."""
        key = key_digest([self._spelled_by(), *map(version, SPELLERS)])
        return KeptTokenizer(self.cache.root / "tokens" / f"{key}.jsonl", self._open_tokenizer)

    def _spelled_by(self) -> Any:
        return self.identity["source"]

    def _open_tokenizer(self) -> Tokenizer:
        tokenizer: Tokenizer = self.language_model.source.tokenizer
        return tokenizer

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; the ids themselves where no tokenizer came with the weights."""
        try:
            return self.tokenizer.decode(ids)
        except SourceError:
            return " ".join(map(str, ids))

    @cached_property
    def prompts(self) -> list[TokenPrompt]:
        """Golden prompts as token ids; `SourceError` where one does not fit the shards."""
        return [TokenPrompt(p.name, self.token_ids(p)) for p in self.model.prompts]

    @property
    def prompt_spec(self) -> list[Any]:
        """The prompts as JSON: with the source, they decide the token ids."""
        return [prompt.question for prompt in self.model.prompts]

    def layout(self, shard: Shard) -> Layout:
        """How hidden states enter and leave a shard, or the package that stands for it."""
        return self._renamed(shard, self.language_model.layout(without_function(shard.id)[0]))

    def _renamed(self, shard: Shard, layout: Layout) -> Layout:
        return RenamedLayout(layout, self._renaming(shard)) if shard.ports else layout

    def _renaming(self, shard: Shard) -> Renaming:
        return Renaming(shard.qualified, ports_of(self.language_model, shard.id), shard.ports)

    def load(self, backend: Backend, shard: Shard, artifact: Artifact) -> Runner:
        """A shard's package, ready for the stack."""
        return backend.load(artifact.path, shard.function)

    def cases(self, shard: Shard) -> list[Case]:
        """A shard's recorded cases."""
        probes, layout = self.probes(shard)
        cases = [probe.case(layout) for probe in probes]
        if not shard.ports:
            return cases
        names = self._renaming(shard)
        return [replace(case, states=names.arrays(case.states)) for case in cases]

    def probes(self, shard: Shard) -> tuple[list[HiddenProbe], Layout]:
        """A shard's recorded probes, and how the artifact takes them."""
        probes, layout = load_probes(self._recording(shard), shard)
        return probes, self._renamed(shard, layout)

    def ports(self, shard: Shard) -> Ports:
        """A shard's ports, as recorded with its probes."""
        return self.declared(shard, load_ports(self._recording(shard)))

    def declared(self, shard: Shard, ports: Ports) -> Ports:
        """A shard's ports as the package that stands for it calls them."""
        return Renaming(shard.qualified, ports, shard.ports).declared()

    def _recording(self, shard: Shard) -> Path:
        return record_probes(
            self.cache,
            self.identity,
            shard,
            model=lambda: self.language_model,
            captured=lambda: self._captured(shard),
            captured_spec=self._captured_spec(shard),
        )

    def _captured(self, shard: Shard) -> list[tuple[str, FloatArray]]:
        wire = next(wire for wire in self.wiring if wire.shard == shard.id)
        if wire.is_head:
            self.check_whole()
        return [(p.name, load_hidden(self._hidden, p.name, shard.id)) for p in self.prompts]

    def _captured_spec(self, shard: Shard) -> Any:
        """With the source, what decides the captured states; None if no probe is captured."""
        if not shard.probes.of_prompts:
            return None
        if not get_family(self.model.family or "").starts_whole(self.model.ids):
            raise SourceError(
                f"{self.model.name}: captured probes run the model from its first block, but "
                f"shards.toml lists {', '.join(self.model.ids[:3])}...; list every block up to the "
                "last one wanted, or leave 'captured', 'outlier' and 'extreme' out of probes.kinds."
            )
        return [self.prompt_spec, shard.id, [wire.shard for wire in self.wiring]]

    @property
    def has_states(self) -> bool:
        """Whether the reference tells what enters and leaves every shard."""
        return True

    def states(self, prompt: str, shard: str) -> tuple[FloatArray, FloatArray]:
        """The reference's hidden states `[T, C]` of a prompt entering and leaving a block."""
        entering = load_hidden(self._answered_states, prompt, shard)
        return entering, load_hidden(self._answered_states, prompt, shard, "out")

    @property
    def answered(self) -> list[TokenPrompt]:
        """The golden prompts with the reference's answers behind them, where those are judged."""
        if not self._has_answers:
            return self.prompts
        return [TokenPrompt(prompt.name, prompt.ids) for prompt in self.golden]

    @property
    def _answered_spec(self) -> list[Any]:
        """As `prompt_spec`, of prompts with their answers."""
        return self.prompt_spec + ["answered", LOGITS_VERSION] * self._has_answers

    @property
    def _has_answers(self) -> bool:
        return any(prompt.answer for prompt in self.model.prompts)

    def _ends(self) -> Collection[int]:
        source = self.model.source
        return end_tokens(source, self.language_model.source) if source is not None else ()

    @cached_property
    def golden(self) -> list[GoldenPrompt]:
        """The reference's logits and greedy text for the golden prompts."""
        prompts, ranked = self.model.prompts, self.model.sentences
        golden = record_golden(
            self.cache,
            self.identity,
            prompts=lambda: [
                *((own, p.greedy, p.answer) for own, p in zip(self.prompts, prompts, strict=True)),
                *((sentence, 0, 0) for sentence in self._sentences),
            ],
            spec=[*self.prompt_spec, *ranked],
            wiring=self.wiring,
            reference=self._reference,
            decode=self.decode,
            ends=self._ends,
            name=self.model.name,
        )
        queries, sentences = golden[: len(prompts)], golden[len(prompts) :]
        return [*queries, *(replace(sentence, sentence=True) for sentence in sentences)]

    @property
    def _sentences(self) -> Iterator[TokenPrompt]:
        for number, text in enumerate(self.model.sentences, start=1):
            sentence = ManifestPrompt(name=f"sentence-{number}", text=text, greedy=0)
            yield TokenPrompt(text, self.token_ids(sentence))

    def _reference(self) -> Chain:
        return reference_chain(self.language_model, self.wiring)

    def capture(self) -> None:
        """Record what captured probes are made of, unless it is recorded."""
        _ = self._hidden

    @cached_property
    def _hidden(self) -> Path:
        return self._record_hidden(lambda: self.prompts, self.prompt_spec)

    @cached_property
    def _answered_states(self) -> Path:
        return self._record_hidden(lambda: self.answered, self._answered_spec)

    def _record_hidden(self, prompts: Callable[[], Sequence[TokenPrompt]], spec: Any) -> Path:
        return record_hidden(
            self.cache,
            self.identity,
            prompts=prompts,
            spec=spec,
            wiring=self.wiring,
            model=self._blocks,
            name=self.model.name,
        )

    def _blocks(self) -> LanguageModel:
        return self.language_model

    def check_whole(self) -> None:
        """Raise `SourceError` unless the manifest lists every shard of the model."""
        if missing := self.language_model.missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise SourceError(
                f"{self.model.name}: shards.toml leaves out {missing[0]}{more}; what follows the "
                "blocks can be gated as part of the whole model only."
            )

    def check_logits(self) -> None:
        """Raise `ManifestError` for an encoder, which gives no logits."""
        if is_encoder(self.model.family, self.model.ids):
            raise ManifestError(
                f"{self.model.name} is an encoder, and this command compares logits; the behaviour "
                "gate compares its embeddings: pytest --ane-shards=all -m gate"
            )

    def check_compared(self) -> None:
        """Raise `UnprovenError` unless a golden prompt has more than one position."""
        if all(len(prompt.ids) < 2 for prompt in self.prompts):
            raise UnprovenError(
                f"{self.model.name}: no golden prompt has a second position, and the first is left "
                "out, so nothing can be compared; add a prompt of more tokens."
            )

    def token_ids(self, prompt: ManifestPrompt) -> tuple[int, ...]:
        """A prompt's tokens; `SourceError` where they do not fit the shards or the vocabulary."""
        if prompt.ids is not None:
            ids = list(prompt.ids)
        elif prompt.chat is not None:
            ids = self.tokenizer.chat(prompt.chat)
        else:
            ids = self.tokenizer.encode(prompt.text or "")
        subject = f"Golden prompt {prompt.name!r} of {self.model.name}"
        if not ids:
            raise SourceError(f"{subject} gives no tokens; give another text, or ids.")
        limit = self.language_model.positions
        more = max(prompt.greedy, prompt.answer)
        if len(ids) > limit - more:
            raise SourceError(
                f"{subject} has {len(ids)} tokens; with {more} greedy ones it must fit "
                f"{'max-tokens' if limit == self.model.max_tokens else 'context'} = {limit}."
            )
        # A family may not say how many tokens there are.
        size = self.language_model.description.get("vocabulary")
        if isinstance(size, int) and max(ids) >= size:
            remedy = "the tokenizer is not this model's, so use the one it was trained with"
            remedy = remedy if prompt.ids is None else "give ids below that"
            raise SourceError(
                f"{subject} has token {max(ids)}, and the model's vocabulary ends at {size - 1}; "
                f"{remedy}."
            )
        return tuple(ids)


class OpenBuilder:
    """A model without a family; its builder runs only when something is not in the cache."""

    def __init__(self, model: Model, cache: Cache) -> None:
        self.model, self.cache = model, cache
        self.language_model = BuilderModel(model)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What the shards depend on: the common part of every cache key."""
        return self.language_model.identity(self.cache.root)

    def cases(self, shard: Shard) -> list[Case]:
        """A shard's recorded cases."""
        return builder_cases(self._recording(shard), shard.inputs)

    def ports(self, shard: Shard) -> Ports:
        """A shard's ports, as recorded with its probes."""
        return load_ports(self._recording(shard))

    def recording(self, shard: Shard) -> tuple[Inputs, dict[str, Any]]:
        """A shard's recorded probes and outputs, as `record_builder` has them."""
        return load(self._recording(shard))

    def _recording(self, shard: Shard) -> Path:
        return record_builder(
            self.cache, self.identity, shard, lambda: self.language_model.conversion(shard.id)
        )


Opened: TypeAlias = OpenModel | OpenBuilder
