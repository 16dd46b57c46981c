"""Which gates a run has: how the suite joins it, its parameters, its words and its order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from pytest_ane.gates.words import GATE_WORDS
from pytest_ane.plugin import _bench
from pytest_ane.plugin._items import gate_of, is_gate, params_of, workspace_of
from pytest_ane.plugin._options import manifest_file, wanted
from pytest_ane.project.suite import FOLDER, files, load, own, shipped

if TYPE_CHECKING:
    from pytest_ane.gates.base import Subject

_FIXTURES = ("ane_shard", "ane_chain")
_NOTHING, _NO_QUESTION = "nothing-selected", "no-question"
_JOINS = pytest.StashKey[frozenset[str]]()
"""Node ids of the shipped suite that were named; empty for all of it."""
_NODE = re.compile(r"(?P<file>.+?\.py)::(?P<test>[^\[]+)\[(?P<ids>.+)\]")


class Suite(pytest.Collector):
    """The shipped gates, beside what the arguments name: pytest drops arguments below another."""

    def collect(self) -> Iterator[pytest.Collector]:
        """One file per gate; ids begin with `gates/`, wherever the package is installed."""
        named = {node.partition("::")[0] for node in self.config.stash[_JOINS]}
        for file in files():
            nodeid = f"{FOLDER}/{file.name}"
            if (named and nodeid not in named) or _bench.is_ignored(file, self.config):
                continue
            yield GateFile.from_parent(self, path=file, name=file.name, nodeid=nodeid)


class GateFile(pytest.Module):
    """A file of gates, whatever the project's python_files and python_functions say."""

    def _getobj(self) -> ModuleType:
        return load(self.path)

    def funcnamefilter(self, name: str) -> bool:
        return name.startswith("test_")

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        named = self.config.stash[_JOINS]
        for item in super().collect():
            if not named or any(names(node, item.nodeid) for node in named):
                yield item


class RefusedModel(pytest.Collector):
    """A model whose source cannot be used: one error, which no `-k` or `-m` deselects."""

    def collect(self) -> Iterator[pytest.Item]:
        raise self.CollectError(workspace_of(self.config).refused[self.name])


def add_to(config: pytest.Config) -> None:
    """Add the gates, the project's own form before ours, unless only other paths are named."""
    if (folder := own(config.rootpath)) is None:
        named = frozenset(arg for arg in config.args if _is_shipped(config, arg))
        config.args[:] = [arg for arg in config.args if arg not in named]
        if named or (wanted(config) and is_everything(config)):
            config.stash[_JOINS] = frozenset() if FOLDER in named else named
        return
    if wanted(config) and is_everything(config):
        if not any(folder.is_relative_to(path) for path in _paths(config)):
            config.args.append(str(folder))
        missing = (file.name for file in files() if not (folder / file.name).is_file())
        if named := frozenset(f"{FOLDER}/{name}" for name in missing):
            config.stash[_JOINS] = named


def join(collector: pytest.Collector, report: pytest.CollectReport) -> None:
    """Add to what the session has collected the shipped suite, and the models that are refused."""
    if not isinstance(collector, pytest.Session):
        return
    if _JOINS in collector.config.stash:
        report.result.append(Suite.from_parent(collector, name=FOLDER, nodeid=FOLDER))
    if wanted(collector.config):
        for name in workspace_of(collector.config).refused:
            report.result.append(RefusedModel.from_parent(collector, name=name, nodeid=name))


def leave_out(report: pytest.CollectReport) -> None:
    """Take away gates that have no question about any selected shard: nobody deselects them."""
    if report.result:
        asked = (node for node in report.result if not node.name.endswith(f"[{_NO_QUESTION}]"))
        report.result = [*asked]


