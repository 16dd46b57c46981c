"""Fixtures of the gates. Heavy modules are imported when a fixture is used, not before."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ane.plugin._items import params_of, test_of, workspace_of
from pytest_ane.plugin._options import wanted

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_ane.backends import Backend
    from pytest_ane.make import Artifact
    from pytest_ane.manifest import Model, Probes, Shard
    from pytest_ane.mlprogram.records import MLModel, Pipeline
    from pytest_ane.plugin._workspace import Workspace
    from pytest_ane.plugin.outcome import VerdictRecorder
    from pytest_ane.plugin.recording import MeasurementSource
    from pytest_ane.probes.cases import Case
    from pytest_ane.project.stack import Stack


@pytest.fixture(scope="session")
def ane_check() -> Any:
    """`assert_on_ane`, `assert_close`, `assert_compressed`: gates of any package, in one line."""
    import pytest_ane

    return pytest_ane


@pytest.fixture
def ane_shard(request: pytest.FixtureRequest) -> Shard:
    """The shard under test, with its source, compression, probes and policy resolved."""
    parameter: Shard = _param(request, "ane_shard")
    return parameter


@pytest.fixture
def ane_artifact(request: pytest.FixtureRequest, ane_shard: Shard) -> Artifact:
    """The shard's package on disk: the user's own, or built and cached."""
    return _workspace(request).artifact(ane_shard)


@pytest.fixture
def ane_program(ane_shard: Shard, ane_artifact: Artifact) -> MLModel | Pipeline:
    """The artifact's program, its structure only: weights are not decoded."""
    from pytest_ane.mlprogram.model import read_any

    return read_any(ane_artifact.path, function=ane_shard.function)


@pytest.fixture
def ane_backend(request: pytest.FixtureRequest) -> Backend:
    """What runs artifacts on this machine: of a package of several functions, the shard's."""
    space = _workspace(request)
    shard = params_of(request.node).get("ane_shard")
    return space.open_shard(shard).backend if shard else space.backend


@pytest.fixture
def ane_probes(ane_shard: Shard) -> Probes:
    """Which probes the manifest asks for."""
    return ane_shard.probes


@pytest.fixture
def ane_reference(
    request: pytest.FixtureRequest, ane_shard: Shard, ane_artifact: Artifact
) -> list[Case]:
    """Cases: every probe with what the shard's reference makes of it."""
    return _workspace(request).cases(ane_shard, ane_artifact)


@pytest.fixture
def ane_cases(
    request: pytest.FixtureRequest, ane_shard: Shard, ane_artifact: Artifact
) -> Callable[[], list[Case]]:
    """`ane_cases()` makes the cases of `ane_reference`, which verified evidence does not need."""
    space = _workspace(request)
    return lambda: space.cases(ane_shard, ane_artifact)


@pytest.fixture
def ane_evidence(request: pytest.FixtureRequest) -> MeasurementSource:
    """Measures here, records what was measured, or finds what was recorded on a Mac."""
    from pytest_ane.plugin.recording import MeasurementSource

    space, params = _workspace(request), request.node.callspec.params
    if "ane_chain" in params:
        stack = space.stack(params["ane_chain"].name, test_of(request.node).arithmetic)
        return MeasurementSource(space, stack, request.node)
    # What cannot be built, or waits for a canary, is an error of the setup.
    shard = params["ane_shard"]
    return MeasurementSource(space, shard, request.node, ShardFixtures(shard, request))


class ShardFixtures:
    """What measuring a shard takes, from the fixtures: a project's own count for shipped gates."""

    def __init__(self, shard: Shard, request: pytest.FixtureRequest) -> None:
        self.shard = shard
        self.artifact: Artifact = request.getfixturevalue("ane_artifact")
        self.backend: Backend = request.getfixturevalue("ane_backend")
        self.cases: Callable[[], list[Case]] = request.getfixturevalue("ane_cases")
        self._request = request
        names = "ane_artifact", "ane_backend", "ane_cases"  # What decides a measurement.
        made_by = (request._get_active_fixturedef(name).func.__module__ for name in names)
        self.is_own = any(module != __name__ for module in made_by)
        space = _workspace(request)
        self.budget = partial(space.budget, shard, self.artifact)
        self.ports = partial(space.ports, shard)
        self.converted = partial(space.converted, shard)

    @property
    def program(self) -> MLModel | Pipeline:
        """The artifact's program, or pipeline of such."""
        model: MLModel | Pipeline = self._request.getfixturevalue("ane_program")
        return model


@pytest.fixture
def ane_chain(request: pytest.FixtureRequest) -> Stack:
    """A whole model: every shard loaded, its golden prompts and their recorded reference."""
    model: Model = _param(request, "ane_chain")
    return _workspace(request).stack(model.name, test_of(request.node).arithmetic)


@pytest.fixture
def ane_gate(request: pytest.FixtureRequest) -> VerdictRecorder:
    """Takes a verdict: records its facts, and fails the test unless it passed."""
    from pytest_ane.plugin.outcome import VerdictRecorder

    return VerdictRecorder(request.node, _workspace(request))


def _workspace(request: pytest.FixtureRequest) -> Workspace:
    if not wanted(request.config):
        pytest.fail(
            f"The fixture {request.fixturename!r} needs shards; "
            "run pytest with --ane-shards or --ane-package.",
            pytrace=False,
        )
    return workspace_of(request.config)


def _param(request: pytest.FixtureRequest, name: str) -> Any:
    try:
        return request.param
    except AttributeError:
        pytest.fail(
            f"The fixture {name!r} is for gates; mark this test with @pytest.mark.gate.",
            pytrace=False,
        )
