"""What a model is made from - a family, a builder, packages of one's own - and what contradicts."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

from pytest_ane.manifest.base import KeyPath
from pytest_ane.manifest.problems import Problem, at_key, at_table, at_value
from pytest_ane.manifest.tables import FAMILIES, ModelTable

_CODE = "a module beside the manifest or an installed one"


def model_problems(here: KeyPath, model: ModelTable, folder: Path) -> Iterator[Problem]:
    """All that is wrong with a model's own keys; `folder` is the manifest's."""
    yield from _prompts(here, model)
    if model.builder is not None:
        yield from _builder(here, model, model.builder, folder)
        return
    if model.depends:
        yield at_key((*here, "depends"), "'depends' needs a builder; a family's VERSION says it")
    if model.family is None:
        for key in ("source", "shards", "prompts"):
            if getattr(model, key):
                yield at_key((*here, key), f'{key!r} needs a family; add family = "llama"')
        return
    yield from _family(here, model.family, folder)
    if model.source is None:
        yield at_table(here, "'source' is missing; say where the family's weights come from")
    if model.shards is None:
        yield at_table(here, "'shards' is missing; name them, such as \"L00-L29, head.0-head.3\"")


def _prompts(here: KeyPath, model: ModelTable) -> Iterator[Problem]:
    names = [prompt.name for prompt in model.prompts]
    for index, name in enumerate(names):
        if name in names[:index]:
            says = "is the name of an earlier prompt; give each its own"
            yield at_value((*here, "prompts", index, "name"), name, says)


def _builder(here: KeyPath, model: ModelTable, builder: str, folder: Path) -> Iterator[Problem]:
    if model.family is not None:
        yield at_key((*here, "builder"), "'builder' stands in place of a family; give one of them")
    if model.source is not None:
        yield at_key((*here, "source"), "'source' needs a family; a builder brings its weights")
    if model.prompts:
        yield at_key((*here, "prompts"), "'prompts' needs a family, which knows how shards follow")
    if model.shards is None:
        yield at_table(here, "'shards' is missing; name those that the builder makes")
    module = builder.partition(":")[0]
    if not importable(module, folder):
        yield at_value((*here, "builder"), builder, f"{module!r} is not {_CODE}")


def _family(here: KeyPath, family: str, folder: Path) -> Iterator[Problem]:
    if family not in FAMILIES and not importable(family, folder):
        says = f"is neither a family ({', '.join(FAMILIES)}) nor {_CODE}"
        if close := get_close_matches(family, FAMILIES, n=1):
            says = f"{says}; did you mean {close[0]!r}?"
        yield at_value((*here, "family"), family, says)


def importable(module: str, folder: Path | None = None) -> bool:
    """Whether the first part of a module's name is found, in a folder or at large, unimported."""
    top = module.partition(".")[0]
    if folder and ((folder / f"{top}.py").is_file() or (folder / top).is_dir()):
        return True
    try:
        return find_spec(top) is not None
    except ValueError:  # What some modules that are loaded already, such as `__main__`, give.
        return False