def wake(config: pytest.Config) -> None:
    """Select the shards that node ids on the command line name, where none are selected."""
    nodes = [match for arg in config.args if (match := _NODE.fullmatch(arg))]
    # Ids of other tests may hold anything; those of shards hold a colon.
    nodes = [node for node in nodes if ":" in node["ids"] or _is_gate_file(config, node["file"])]
    file = manifest_file(config)
    if wanted(config) or not nodes or not file.is_file():
        return
    from pytest_ane.manifest.ids import nearest
    from pytest_ane.mlprogram.errors import ManifestError
    from pytest_ane.project.entries import read_manifest

    manifest = read_manifest(file)
    known = {shard.qualified: shard.qualified for shard in manifest.shards}
    known |= {model.name: f"{model.name}:all" for model in manifest.models}
    terms: dict[str, None] = {}
    for node in nodes:
        # Ids of a test's parameters are joined by `-`.
        if named := [name for name in known if f"-{name}-" in f"-{node['ids']}-"]:
            terms[known[max(named, key=len)]] = None
        elif _is_gate_file(config, node["file"]):
            raise ManifestError(
                f"{node[0]}: {file.name} has no such shard or model; "
                f"{nearest(node['ids'], list(known))}."
            )
    if terms:
        config.option.ane_shards = ",".join(terms)


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Ids are qualified names; `[smollm2:L01-ane]` where a gate asks the ANE's arithmetic, too."""
    if not is_gate(metafunc.definition):
        return
    for fixture in _FIXTURES:
        if fixture in metafunc.fixturenames:
            # An empty list would make pytest report a skip; this way the item can be deselected.
            values = _values(metafunc.config, fixture, gate_of(metafunc.definition))
            params = [pytest.param(value, id=name) for name, value in values]
            metafunc.parametrize(fixture, params, indirect=True)


def add_words(item: pytest.Item) -> None:
    """Let `-k` and `-m` find a gate by its name and the users' other words for it."""
    if isinstance(item, pytest.Function) and is_gate(item):
        gate = gate_of(item)
        for word in (gate, *GATE_WORDS[gate]) if gate in GATE_WORDS else ():
            item.add_marker(word)


def drop_empty(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect gates that were parametrized with nothing."""
    if empty := [item for item in items if _is_empty(item)]:
        items[:] = [item for item in items if not _is_empty(item)]
        config.hook.pytest_deselected(items=empty)


def in_order(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Canaries first, for others wait for them; whole models last, for a shard explains a stack."""

    def rank(item: pytest.Item) -> int:
        if not is_gate(item):
            return 0
        if "ane_chain" in getattr(item, "fixturenames", ()):
            return 1
        return -1 if is_canary(config, item) else 0

    items.sort(key=rank)


def is_canary(config: pytest.Config, item: pytest.Item) -> bool:
    """Whether an item is a gate of a shard that others wait for."""
    shard = params_of(item).get("ane_shard")
    if not wanted(config) or shard is None or item.get_closest_marker("gate") is None:
        return False
    from pytest_ane.plugin import _canary as canary

    return canary.of(config).has(shard)


def names(node: str, nodeid: str) -> bool:
    """Whether what is given on the command line is a test, or a folder or file around it."""
    return nodeid == node or nodeid.startswith((f"{node}::", f"{node}[", f"{node}/"))


def _path(config: pytest.Config, arg: str) -> Path | None:
    path = Path(config.invocation_params.dir, arg.partition("::")[0]).resolve()
    return path if path.exists() else None


def _paths(config: pytest.Config) -> list[Path]:
    return [path for arg in config.args if (path := _path(config, arg)) is not None]


def is_everything(config: pytest.Config) -> bool:
    """Whether a run is for the whole project: no path was named, or a folder around it."""
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        return True
    return any(config.rootpath.is_relative_to(path) for path in _paths(config))


def _is_shipped(config: pytest.Config, arg: str) -> bool:
    file = Path(arg.partition("::")[0])
    if _path(config, arg) is not None or file.parts[:1] != (FOLDER,):
        return False
    return len(file.parts) == 1 or (shipped() / file.relative_to(FOLDER)).is_file()


def _is_gate_file(config: pytest.Config, file: str) -> bool:
    folder, path = own(config.rootpath), _path(config, file)
    if path is None:
        return folder is None and _is_shipped(config, file)
    return path.parent in (folder, shipped())


def _values(config: pytest.Config, fixture: str, gate: str) -> list[tuple[str, object]]:
    if not wanted(config):
        return [(_NOTHING, None)]
    from pytest_ane.gates.registry import GATES

    space, known = workspace_of(config), GATES.get(gate)
    models = map(space.manifest.model_of, space.complete_models)
    subjects: Iterable[Subject] = space.shards if fixture == "ane_shard" else models
    if known is None:
        asked = [(subject.qualified, subject) for subject in subjects]
    else:
        each = (s for of in subjects if known.asks(of) for s in space.subjects(known, of))
        asked = [(known.test(subject).id, subject) for subject in each]
    unasked = _NO_QUESTION if fixture == "ane_shard" and space.shards else _NOTHING
    return [*asked] or [(unasked, None)]


def _is_empty(item: pytest.Item) -> bool:
    return is_gate(item) and any(params_of(item).get(name, item) is None for name in _FIXTURES)
