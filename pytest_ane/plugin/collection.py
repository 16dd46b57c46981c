"""Which gates there are: one per selected shard, one per completely selected model."""

from __future__ import annotations

import pytest

from pytest_ane.plugin.options import GATE_MARKERS, GATE_WORDS, names_gates, wanted

_FIXTURES = ("ane_shard", "ane_chain")
_NOTHING = "nothing-selected"
_DROPPED = pytest.StashKey[bool]()
"""Whether gates were collected with nothing to ask."""


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Parametrize `ane_shard` and `ane_chain` of gates by qualified shard and by model name."""
    if not _is_gate(metafunc.definition):
        return
    for fixture in _FIXTURES:
        if fixture in metafunc.fixturenames:
            # An empty list would make pytest report a skip; this way the item can be deselected.
            values = _values(metafunc.config, fixture) or [(_NOTHING, None)]
            params = [pytest.param(value, id=name) for name, value in values]
            metafunc.parametrize(fixture, params, indirect=True)


def add_words(item: pytest.Item) -> None:
    """Let `-k` and `-m` find a gate by its name and the users' other words for it."""
    if isinstance(item, pytest.Function) and _is_gate(item):
        gate = gate_of(item)
        for word in (gate, *GATE_WORDS[gate]) if gate in GATE_WORDS else ():
            item.add_marker(word)


def gate_of(item: pytest.Function) -> str:
    """`placement` for `test_placement[smollm2:L01]`; `throughput` for every benchmark."""
    if item.get_closest_marker("bench"):
        return "throughput"
    return (item.originalname or item.name).removeprefix("test_")


def are_asleep(config: pytest.Config, *, ran: bool) -> bool:
    """Whether gates were asked for, and none can run for want of shards.

    Args:
        config: the run's.
        ran: whether any test ran; `-k` may mean other tests.
    """
    if wanted(config):
        return False
    words = config.option.keyword
    return names_gates(config.option.markexpr) or (
        not ran and (names_gates(words) or config.stash.get(_DROPPED, False))
    )


def drop_empty(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect gates that were parametrized with nothing."""
    empty = [item for item in items if _is_empty(item)]
    if empty:
        config.stash[_DROPPED] = True
        items[:] = [item for item in items if not _is_empty(item)]
        config.hook.pytest_deselected(items=empty)


def in_order(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Canaries first, for others wait for them; whole models last, for a shard explains a stack."""

    def rank(item: pytest.Item) -> int:
        if not _is_gate(item):
            return 0
        if "ane_chain" in getattr(item, "fixturenames", ()):
            return 1
        return -1 if is_canary(config, item) else 0

    items.sort(key=rank)


def is_canary(config: pytest.Config, item: pytest.Item) -> bool:
    """Whether an item is a gate of a shard that others wait for."""
    shard = getattr(item, "callspec", None) and item.callspec.params.get("ane_shard")  # type: ignore[attr-defined]
    if not wanted(config) or shard is None or item.get_closest_marker("gate") is None:
        return False
    from pytest_ane.plugin import canary

    return canary.of(config).has(shard)


def _values(config: pytest.Config, fixture: str) -> list[tuple[str, object]]:
    if not wanted(config):
        return []
    from pytest_ane.plugin import workspace

    space = workspace.of(config)
    if fixture == "ane_shard":
        return [(shard.qualified, shard) for shard in space.shards]
    return [(name, name) for name in space.complete_models]


def _is_gate(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in GATE_MARKERS)


def _is_empty(item: pytest.Item) -> bool:
    spec = getattr(item, "callspec", None)
    return (
        spec is not None
        and _is_gate(item)
        and any(spec.params.get(name, item) is None for name in _FIXTURES)
    )
