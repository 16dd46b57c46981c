"""Shards that cost the same, and which of them is counted."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from pytest_ane.analysis.alike import Alike, alike, costs_of, counted
from pytest_ane.core.errors import ProgramError
from pytest_ane.manifest import Linear, Shard
from tests.packages import save_conv


def shards(count: int, **fields: object) -> tuple[Shard, ...]:
    return tuple(Shard(model="m", id=f"L{i:02d}", **fields) for i in range(count))  # type: ignore[arg-type]


def ids(groups: Collection[Alike]) -> list[tuple[str, list[str]]]:
    return [(group.kind, [shard.id for shard in group.shards]) for group in groups]


def parity(shard: Shard) -> str:
    return "mixture" if int(shard.id[1:]) % 2 else "attention"


def test_kind_compression_and_layout_tell_shards_apart() -> None:
    many = list(shards(6))
    assert ids(alike(many, parity, lambda _: 0)) == [
        ("attention", ["L00", "L02", "L04"]),
        ("mixture", ["L01", "L03", "L05"]),
    ]
    many[2] = many[2].model_copy(update={"compression": Linear()})
    assert ["L02"] in [found for _, found in ids(alike(many, parity, lambda _: 0))]
    layouts = {"L05": "sliding"}
    found = ids(alike(many, parity, lambda shard: layouts.get(shard.id)))
    assert ("mixture", ["L05"]) in found


def test_packages_of_one_s_own_stand_for_themselves(tmp_path: Path) -> None:
    many = [s.model_copy(update={"artifact": tmp_path / s.id}) for s in shards(3)]
    assert [len(group.shards) for group in alike(many, parity, lambda _: 0)] == [1, 1, 1]


def count(built: Collection[str], of: int = 5) -> tuple[list[tuple[str, int]], list[str]]:
    made: list[str] = []

    def build(shard: Shard) -> Path:
        made.append(shard.id)
        return Path(shard.id)

    found = counted(
        Alike("block", shards(of)),
        lambda shard: Path(shard.id) if shard.id in built else None,
        build,
    )
    return [(group.subject, group.count) for group in found], made


def test_without_any_the_middle_one_is_built() -> None:
    assert count(()) == ([("L02", 5)], ["L02"])


def test_a_built_one_near_the_middle_stands_for_the_others() -> None:
    assert count(("L00", "L03")) == ([("L00", 1), ("L03", 4)], [])


def test_all_built_count_for_themselves() -> None:
    found, made = count([f"L{i:02d}" for i in range(5)])
    assert found == [(f"L{i:02d}", 1) for i in range(5)]
    assert made == []


@pytest.fixture
def conv(tmp_path: Path) -> Path:
    save_conv(tmp_path / "conv.mlpackage")
    return tmp_path / "conv.mlpackage"


def test_costs_are_counted_once(conv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_ane.analysis import alike as module

    reads: list[Path] = []
    read: Callable[..., object] = module.read_model
    monkeypatch.setattr(
        module, "read_model", lambda path, **options: reads.append(path) or read(path, **options)
    )
    at = costs_of(conv)
    assert at(1) == at(1)
    assert at(4).macs == 4 * at(1).macs
    assert len(reads) == 2


def test_what_is_no_package_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ProgramError):
        costs_of(tmp_path / "none.mlpackage")(1)
