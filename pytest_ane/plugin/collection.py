"""Which gates there are: one per selected shard, one per completely selected model."""

from __future__ import annotations

import pytest

from pytest_ane.plugin.options import GATE_MARKERS, wanted

_FIXTURES = ("shard", "chain")
_NOTHING = "nothing-selected"


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Give `shard` and `chain` of gates their values; ids are qualified shard and model names.

    Only tests marked as gates: other plugins and projects have fixtures of these names too.
    """
    if not _is_gate(metafunc.definition):
        return
    for fixture in _FIXTURES:
        if fixture in metafunc.fixturenames:
            # An empty list would make pytest report a skip; this way the item can be deselected.
            values = _values(metafunc.config, fixture) or [(_NOTHING, None)]
            params = [pytest.param(value, id=name) for name, value in values]
            metafunc.parametrize(fixture, params, indirect=True)


def drop_empty(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect gates that were parametrized with nothing."""
    empty = [item for item in items if _is_empty(item)]
    if empty:
        items[:] = [item for item in items if not _is_empty(item)]
        config.hook.pytest_deselected(items=empty)


def chains_last(items: list[pytest.Item]) -> None:
    """Ask for a whole model after its shards: a bad shard explains a bad stack."""
    items.sort(key=lambda item: _is_gate(item) and "chain" in getattr(item, "fixturenames", ()))


def _values(config: pytest.Config, fixture: str) -> list[tuple[str, object]]:
    if not wanted(config):
        return []
    from pytest_ane.plugin import workspace

    space = workspace.of(config)
    if fixture == "shard":
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
