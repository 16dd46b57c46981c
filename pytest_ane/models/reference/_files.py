"""Configurations and tensors of files, as transformers reads them.

A checkpoint's names go through transformers' own conversion mapping. Synthetic weights have the
names and shapes that transformers would save.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor, nn

from pytest_ane.mlprogram.errors import AneError, SourceError
from pytest_ane.models.sources import Source
from pytest_ane.models.sources.tokenizer import quiet


class Tensors:
    """A file's tensors by a model's parameters; `SourceError` when one is read that it lacks."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def meet(self, model: Any) -> None:
        """Look at a whole model; change what no configuration says, such as angles of a file."""

    def fill(self, model: Any, module: nn.Module, *, deep: bool = True) -> None:
        """Read the tensors that a module still lacks, and unless not `deep` its parts."""
        for home in lacking(model, module, deep=deep):
            path, _, kind = home.rpartition(".")
            owner = model.get_submodule(path)
            before = getattr(owner, kind)
            values = self.read(home, tuple(before.shape))
            setattr(owner, kind, parameter(values) if isinstance(before, nn.Parameter) else values)

    def fill_experts(self, model: Any, experts: Any) -> None:
        """Have a layer's experts be read one by one, whenever one is asked for."""
        for home in lacking(model, experts):
            kind = home.rpartition(".")[2]
            name, shape = self.bank(model, home), tuple(getattr(experts, kind).shape)
            delattr(experts, kind)
            setattr(experts, kind, Bank(partial(self.expert, name, shape)))

    def rows(self, model: Any, table: Any, index: Sequence[int]) -> Tensor:
        """Rows of the embedding or of the head, which may be the same table."""
        height, width = table.weight.shape
        return torch.from_numpy(self.source.rows(self.table(model, table), index, width, height))

    def read(self, home: str, shape: tuple[int, ...]) -> Tensor:
        raise NotImplementedError

    def table(self, model: Any, table: Any) -> str:
        raise NotImplementedError

    def bank(self, model: Any, home: str) -> str:
        raise NotImplementedError

    def expert(self, name: str, shape: tuple[int, ...], expert: int) -> Tensor:
        """One slice of a stored tensor `[E, rows, columns]`."""
        count, height, width = shape
        index = range(expert * height, (expert + 1) * height)
        return torch.from_numpy(self.source.rows(name, index, width, count * height))


def made_from(table: Mapping[str, Any], source: Source, model: Any = None) -> Any:
    """The configuration that transformers makes of a table."""
    from transformers import CONFIG_MAPPING

    table = table if "model_type" in table else table.get("text_config", table)
    kind = table.get("model_type")
    if model is None and kind not in CONFIG_MAPPING:
        raise SourceError(
            f"{source.label}: transformers has no model of type {kind!r}, so there is no reference."
        )
    of = CONFIG_MAPPING[kind] if model is None else model.config_class
    # What a model returns is asked for by name here.
    told = {key: value for key, value in table.items() if key != "return_dict"}
    with refusing(f"{source.label}: transformers does not take its configuration"), quiet():
        config = of.from_dict(told)
        # It matters in training alone, and must be in the vocabulary.
        config.pad_token_id = config.get_text_config().pad_token_id = None
        return config


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Let whatever transformers raises be a `SourceError` that begins so."""
    try:
        yield
    except (AneError, MemoryError):
        raise
    except Exception as error:
        why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise SourceError(
            f"{what} ({why:.300}); correct its configuration, or name another reference."
        ) from error


def class_of(path: str) -> Any:
    """What `transformers.LlamaForCausalLM` names; `SourceError` for what is no model's class."""
    try:
        found = resolve_name(path)
        _ = found.config_class
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise SourceError(
            f"The reference {path!r} is no class of a transformers model ({error}); name one as "
            "'transformers.LlamaForCausalLM'."
        ) from error
    return found


