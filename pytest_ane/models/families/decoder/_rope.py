"""RoPE's frequencies by the kinds that configurations name, as transformers computes them.

The formulas are those of `modeling_rope_utils.py` of transformers 5: linear (Chen et al., arXiv
2306.15595), NTK-aware and YaRN (Peng et al., arXiv 2309.00071), LongRoPE (Ding et al., arXiv
2402.13753), and llama3 (Llama 3.1's model card). Only tables that do not depend on the length of a
sequence can be inputs of a shard: dynamic NTK and LongRoPE are computed up to the length that the
model was trained with, at which they are static.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from pytest_ane.mlprogram.arrays import DoubleArray
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.families._layout import Rotary
from pytest_ane.models.sources.base import positive, whole

_LEGACY = {"su": "longrope", "none": "default"}


class Parameters:
    """A table such as `rope_parameters`, all of whose keys must be read.

    RoPE turns `head` channels at as many `positions` as the shards take; `theta` is its base where
    the table names none, and `trained` are the positions that the model was trained with, if told.
    `name` is what the file calls the table, or each of its keys.
    """

    def __init__(
        self,
        where: str,
        table: Mapping[str, Any],
        head: int,
        theta: float,
        positions: int,
        trained: int | None = None,
        name: str | Mapping[str, str] = "rope_parameters",
    ) -> None:
        self.where, self._name = where, name
        self.head, self.positions, self.trained = head, positions, trained
        self._table = {key: value for key, value in table.items() if value is not None}
        self._read: set[str] = set()
        for key in ("partial_rotary_factor", "rope_theta", "truncate"):
            if table.get(key, ...) is None:
                told = f"{where} has {self.name(key)} null, which is no value"
                raise SourceError(f"{told}; put in the one that the model was trained with.")
        self.theta = self.real("rope_theta", theta)

    def name(self, key: str) -> str:
        if isinstance(self._name, str):
            return f"{self._name}.{key}"
        return self._name.get(key, key)

    def refuse(self, key: str, why: str) -> NoReturn:
        value = self._table.get(key)
        text = f'"{value}"' if isinstance(value, str) else repr(value)
        raise SourceError(f"{self.where} has {self.name(key)} {text:.100}; {why}.")

    def __contains__(self, key: str) -> bool:
        return key in self._table

    def get(self, key: str, default: Any = None) -> Any:
        self._read.add(key)
        return self._table.get(key, default)

    def real(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if value is None:
            raise SourceError(
                f"{self.where} has no {self.name(key)}, which its {self.name('rope_type')} needs."
            )
        return positive(value, f"{self.where}: {self.name(key)}")

    def check(self, harmless: tuple[str, ...]) -> None:
        for key in sorted(self._table.keys() - self._read - set(harmless)):
            self.refuse(key, f"that is not computed with its {self.name('rope_type')}")


def rotary(p: Parameters) -> Rotary:
    """The angles that a table gives; `SourceError` for a kind or a key that is not computed."""
    kind = p.get("rope_type", p.get("type", "default"))
    kind = _LEGACY.get(str(kind), str(kind))
    if kind not in _KINDS:
        key = "rope_type" if "rope_type" in p else "type"
        p.refuse(key, f"computed are {', '.join(sorted(_KINDS))}")
    theta, head, share = p.theta, p.head, p.real("partial_rotary_factor", 1.0)
    # Proportional RoPE leaves pairs of the whole head where they are; others turn the first ones.
    channels = head if kind == "proportional" else int(head * min(share, 2.0))
    if channels % 2 or not 2 <= channels <= head:
        even = f"of a head's {head} channels an even number of at least 2 can turn"
        p.refuse("partial_rotary_factor", even)
    plain = theta ** (-np.arange(0, channels, 2, dtype=np.float64) / channels)
    frequencies, factor = _KINDS[kind](p, plain)
    # A length that was trained changes nothing by itself.
    p.check(("original_max_position_embeddings", "factor") if kind == "default" else ())
    return Rotary(tuple(frequencies.tolist()), factor)


Scaled = tuple[DoubleArray, float]


def _proportional(p: Parameters, plain: DoubleArray) -> Scaled:
    """The share of pairs turns at the frequencies of the whole head, and the rest does not."""
    share = p.real("partial_rotary_factor", 1.0)
    if share > 1:
        p.refuse("partial_rotary_factor", "more than all of a head's channels cannot turn")
    turning = np.arange(len(plain)) < int(share * p.head // 2)
    return np.where(turning, plain, 0.0) / p.real("factor", 1.0), 1.0


def _dynamic(p: Parameters, plain: DoubleArray) -> Scaled:
    p.real("factor")
    trained = p.trained or 0
    if (told := p.get("original_max_position_embeddings")) is not None and told != trained:
        p.refuse(
            "original_max_position_embeddings", f"max_position_embeddings is {trained}; leave one"
        )
    _check_static(p, trained)
    return plain, 1.0


def _llama3(p: Parameters, plain: DoubleArray) -> Scaled:
    factor, low, high = (p.real(key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    trained = p.real("original_max_position_embeddings", p.trained)
    if low >= high:
        p.refuse("low_freq_factor", f"it must be below the high one, {high:g}")
    smooth = np.clip((trained * plain / (2 * np.pi) - low) / (high - low), 0, 1)
    scaled: DoubleArray = ((1 - smooth) / factor + smooth) * plain
    return scaled, 1.0


def _yarn(p: Parameters, plain: DoubleArray) -> Scaled:
    trained = p.real("original_max_position_embeddings", p.trained)
    factor = p.real("factor", (p.trained or trained) / trained)
    channels = 2 * len(plain)

    def pair(turns: float) -> float:
        return channels * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(p.theta))

    low, high = pair(p.real("beta_fast", 32)), pair(p.real("beta_slow", 1))
    if p.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, channels - 1)
    high += 0.001 if low == high else 0
    ramp = np.clip((np.arange(len(plain)) - low) / (high - low), 0, 1)
    p.get("finetuned")  # How the model came to be.
    scaled: DoubleArray = plain * (ramp / factor + 1 - ramp)
    return scaled, _yarn_factor(p, factor)


def _yarn_factor(p: Parameters, factor: float) -> float:
    def magnitude(scale: float = 1.0) -> float:
        return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0

    told, scale, scale_all = map(p.get, ("attention_factor", "mscale", "mscale_all_dim"))
    if told is not None:
        return p.real("attention_factor")
    if scale and scale_all:
        scale, scale_all = p.real("mscale"), p.real("mscale_all_dim")
        return magnitude(scale) / magnitude(scale_all)
    return magnitude()


def _longrope(p: Parameters, plain: DoubleArray) -> Scaled:
    most = p.trained or 0
    told = p.real("original_max_position_embeddings", most or None)
    trained = whole(told, f"{p.where}: {p.name('original_max_position_embeddings')}")
    _check_static(p, trained)
    p.get("long_factor")  # Beyond the trained length.
    short = p.get("short_factor")
    if not isinstance(short, list) or len(short) != len(plain):
        p.refuse("short_factor", f"expected a list of {len(plain)} positive numbers")
    factor = p.real("factor", most / trained if most else 1.0)
    plainly = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(trained))
    what = f"{p.where}: {p.name('short_factor')}"
    divisors = np.array([positive(value, what) for value in short])
    return plain / divisors, p.real("attention_factor", plainly)


def _check_static(p: Parameters, trained: int) -> None:
    if (positions := p.positions) > trained:
        p.refuse(
            "rope_type" if "rope_type" in p else "type",
            f"its angles change with the length beyond {trained} positions, and the shards take "
            f"{positions}; set context in shards.toml to at most {trained}",
        )


_KINDS: Mapping[str, Callable[[Parameters, DoubleArray], Scaled]] = {
    "default": lambda _, plain: (plain, 1.0),
    "linear": lambda p, plain: (plain / p.real("factor"), 1.0),
    "proportional": _proportional,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
