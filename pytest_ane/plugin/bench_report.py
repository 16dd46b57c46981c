"""The end of a run of benchmarks: our table, and pytest-benchmark's regressions as an exit code."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest
from pytest_benchmark.session import PerformanceRegression

from pytest_ane.gates.throughput.speed import KEY
from pytest_ane.mlprogram.text import LONGEST, printable
from pytest_ane.plugin import workspace
from pytest_ane.plugin.bench_options import is_requested
from pytest_ane.report.throughput import lines

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

_VOLATILE = ("hz_actual", "hz_actual_friendly")
"""What the clock happened to be when pytest-benchmark looked."""


class BenchReport:
    """Registered in runs that are for benchmarks."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._regressed = False

    @pytest.hookimpl(wrapper=True)
    def pytest_terminal_summary(
        self, terminalreporter: TerminalReporter
    ) -> Generator[None, object, object]:
        """Write the table below pytest-benchmark's, whose regression is no traceback.

        The tests that regressed have failed by now: `against_baseline` heeds
        `--benchmark-compare-fail`, too.
        """
        try:
            result = yield
        except (PerformanceRegression, pytest.UsageError) as error:
            result, self._regressed = None, True
            terminalreporter.write_line(printable(f"pytest-benchmark: {error}"), red=True)
        judged = workspace.of(self._config).speeds
        if judged and self._config.get_verbosity() >= -1:
            everything = self._config.get_verbosity() > 0
            terminalreporter.write_sep("=", "ane throughput")
            for line in lines(judged, everything=everything):
                terminalreporter.write_line(printable(line, LONGEST))
        if self._compared_nothing():
            terminalreporter.write_line("--benchmark-compare: nothing was compared", red=True)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        """A regression of other tests is an exit code, and so is a comparison with nothing."""
        result = yield
        if self._regressed and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self._compared_nothing() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.USAGE_ERROR
        return result

    def _compared_nothing(self) -> bool:
        """Whether a comparison was asked for, and no benchmark had one."""
        config = self._config
        if not is_requested(config) or config.option.collectonly:
            return False
        benchmarks = config._benchmarksession.benchmarks  # type: ignore[attr-defined]
        others = any(KEY not in benchmark.extra_info for benchmark in benchmarks)
        speeds = workspace.of(config).speeds
        return not others and not any("change" in verdict.values for _, verdict in speeds)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_benchmark_group_stats(
        self, benchmarks: list[dict[str, Any]], group_by: str
    ) -> Generator[None, object, object]:
        """Group by a parameter that not every benchmark has, such as `param:tokens`."""
        labels = group_by.split(",")
        names = [label.removeprefix("param:") for label in labels if "param:" in label]
        for benchmark in benchmarks:
            benchmark["params"] = dict.fromkeys(names) | (benchmark["params"] or {})
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_benchmark_compare_machine_info(
        self,
        benchmarksession: Any,
        machine_info: dict[str, Any],
        compared_benchmark: dict[str, Any],
    ) -> Generator[None, object, object]:
        """Keep a clock that changes all the time from being called another machine.

        Of another machine pytest-benchmark warns; runs stored outside the working folder it
        cannot name then (`FileStorage.location` of 5.3), and ends in an internal error.
        """
        now, then = machine_info.get("cpu", {}), compared_benchmark["machine_info"].get("cpu", {})
        now |= {name: then[name] for name in _VOLATILE if name in then and name in now}
        try:
            return (yield)
        except ValueError:
            # No warning: those may be errors, and the verdict says what differs.
            benchmarksession.logger.info(f"Other machine_info: {benchmarksession.storage}")
            return None