class PublishedTensors(Tensors):
    """A checkpoint's tensors, or made-up ones; `root` begins a text's among other models."""

    def __init__(self, source: Source, root: str) -> None:
        super().__init__(source)
        self._root, self._text = root, root
        self._homes: dict[str, str] = {}
        self._alone = False

    def fill(self, model: Any, module: nn.Module, *, deep: bool = True) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import convert_and_load_state_dict_in_model
        from transformers.modeling_utils import LoadStateDictConfig

        if not (wanted := set(lacking(model, module, deep=deep))):
            return
        read = {
            self._known(name): torch.from_numpy(self.source.tensor(name, shape))
            for name, shape in self._stored(model, wanted)
        }
        plan = LoadStateDictConfig(
            dtype=torch.float32, weight_mapping=get_model_conversion_mapping(model)
        )
        with quiet():
            found, _ = convert_and_load_state_dict_in_model(model, read, plan)
        if missing := wanted & found.missing_keys:
            raise lacks(self.source, missing)

    def table(self, model: Any, table: Any) -> str:
        # A head that a file has is its own; of synthetic weights the configuration tells.
        tied = self.source.synthetic and model.config.get_text_config().tie_word_embeddings
        shared = lacking(model, model.get_input_embeddings())
        return self._first(model, shared if tied else [*lacking(model, table), *shared])

    def bank(self, model: Any, home: str) -> str:
        return self._first(model, [home])

    def _first(self, model: Any, wanted: Sequence[str]) -> str:
        for home in wanted:
            for name, _ in self._stored(model, {home}):
                return name
        raise lacks(self.source, wanted)

    def meet(self, model: Any) -> None:
        if not self._homes:
            # A text's model of its own has no such root.
            state = model.state_dict()
            if not any(name.startswith(self._root) for name in state):
                self._text = "model."
            self._alone = not any("language_model." in name for name in state)
            self._homes = self._placed(model)

    def _placed(self, model: Any) -> dict[str, str]:
        """Which parameter each tensor goes into, by what a checkpoint of the model calls it."""
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import (
            WeightConverter,
            WeightRenaming,
            rename_source_key,
        )

        mapping = get_model_conversion_mapping(model)
        renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
        converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
        rules = renamings, converters, model.base_model_prefix, model.state_dict()
        return {n: rename_source_key(self._known(n), *rules)[0] for n in self.source.names}

    def _known(self, name: str) -> str:
        """A tensor as this model calls it; older savers put the text's below all else."""
        name = name.replace(self._root, self._text, 1)
        return name.removeprefix("language_model.") if self._alone else name

    def _stored(self, model: Any, wanted: Collection[str]) -> Iterator[tuple[str, tuple[int, ...]]]:
        if self.source.synthetic:
            from transformers.core_model_loading import revert_weight_conversion

            state = {name: value for name, value in model.state_dict().items() if name in wanted}
            for name, value in revert_weight_conversion(model, state).items():
                yield name.replace(self._text, self._root, 1), tuple(value.shape)
            return
        for name, home in self._homes.items():
            if home in wanted:
                yield name, self.source.shape(name)


def lacking(model: Any, module: nn.Module, *, deep: bool = True) -> list[str]:
    """Names within the model of a module's tensors that are not there yet."""
    path = next(path for path, each in model.named_modules() if each is module)
    return [
        f"{path}.{name}"
        for name, value in module.state_dict().items()
        if value.is_meta and (deep or "." not in name)
    ]


class Bank:
    """A tensor `[E, ...]` with something for each expert, read when it is asked for."""

    def __init__(self, read: Callable[[int], Tensor]) -> None:
        self._read = read

    def __getitem__(self, expert: Any) -> Tensor:
        return self._read(int(expert))


def parameter(values: Any) -> nn.Parameter:
    return nn.Parameter(torch.as_tensor(values), requires_grad=False)


def lacks(source: Source, missing: Collection[str]) -> SourceError:
    return SourceError(
        f"{source.label}: lacks what transformers' {min(missing)!r} is made of ({len(missing)} "
        "such in all); fetch the files again."
    )
