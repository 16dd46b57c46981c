"""Selections of shards."""

from __future__ import annotations

import re
from itertools import pairwise
from math import ceil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.manifest import Manifest, Model, Shard, select
from pytest_ane.mlprogram.errors import ManifestError
from tests.manifest.conftest import Complaints, Read


def manifest(**models: list[str]) -> Manifest:
    return Manifest(
        path=Path("/m/shards.toml"),
        models=tuple(
            Model(name=name, shards=tuple(Shard(model=name, id=shard) for shard in ids))
            for name, ids in models.items()
        ),
    )


LLAMA = [*(f"L{number:02d}" for number in range(30)), *(f"head.{number}" for number in range(4))]
ONE = manifest(smollm2=LLAMA)
TWO = manifest(a=["L00", "L01", "head.0"], b=["L00", "my-encoder"])
SAMPLE = manifest(sample=["L00", "L01", "L02"])
OWN = manifest(
    m=["decoder[decode]", "decoder[verify4]", "head", "L01[decode]", "L01[prefill]", "L02"]
)


def chosen(expression: str, of: Manifest = ONE) -> list[str]:
    found = select(of, expression)
    return [shard.qualified if of is TWO else shard.id for shard in found]


@pytest.mark.parametrize(
    ("of", "expression", "ids"),
    [
        (ONE, "all", LLAMA),
        (ONE, "*", LLAMA),
        (ONE, "smollm2:*", LLAMA),
        (ONE, "smollm2:all", LLAMA),
        (ONE, "L01", ["L01"]),
        (ONE, "smollm2:L01", ["L01"]),
        (ONE, "L00-L02,head*", ["L00", "L01", "L02", "head.0", "head.1", "head.2", "head.3"]),
        (ONE, "head.1-head.2", ["head.1", "head.2"]),
        (ONE, "L0[0-1]", ["L00", "L01"]),
        (ONE, " head.0 , L00, ", ["L00", "head.0"]),
        (ONE, "L02,L00-L02,L0?,smollm2:L02", LLAMA[:10]),
        (ONE, "sample:1", ["L00"]),
        (ONE, "sample:2", ["L00", "head.3"]),
        (ONE, "sample:5", ["L00", "L08", "L15", "L28", "head.3"]),
        (ONE, "sample:34", LLAMA),
        (ONE, "sample:99", LLAMA),
        (ONE, "smollm2:sample:2", ["L00", "head.3"]),
        # A term without a model speaks of all.
        (TWO, "L00", ["a:L00", "b:L00"]),
        (TWO, "b:L00", ["b:L00"]),
        (TWO, "my-encoder", ["b:my-encoder"]),
        (TWO, "head*,b:my*", ["a:head.0", "b:my-encoder"]),
        (TWO, "L00-L01", ["a:L00", "a:L01", "b:L00"]),
        (TWO, "sample:2", ["a:L00", "b:my-encoder"]),
        # A model may be named sample.
        (SAMPLE, "sample:L01", ["L01"]),
        (SAMPLE, "sample:2", ["L00", "L02"]),
        (SAMPLE, "sample:sample:2", ["L00", "L02"]),
        # Functions of packages.
        (OWN, "decoder", ["decoder[decode]", "decoder[verify4]"]),
        (OWN, "m:decoder", ["decoder[decode]", "decoder[verify4]"]),
        (OWN, "decoder[verify4]", ["decoder[verify4]"]),
        (OWN, "m:decoder[verify4],head", ["decoder[verify4]", "head"]),
        (OWN, "dec*", ["decoder[decode]", "decoder[verify4]"]),
        (OWN, "*[decode]", ["decoder[decode]", "L01[decode]"]),
        (OWN, "*[verify*]", ["decoder[verify4]"]),
        (OWN, "hea[d]", ["head"]),
        (OWN, "L0[12]", ["L01[decode]", "L01[prefill]", "L02"]),
        (OWN, "L01-L02", ["L01[decode]", "L01[prefill]", "L02"]),
        # Brackets that are an id are no set of characters.
        (manifest(m=["xa", "x[ab]", "xb"]), "x[ab]", ["x[ab]"]),
    ],
)
def test_terms(of: Manifest, expression: str, ids: list[str]) -> None:
    assert chosen(expression, of) == ids


