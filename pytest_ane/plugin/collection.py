"""Which gates there are: one per selected shard, one per completely selected model."""

from __future__ import annotations

import pytest

from pytest_ane.plugin.options import wanted

_NOTHING = "nothing-selected"


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Give `shard` and `chain` their values. Ids are the qualified shard id and the model name."""
    for fixture in ("shard", "chain"):
        if fixture in metafunc.fixturenames:
            values = _values(metafunc.config, fixture)
            # An empty list would make pytest report a skip; this way the item can be deselected.
            params = [pytest.param(value, id=name) for name, value in values]
            metafunc.parametrize(
                fixture, params or [pytest.param(None, id=_NOTHING)], indirect=True
            )


def drop_empty(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect items that were parametrized with nothing."""
    empty = [item for item in items if _is_empty(item)]
    if empty:
        items[:] = [item for item in items if not _is_empty(item)]
        config.hook.pytest_deselected(items=empty)


def _values(config: pytest.Config, fixture: str) -> list[tuple[str, object]]:
    if not wanted(config):
        return []
    from pytest_ane.plugin import workspace

    space = workspace.of(config)
    if fixture == "shard":
        return [(shard.qualified, shard) for shard in space.shards]
    return [(name, name) for name in space.complete_models]


def _is_empty(item: pytest.Item) -> bool:
    spec = getattr(item, "callspec", None)
    return spec is not None and any(
        name in spec.params and spec.params[name] is None for name in ("shard", "chain")
    )
