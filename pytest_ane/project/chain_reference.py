"""What the user's own chain is held against: a function, golden logits, outputs that they tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from pytest_ane.manifest import Model
from pytest_ane.manifest.chain import LOGITS
from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.errors import BuildError, GoldenError
from pytest_ane.models.chain import lead, likeliest_token
from pytest_ane.models.families.user_code import error_line, import_code
from pytest_ane.probes.golden_prompts import GoldenPrompt
from pytest_ane.probes.recording import TokenPrompt


class OwnReference:
    """A function of the user's from token ids to logits, and perhaps to each shard's outputs.

    Args:
        model: whose `reference` is `module:function`.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        assert isinstance(model.reference, str)
        self._module, _, self._name = model.reference.partition(":")

    def logits(self, ids: Sequence[int]) -> FloatArray:
        """Float32 logits `[T, V]` of a text.

        Raises:
            BuildError: the function fails, or gives something else.
        """
        answer = self._answer(ids)
        logits = answer.get(LOGITS)
        if logits is None or logits.ndim != 2 or len(logits) != len(ids):
            shape = "nothing" if logits is None else list(logits.shape)
            raise BuildError(
                f"{self._label} gave logits of the shape {shape} for {len(ids)} tokens; return "
                f"[{len(ids)}, V]."
            )
        return logits

    def states(self, prompt: TokenPrompt) -> dict[str, FloatArray]:
        """Each shard's outputs `[T, C]` side by side, of the shards that the function tells."""
        answer = self._answer(prompt.ids)
        return {name: rows for name, rows in answer.items() if name != LOGITS}

    @property
    def _label(self) -> str:
        return f"{self._model.name}: reference {self._model.reference!r}"

    def _answer(self, ids: Sequence[int]) -> dict[str, FloatArray]:
        function = getattr(import_code(self._module, self._label), self._name, None)
        if not callable(function):
            raise BuildError(f"{self._label}: {self._module} has no function {self._name!r}.")
        try:
            answer = function(list(ids))
            tables = answer if isinstance(answer, dict) else {LOGITS: answer}
            return {name: _rows(value) for name, value in tables.items()}
        # It is the user's code, which may raise anything, SystemExit included.
        except (Exception, SystemExit) as error:
            raise BuildError(f"{self._label} failed: {error_line(error, self._module)}.") from error


class GoldenLogits:
    """Logits of the golden prompts, and perhaps outputs of shards, in a safetensors file.

    Of each prompt `{prompt}.logits [T + n, V]`: after the prompt's own T rows those of the n
    likeliest tokens, one after another. `{prompt}.ids [T]` are checked where they are there, and
    `{prompt}/{shard} [T, C]` are a shard's outputs, side by side.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def prompts(
        self, model: Model, prompts: Sequence[TokenPrompt], decode: Callable[[Sequence[int]], str]
    ) -> list[GoldenPrompt]:
        """The golden prompts with what the file says of them.

        Raises:
            GoldenError: it is missing or damaged, or of other prompts.
        """
        asked = {prompt.name: prompt.greedy for prompt in model.prompts}
        return [self._prompt(prompt, asked[prompt.name], decode) for prompt in prompts]

    def states(self, prompt: TokenPrompt) -> dict[str, FloatArray]:
        """Each shard's outputs `[T, C]`, of those that are in the file."""
        prefix = f"{prompt.name}/"
        names = [name for name in self._names if name.startswith(prefix)]
        return {name.removeprefix(prefix): self._tensor(name) for name in names}

    def _prompt(
        self, prompt: TokenPrompt, greedy: int, decode: Callable[[Sequence[int]], str]
    ) -> GoldenPrompt:
        label = f"{self._path}: {prompt.name!r}"
        ids, count = f"{prompt.name}.ids", len(prompt.ids)
        if ids in self._names and tuple(self._tensor(ids).astype(int)) != prompt.ids:
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

    @cached_property
    def _names(self) -> list[str]:
        with self._opened() as file:
            return list(file.keys())

    def _tensor(self, name: str) -> FloatArray:
        if name not in self._names:
            raise GoldenError(f"{self._path}: has no tensor {name!r}; record it again.")
        with self._opened() as file:
            return np.asarray(file.get_tensor(name), np.float32)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        try:
            with safe_open(self._path, framework="numpy") as file:
                yield file
        except FileNotFoundError:
            raise GoldenError(f"{self._path}: no such file; check the chain's reference.") from None
        except (OSError, SafetensorError, TypeError, ValueError) as error:
            raise GoldenError(f"{self._path}: cannot be read ({error}).") from None


def _rows(value: Any) -> FloatArray:
    """Rows `[T, C]` of an array, a torch tensor, or of several by port, side by side."""
    if isinstance(value, dict):
        return np.concatenate([_rows(each) for each in value.values()], axis=1)
    if hasattr(value, "detach"):
        value = value.detach().float().numpy()
    return np.asarray(value, np.float32)