def test_a_sample_of_alternating_layers_meets_both_kinds() -> None:
    layers = manifest(zaya=[f"L{number:02d}" for number in range(80)])
    numbers = [int(shard[1:]) for shard in chosen("sample:10", layers)]
    assert {number % 2 for number in numbers[1:-1]} == {0, 1}


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        (" , ", "--ane-shards is empty; name shards such as L01, or 'all'."),
        ("L00,L99", "--ane-shards: 'L99' matches no shard; nearest: "),
        ("x*", "--ane-shards: 'x*' matches no shard; there are: L00, L01, L02, ..., head.3."),
        ("L28-L31", "--ane-shards: 'L28-L31' takes in L30, which does not exist; nearest: "),
        ("L04-L00", "--ane-shards: the range 'L04-L00' counts backwards; write its lower end"),
        ("L0-L99999", "--ane-shards: the range 'L0-L99999' has more than 10,000 shards; check"),
        ("smolm2:L01", "--ane-shards: /m/shards.toml has no model 'smolm2'; nearest: smollm2."),
        ("smollm2:L99", "--ane-shards: 'smollm2:L99' matches no shard; nearest: "),
        ("smollm2:", "--ane-shards: 'smollm2:' matches no shard; there are: L00, L01, L02, ..."),
        ("sample:0", "--ane-shards: 'sample:0' needs a number of shards, as in 'sample:5'."),
        ("sample:", "--ane-shards: 'sample:' needs a number of shards, as in 'sample:5'."),
        ("smollm2:sample:-1", "'smollm2:sample:-1' needs a number of shards, as in 'sample:5'."),
    ],
)
def test_mistakes(expression: str, sentence: str) -> None:
    with pytest.raises(ManifestError, match=re.escape(sentence)):
        select(ONE, expression)


@given(count=st.integers(1, 120), size=st.integers(1, 100))
def test_a_sample_is_spread_evenly(count: int, size: int) -> None:
    of = manifest(m=[f"L{number}" for number in range(size)])
    places = [int(shard[1:]) for shard in chosen(f"sample:{count}", of)]
    assert len(places) == min(count, size)
    assert places == sorted(set(places))
    assert places[0] == 0
    assert count == 1 or places[-1] == size - 1
    if 2 < count < size:
        assert max(b - a for a, b in pairwise(places)) <= 2 * ceil((size - 2) / (count - 2))


SHARDS = "".join(
    f'[models.m.shard."{name}"]\nartifact = "e.mlpackage"\nreference = "none"\n'
    for name in ("L00", "L01", "L02", "head.0", "head.1")
)


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        ('["L01"]', ("L01",)),
        ('"L01"', ("L01",)),
        ('["head.0", "L00"]', ("L00", "head.0")),
        ('"L00-L01, head*"', ("L00", "L01", "head.0", "head.1")),
        ('["*"]', ("L00", "L01", "L02", "head.0", "head.1")),
        ("[]", ()),
    ],
)
def test_ids_ranges_and_globs_in_the_model_s_order(
    read: Read, value: str, ids: tuple[str, ...]
) -> None:
    (model,) = read(f"[models.m]\ncanary = {value}\n{SHARDS}").models
    assert model.canary == ids


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ('["L7"]', '"L7": matches no shard; '),
        ('["L00", "tail*"]', '"tail*": matches no shard; '),
        ('["L01-L04"]', '"L01-L04": takes in L03, which does not exist; '),
        ('["L02-L01"]', "the range 'L02-L01' counts backwards"),
        ("3", "3: must be a list of shard ids, ranges and globs"),
        ("[1]", "[1]: must be a list of shard ids"),
        ('""', "matches no shard"),
    ],
)
def test_what_names_no_shard_is_said(complaints: Complaints, value: str, says: str) -> None:
    (line,) = complaints(f"[models.m]\ncanary = {value}\n{SHARDS}")
    assert line.startswith("shards.toml:2: [models.m] canary = ")
    assert says in line


def test_a_store_is_a_url_or_a_folder_beside_the_manifest(read: Read, tmp_path: Path) -> None:
    assert read(SHARDS).store == ""
    assert read(f'[run]\nstore = "s3://bucket/ane"\n{SHARDS}').store == "s3://bucket/ane"
    assert read(f'[run]\nstore = "../ane"\n{SHARDS}').store == str(tmp_path / "../ane")


def test_the_size_of_the_cache(read: Read, complaints: Complaints) -> None:
    assert read(SHARDS).max_cache is None
    assert read(f'[run]\nmax-cache = "20 GB"\n{SHARDS}').max_cache == 20 * 10**9
    (line,) = complaints(f'[run]\nmax-cache = "much"\n{SHARDS}')
    assert line.startswith('shards.toml:2: [run] max-cache = "much": must be')


def test_a_function_that_is_not_there() -> None:
    with pytest.raises(ManifestError, match=r"'decoder\[verify5\]' matches no shard; nearest: dec"):
        select(OWN, "decoder[verify5]")
