"""Shard ids: their form, and ranges of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import groupby, product
from random import Random

from pytest_ane.manifest.problems import label
from pytest_ane.manifest.records import Manifest, Shard
from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.mlprogram.text import ID

MODEL = r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}"
"""Names of models, fit for the same."""
GLOB = r"[A-Za-z*?\[][A-Za-z0-9_.\-*?\[\]!]{0,63}"
ALL = "all"
"""The term of a selection that stands for every shard."""
NO_ALL = f"a shard may not be called {ALL!r}, which selects every shard; give it another name"
MOST = 10_000
"""Shards in one range; more is a slip of the keyboard."""

_RANGE_LIKE = (
    "a range such as 'L00-L29', whose ends differ in their last number only, or 'L{00-29}.p{0-7}'"
)
_RANGE = re.compile(r"(?P<prefix>.*?)(?P<first>\d+)-(?P=prefix)(?P<last>\d+)")
_BRACES = re.compile(r"\{(\d{1,9})-(\d{1,9})\}")

_FUNCTION = re.compile(r"(?P<shard>.+)\[(?P<function>[^\[\]]+)\]")


def of_function(shard: str, function: str) -> str:
    """The id of a function of a shard's package: `decoder[verify4]`."""
    return f"{shard}[{function}]"


def without_function(text: str) -> tuple[str, str]:
    """An id and its function, `decoder` and `verify4`; an empty text where it names none."""
    match = _FUNCTION.fullmatch(text)
    return (match["shard"], match["function"]) if match else (text, "")


def is_subject(text: str) -> bool:
    """Whether a text may be a shard id, or that of a function of its package."""
    shard, function = without_function(text)
    return is_id(shard) and (not function or re.fullmatch(ID, function) is not None)


def is_id(text: str) -> bool:
    """Whether a text may be a shard id."""
    return re.fullmatch(ID, text) is not None and text != ALL


def is_glob(text: str) -> bool:
    """Whether a text is a pattern for ids rather than an id."""
    return any(char in text for char in "*?[")


def as_range(term: str) -> list[str] | None:
    """The ids of `L00-L29` or `L{00-29}.p{0-7}`, in order; `None` where a text is no range.

    The numbers keep the width of the first one: `L08-L10` is L08, L09, L10. Of several ranges in
    braces the last one counts fastest. `ValueError` for one that counts backwards or is too long.
    """
    if _BRACES.search(term):
        # Texts and ends of ranges take turns.
        start, *rest = _BRACES.split(term)
        ends = zip(rest[::3], rest[1::3], strict=True)
        numbers = [_numbers(first, last, term) for first, last in ends]
        if math.prod(map(len, numbers)) > MOST:
            raise _too_many(term)
        texts = (zip(combined, rest[2::3], strict=True) for combined in product(*numbers))
        return [start + "".join(map("".join, pairs)) for pairs in texts]
    match = _RANGE.fullmatch(term)
    if match is None or len(match["first"]) > 9 or len(match["last"]) > 9:
        return None
    return [match["prefix"] + number for number in _numbers(match["first"], match["last"], term)]


def _numbers(first: str, last: str, term: str) -> list[str]:
    low, high = int(first), int(last)
    if low > high:
        raise ValueError(f"the range {term!r} counts backwards; write its lower end first")
    if high - low >= MOST:
        raise _too_many(term)
    return [f"{number:0{len(first)}d}" for number in range(low, high + 1)]


def _too_many(term: str) -> ValueError:
    return ValueError(f"the range {term!r} has more than {MOST:,} shards; check its ends")


_NUMBERS = (re.compile(r"((?:.*:)?.*?)(\d*)(\D*)"), re.compile(r"((?:.*:)?\D*)(\d*)(.*)"))
"""A name split at its last and at its first number; one in a model's name does not count."""


def in_ranges(names: Iterable[str]) -> list[str]:
    """Ids in few terms: `L00-L29`, `L{00-29}.p{0-7}`, `m:L00-L29`; `as_range` gives them back."""
    for form in _NUMBERS:
        alike: dict[tuple[str, str], list[str]] = {}
        for name in names:
            if match := form.fullmatch(name):
                alike.setdefault((match[1], match[3]), []).append(match[2])
        names = [
            f"{before}{number}{after}"
            for (before, after), numbers in alike.items()
            for number in _runs(numbers)
        ]
    plain = re.compile(r"(.*:|)([^{}]*)\{(\d+)-(\d+)\}")
    return [plain.sub(r"\1\2\3-\2\4", name) if plain.fullmatch(name) else name for name in names]


def _runs(numbers: Sequence[str]) -> Iterator[str]:
    """`07`, and `{00-03}` for what counts up."""
    for _, run in groupby(enumerate(numbers), lambda pair: int(pair[1] or -1) - pair[0]):
        first, *rest = (number for _, number in run)
        yield f"{{{first}-{rest[-1]}}}" if rest else first


