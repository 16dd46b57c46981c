"""What a run owes: a verdict of every gate of every selected shard and model.

A gate that has no verdict at the end makes the run red, whatever was collected, unless the person
left it out on the command line: an option of `addopts`, a mark or a conftest.py is no person.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _pytest.mark.expression import Expression

from pytest_ane.gates.base import GateTest
from pytest_ane.gates.registry import GATES
from pytest_ane.plugin import _collection
from pytest_ane.plugin._bench import HELD, is_wanted
from pytest_ane.plugin._process import is_worker
from pytest_ane.plugin.outcome import properties_of
from pytest_ane.project.suite import FOLDER

if TYPE_CHECKING:
    from pytest_ane.plugin._workspace import Workspace

KEY = pytest.StashKey["Due"]()
_DRY = {"collectonly": "--collect-only", "setupplan": "--setup-plan", "setuponly": "--setup-only"}
"""Options that run no test, by their names in pytest's namespace."""
_OPTIONS = {
    "lf": "--lf",
    "stepwise": "--sw",
    "ignore": "--ignore",
    "ignore_glob": "--ignore-glob",
    "benchmark_only": "--benchmark-only",
    "benchmark_skip": "--benchmark-skip",
    "benchmark_disable": "--benchmark-disable",
}
"""Other options that leave tests out, by their names in pytest's namespace."""
_MOST_WORDS = 8


def watch(config: pytest.Config, space: Workspace) -> None:
    """Compare due and judged at the end; `UsageError` where `addopts` asks for a run of no test."""
    # What the person typed, without `addopts` of files and of the environment.
    line = config._parser.parse_known_args([*map(str, config.invocation_params.args)])
    for name, option in _DRY.items():
        if getattr(config.option, name) and not getattr(line, name):
            raise pytest.UsageError(
                f"{option} stands in addopts, so no selected shard would be judged; give it on the "
                "command line, or take it out."
            )
    if not is_worker(config) and not any(getattr(line, name) for name in _DRY):
        config.stash[KEY] = due = Due(config, space, line)
        config.pluginmanager.register(due, "ane-due")


