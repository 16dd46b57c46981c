"""A whole model for the commands that run one: what is missing is built, as the gates would."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pytest_ane.backends import get_backend
from pytest_ane.build import Artifact, Cache, build_shard
from pytest_ane.build.slots import default_count
from pytest_ane.core.digests import remembered
from pytest_ane.core.errors import ManifestError, UnprovenError
from pytest_ane.families import get_family, search_beside
from pytest_ane.manifest import Manifest, Model, Prompt, Shard, load
from pytest_ane.plugin.progress import words
from pytest_ane.plugin.run import use_folder
from pytest_ane.project.models import OpenModel
from pytest_ane.project.preflight import Preflight
from pytest_ane.project.stack import Stack


@contextmanager
def open_stack(
    manifest: Path | None,
    model: str | None,
    cache: Path | None,
    check: Callable[[OpenModel], None] = OpenModel.check_compared,
    prompt: Prompt | None = None,
) -> Iterator[Stack]:
    """A model's shards, built and chained; on a Mac they run in Core ML.

    Args:
        manifest: default `shards.toml` here.
        model: its name; may be left out where the manifest has one whole model.
        cache: the cache folder.
        check: raises where the model is not for the command, before anything is built; by default
            where its prompts have nothing to compare.
        prompt: in place of the model's golden prompts.

    Raises:
        ManifestError: there is no such model, or it is no whole stack.
        UnprovenError: it has no golden prompts, or they have nothing to compare.
        BuildError: a shard cannot be built.
    """
    read = load(manifest or Path("shards.toml"))
    search_beside(read)
    chosen = choose(read, model)
    if prompt is not None:
        chosen = chosen.model_copy(update={"prompts": (prompt,)})
    if not chosen.prompts:
        raise UnprovenError(
            f"{chosen.name} has no golden prompts to run through the stack; add "
            f"[[models.{chosen.name}.prompts]] to {read.path.name}.",
            "missing",
        )
    store = Cache(cache)
    with ExitStack() as stack:
        stack.enter_context(remembered(store.root / "digests"))
        if read.tmpdir is not None:
            stack.enter_context(use_folder(read.tmpdir, read.path))
        opened = OpenModel(chosen, store)
        check(opened)
        name = "coreml" if sys.platform == "darwin" else "cpu"
        backend = get_backend(name, cache=store, say=tell)
        yield Stack(opened, list(_built(opened, store)), backend)


def choose(manifest: Manifest, name: str | None) -> Model:
    """The model to run: the one named, or the only one that is a whole stack.

    Raises:
        ManifestError: there is none such, or several.
    """
    whole = [model for model in manifest.models if _is_whole(model)]
    there = ", ".join(model.name for model in whole) or "none"
    if name is not None:
        if found := [model for model in whole if model.name == name]:
            return found[0]
        raise ManifestError(
            f"--model {name}: {manifest.path.name} has no such model with blocks and a head that "
            f"a family wires together; there is: {there}."
        )
    if len(whole) != 1:
        raise ManifestError(
            f"Name a model with --model: {manifest.path.name} has {len(whole)} with blocks and a "
            f"head that a family wires together ({there})."
        )
    return whole[0]


def tell(text: str) -> None:
    """Show what is going on, where somebody looks on: stdout is for what was found."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text[:79]}")
        sys.stderr.flush()


def _is_whole(model: Model) -> bool:
    return model.family is not None and any(
        wire.mode == "append" for wire in get_family(model.family).wiring(model.ids)
    )


def _built(opened: OpenModel, cache: Cache) -> Iterator[tuple[Shard, Artifact]]:
    """Every shard with its package, built if it is not in the cache."""
    shards = opened.model.shards
    preflight = Preflight(shards, cache, lambda _: opened, default_count())
    if sys.stderr.isatty():
        for line in preflight.lines():
            sys.stderr.write(f"{line}\n")
    preflight.check()
    start, size = time.perf_counter(), 0
    for i, shard in enumerate(shards):
        seconds = time.perf_counter() - start
        tell(words(shard.qualified, done=i, total=len(shards), size=size, seconds=seconds))
        identity = opened.identity if shard.artifact is None else {}
        artifact = build_shard(shard, cache, identity=identity, model=lambda: opened.language_model)
        size += artifact.size
        yield shard, artifact
    tell("")