def expand(texts: list[str]) -> tuple[str, ...]:
    """The explicit ids of lists such as `L00-L29, head.0-head.3`, in order; or `ValueError`."""
    ids: dict[str, None] = {}
    for term in (term.strip() for text in texts for term in text.split(",")):
        for shard in as_range(term) or [term]:
            if shard == ALL:
                raise ValueError(NO_ALL)
            if not is_id(shard) or (shard == term and "-" in term):
                raise ValueError(f"{term!r} is neither a shard id such as 'L00' nor {_RANGE_LIKE}")
            if shard in ids:
                raise ValueError(f"shard {shard!r} is named twice; name every shard once")
            ids[shard] = None
    return tuple(ids)


def nearest(text: str, ids: Sequence[str]) -> str:
    """The end of a sentence about an unknown id: the nearest ids, or else what there is."""
    distinct = list(dict.fromkeys(ids))
    if near := get_close_matches(text, distinct, cutoff=0.4):
        return f"nearest: {', '.join(near)}"
    shown = distinct if len(distinct) <= 6 else [*distinct[:3], "...", distinct[-1]]
    return f"there are: {', '.join(shown)}" if distinct else "there are none"


# Selection of shards: `L01`, `L00-L04,head*`, `smollm2:*`, `sample:5`.

_SAMPLE = "sample"


def select(manifest: Manifest, expression: str, option: str = "--ane-shards") -> tuple[Shard, ...]:
    """Shards that a selection names, in the manifest's order, each once; or `ManifestError`.

    Terms are separated by commas: `all`, an id, a range, a glob, or `sample:N`, a seeded and evenly
    spread sample with first and last included. Each may follow `model:`; without it, a term speaks
    of the shards of all models. A sentence about what is wrong names `option`.
    """
    terms = [*filter(None, map(str.strip, expression.split(",")))]
    if not terms:
        raise ManifestError(f"{option} is empty; name shards such as L01, or 'all'.")
    chosen = {shard.qualified for term in terms for shard in _matching(manifest, term, option)}
    return tuple(shard for shard in manifest.shards if shard.qualified in chosen)


def _matching(manifest: Manifest, term: str, option: str) -> Sequence[Shard]:
    name, colon, text = term.partition(":")
    names = [model.name for model in manifest.models]
    if not colon or (name == _SAMPLE and (text.isdecimal() or name not in names)):
        return _in_pool(manifest.shards, term, term, option)
    if name not in names:
        raise ManifestError(
            f"{option}: {label(manifest.path)} has no model {name!r}; {nearest(name, names)}."
        )
    return _in_pool(manifest.model_of(name).shards, text.strip(), term, option)


def _in_pool(pool: Sequence[Shard], text: str, term: str, option: str) -> Sequence[Shard]:
    if text in (ALL, "*"):
        return pool
    if text.startswith(f"{_SAMPLE}:"):
        return _sample(pool, text.partition(":")[2].strip(), term, option)
    ids = [shard.id for shard in pool]
    try:
        fault = selection_fault(text, ids)
    except ValueError as error:
        raise ManifestError(f"{option}: {error}.") from None
    if fault:
        raise ManifestError(f"{option}: {term!r} {fault}.")
    named = set(named_by(text, ids))
    return [shard for shard in pool if shard.id in named]


def _sample(pool: Sequence[Shard], number: str, term: str, option: str) -> Sequence[Shard]:
    """First, last, and one from each of equal stretches between them.

    A fixed stride would meet only one kind of layer where kinds alternate, so the place within a
    stretch is drawn; the seed makes it the same place each time.
    """
    if not number.isdecimal() or (count := int(number)) < 1:
        raise ManifestError(f"{option}: {term!r} needs a number of shards, as in 'sample:5'.")
    if count == 1 or count >= len(pool):
        return pool[:1] if count == 1 else pool
    draw, inner, stretches = Random(f"{count} of {len(pool)}"), len(pool) - 2, count - 2
    bounds = [1 + inner * i // max(stretches, 1) for i in range(stretches + 1)]
    middle = [draw.randrange(*bounds[i : i + 2]) for i in range(stretches)]
    return [pool[0], *(pool[i] for i in middle), pool[-1]]


def selection_fault(term: str, ids: Sequence[str]) -> str:
    """What is wrong with a term that names no shard, or one that does not exist; else empty."""
    missing = next((shard for shard in named_by(term, ids) or [term] if shard not in ids), None)
    if missing is None:
        return ""
    fault = "matches no shard" if missing == term else f"takes in {missing}, which does not exist"
    return f"{fault}; {nearest(missing, ids)}"


def named_by(term: str, ids: Sequence[str]) -> list[str]:
    """The ids that an id, a glob or a range names; those of a range may not exist.

    A shard's id names all functions of its package. Brackets at a glob's end are a function,
    `*[verify*]`, and only where none has such a name a set of characters, `L0[12]`.
    """
    if term in ids:
        return [term]
    functions: dict[str, list[str]] = {}
    for shard in ids:
        functions.setdefault(without_function(shard)[0], []).append(shard)
    if is_glob(term):
        glob = without_function(term)
        exact = [id for id in ids if glob[1] and all(map(fnmatchcase, without_function(id), glob))]
        shards = (shard for shard in functions if fnmatchcase(shard, term))
        return exact or [id for shard in shards for id in functions[shard]]
    names = [term] if term in functions else as_range(term) or []
    return [id for shard in names for id in functions.get(shard, [shard])]