class Due:
    """What is due, and what has been judged of it."""

    def __init__(self, config: pytest.Config, space: Workspace, line: Namespace) -> None:
        self._config = config
        self._space = space
        self._line = line
        self._judged: set[GateTest] = set()
        self._lacks: dict[GateTest, str] = {}
        self._hidden: dict[str, str] = {}
        self._failed: set[str] = set()
        self._settled = self._is_red = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep that a gate was judged, or why its test ended without a red or green verdict."""
        self._failed |= {report.nodeid} if report.failed else set()
        of_gate = getattr(report, "ane_gate", None)
        if of_gate is None or report.when == "teardown":
            return
        test = GateTest(*of_gate)
        statuses = [str(v) for name, v in report.user_properties if name == "ane.status"]
        # What is judged otherwise than by `ane_gate` may have a subject that the manifest lacks.
        unproven = "unproven" in statuses and not self._space.allows_unproven(test.subject)
        fine = ("passed",) if unproven else ("passed", "unproven")
        if red := next((status for status in statuses if status not in fine), None):
            self._judged.add(test)
            if not report.failed:
                how = "is marked xfail" if hasattr(report, "wasxfail") else report.outcome
                self._hidden[report.nodeid] = f"{test}: its verdict is {red}, and its test {how}"
        elif statuses or (report.passed and report.when == "call" and not _owes_verdict(report)):
            self._judged.add(test)
        elif report.skipped and report.when == "call" and GATES[test.gate].marker == "bench":
            self._judged.add(test)  # Benchmarks say so where they do not fit a shard.
        elif report.skipped:
            self._lacks[test] = _why_skipped(report)
        elif report.when == "call" and report.passed:
            self._lacks[test] = "its test passed without a verdict; hand one to ane_gate"

    def settle(self, session: pytest.Session) -> None:
        """Report as failed tests: gates that are due and have no verdict, and hidden verdicts."""
        self._settled = True
        missing = [_missing(test, why) for test, why in self.gaps()]
        reports = missing + [_failed(nodeid, why) for nodeid, why in self._hidden.items()]
        self._is_red = bool(reports)
        for report in reports:
            session.config.hook.pytest_runtest_logreport(report=report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        """Never green with a gap, even where `pytest.exit(0)` ended the run; 5 with no gate."""
        if session.exitstatus == pytest.ExitCode.OK and not self._settled:
            self.settle(session)
        result = yield
        if session.exitstatus != pytest.ExitCode.OK:
            return result
        if self._is_red:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif not self._judged and session.config.stash.get(HELD, None) is None:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
        return result

    def sentence(self) -> str:
        """`12 of 30 due gates judged, 18 left out by -k fidelity`; empty where all were judged."""
        options = (self._left_out(test) for test in self.tests if test not in self._judged)
        left = Counter(filter(None, options))
        judged = self._judged & set(self.tests)
        own = any(test.gate not in GATES for test in self._judged)
        if not left or (own and not judged):
            return "" if self._judged or self._lacks else "no gate was judged"
        others = ", ".join(f"{n} left out by {option}" for option, n in left.items())
        of = f"{len(judged)} of {len(self.tests)} due gates judged"
        return f"{of if self._judged else 'no gate was judged'}, {others}"

    @cached_property
    def tests(self) -> list[GateTest]:
        """Every gate of every selected shard and complete model; benchmarks where they are run."""
        if self._config.stash.get(HELD, None) is not None:
            return []
        markers = {"gate"} | ({"bench"} if is_wanted(self._config) else set())
        # `-m gate` and `-m bench` alone ask for nothing of the other kind.
        other = {"gate": "bench", "bench": "gate"}.get(self._line.markexpr)
        return [test for test in self._space.due(markers) if GATES[test.gate].marker != other]

    def gaps(self) -> Iterator[tuple[GateTest, str]]:
        """What is due and has no verdict, though no option left it out; and why."""
        for test in dict.fromkeys((*self.tests, *self._lacks)):
            if test.gate not in GATES:
                continue
            lacks = test in self._lacks or test not in self._judged
            if lacks and _nodeid(test) not in self._failed and not self._left_out(test):
                yield test, self._lacks.get(test, "no test asked it")

    def _left_out(self, test: GateTest) -> str:
        """The option by which the person left a gate out; empty for none."""
        line, gate, nodeid = self._line, GATES[test.gate], _nodeid(test)
        marks = {gate.marker, gate.name, *gate.aliases}
        if line.markexpr and not _must_match(line.markexpr, lambda word: word in marks):
            return f"-m '{line.markexpr}'"
        names = [name.lower() for name in (FOLDER, *nodeid.split("/")[-1].split("::"), *marks)]
        if line.keyword and not _must_match(
            line.keyword, lambda word: any(word.lower() in name for name in names)
        ):
            return f"-k '{line.keyword}'"
        for prefix in line.deselect or ():
            if nodeid.startswith(prefix):
                return f"--deselect {prefix}"
        if not _collection.is_everything(self._config) and not any(
            self._covers(arg, nodeid) for arg in line.file_or_dir
        ):
            return "the paths named"
        return next((text for name, text in _OPTIONS.items() if getattr(line, name, None)), "")

    def _covers(self, arg: str, nodeid: str) -> bool:
        file, colons, test = str(arg).partition("::")
        root = self._config.rootpath
        path = Path(self._config.invocation_params.dir, file).absolute()
        if path.is_relative_to(root) and path.exists():
            file = path.relative_to(root).as_posix()
        return _collection.names(f"{file}{colons}{test}", nodeid)


def _nodeid(test: GateTest) -> str:
    return f"{FOLDER}/test_{test.gate}.py::test_{test.gate}[{test.id}]"


def _must_match(expression: str, knows: Callable[[str], bool]) -> bool:
    """Whether `-k` or `-m` holds whatever is true of unknown words, such as one's own marks."""
    words = set(re.findall(r"[^\s()]+", expression)) - {"and", "or", "not"}
    unknown = [word for word in sorted(words) if not knows(word)]
    if len(unknown) > _MOST_WORDS:
        return False
    compiled = Expression.compile(expression)
    for values in product((False, True), repeat=len(unknown)):
        true = {word for word, value in zip(unknown, values, strict=True) if value}
        if not compiled.evaluate(lambda word, /, true=true, **_: word in true or knows(word)):
            return False
    return True


def _owes_verdict(report: pytest.TestReport) -> bool:
    """One of one's own may judge by `assert`."""
    gate: str = report.ane_gate[0]
    return bool(report.ane_shipped) and gate in GATES and GATES[gate].marker == "gate"


def _why_skipped(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return "its test is marked xfail"
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return f"its test was skipped ({reason.removeprefix('Skipped: ') or 'no reason'})"


def _missing(test: GateTest, why: str) -> pytest.TestReport:
    summary = f"due, and not judged: {why}"
    report = _failed(_nodeid(test), f"{test} was {summary}")
    report.user_properties += properties_of(test.gate, test.subject, "not run", summary)
    report.ane_part = test.part  # type: ignore[attr-defined]
    return report


def _failed(nodeid: str, sentence: str) -> pytest.TestReport:
    file, _, name = nodeid.partition("::")
    return pytest.TestReport(
        nodeid=nodeid,
        location=(file, None, name),
        keywords={},
        outcome="failed",
        longrepr=sentence,
        when="call",
        user_properties=[],
    )
