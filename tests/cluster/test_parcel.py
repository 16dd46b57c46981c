"""Cache entries on their way: whole, or not at all."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest

from pytest_ane.cluster.job import Parcel
from pytest_ane.make import Cache
from pytest_ane.make.shared_store import SharedStore
from pytest_ane.mlprogram.errors import CacheError

KEY = "a" * 64


def filled(root: Path) -> Cache:
    cache = Cache(root)

    def make(folder: Path) -> None:
        (folder / "package").mkdir()
        (folder / "package" / "weights").write_bytes(bytes(range(256)) * 64)

    cache.get_or_make("artifacts", KEY, make)
    return cache


def test_entries_travel_whole(tmp_path: Path) -> None:
    here, there = filled(tmp_path / "here"), Cache(tmp_path / "there")
    sent: Parcel = pickle.loads(pickle.dumps(Parcel.of(here, here.used)))
    assert not list(there.folders("artifacts"))
    sent.settle(there)
    for name in ("package/weights", "seal.json"):
        arrived = there.path("artifacts", KEY) / name
        assert arrived.read_bytes() == (here.path("artifacts", KEY) / name).read_bytes()
    # From there they travel on.
    third = Cache(tmp_path / "third")
    pickle.loads(pickle.dumps(sent)).settle(third)
    assert third.get("artifacts", KEY)


def test_nothing_is_read_until_it_travels(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    parcel = Parcel.of(cache, cache.used)
    assert parcel.__sizeof__() == parcel.size > 16_000
    assert parcel.names == (("artifacts", KEY),)
    parcel.settle(cache)  # Where it lies already.
    cache = Cache(tmp_path)
    cache.get_or_make("compiled", KEY, lambda folder: (folder / "x").touch())
    assert Parcel.of(cache, cache.used).names == ()


def test_entries_that_do_not_arrive_whole(tmp_path: Path) -> None:
    here, there = filled(tmp_path / "here"), Cache(tmp_path / "there")
    sent = bytearray(pickle.dumps(Parcel.of(here, here.used)))
    at = sent.index(bytes(range(256)))
    sent[at + 7] ^= 1
    with pytest.raises(CacheError, match=r"did not arrive whole: package/weights has other bytes"):
        pickle.loads(bytes(sent)).settle(there)
    assert not list(there.folders("artifacts"))
    here, there = filled(tmp_path / "here"), Cache(tmp_path / "there")
    parcel = Parcel.of(here, here.used)
    shutil.rmtree(here.path("artifacts", KEY))
    sent: Parcel = pickle.loads(pickle.dumps(parcel))
    with pytest.raises(CacheError, match=r"^artifacts/a{16} is gone from the worker that made it"):
        sent.settle(there)


def test_what_arrives_is_what_was_sent_whatever_the_store_has(tmp_path: Path) -> None:
    """A store may have what another machine built, with other bytes."""
    told: list[str] = []
    store = SharedStore(str(tmp_path / "store"), told.append)
    other = Cache(tmp_path / "other", store=store)
    other.get_or_make("artifacts", KEY, lambda folder: (folder / "other").touch())
    here = filled(tmp_path / "here")
    sent: Parcel = pickle.loads(pickle.dumps(Parcel.of(here, here.used)))
    there = Cache(tmp_path / "there", store=store)
    sent.settle(there)
    assert (there.path("artifacts", KEY) / "package" / "weights").is_file()
    assert told == []
