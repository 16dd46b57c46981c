"""A change runs a quarter of the tests marked `drawn`, by its commit; `make test-all` runs all.

The drawn tests of a file are dealt in turn to four quarters. A number deals by hand, so that what
shares a costly set-up stays together:

    @pytest.mark.drawn       each test, and each of its parameters, by itself
    @pytest.mark.drawn(2)    all that have this number: those of quarter 2, and of 6, 10, ...

`pytest --quarter=commit` runs the quarter that the commit's digest names, and says which;
`--quarter=2` repeats it anywhere. Without the option, or without a commit, all tests run.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.records.run import git

QUARTERS = 4
_LINE = pytest.StashKey[str]()


def quarter_of(commit: str) -> int:
    """The quarter that a commit's hexadecimal digest names."""
    return int(commit, 16) % QUARTERS


def deal(items: Iterable[pytest.Item]) -> dict[str, int]:
    """The quarter of each drawn test, by node id."""
    dealt: Counter[str] = Counter()
    quarters = {}
    for item in items:
        if mark := item.get_closest_marker("drawn"):
            file = item.nodeid.partition("::")[0]
            number = mark.args[0] if mark.args else zlib.crc32(file.encode()) + dealt[file]
            dealt[file] += not mark.args
            quarters[item.nodeid] = number % QUARTERS
    return quarters


def drawn(config: pytest.Config) -> tuple[int | None, str]:
    """The quarter to run, None for all, and the words for it."""
    match config.getoption("--quarter"):
        case "all":
            return None, "all tests"
        case "commit":
            commit = git(Path(__file__).parents[1], "rev-parse", "HEAD").strip()
            if not commit:
                return None, "all tests, for there is no commit to draw by"
            quarter = quarter_of(commit)
            return quarter, f"quarter {quarter} of {QUARTERS}, by commit {commit[:12]}"
        case given:
            return int(given), f"quarter {given} of {QUARTERS}"


def pytest_addoption(parser: pytest.Parser) -> None:
    choices = ["all", "commit", *map(str, range(QUARTERS))]
    parser.addoption("--quarter", default="all", choices=choices, help=__doc__.split("\n")[0])


def pytest_report_header(config: pytest.Config) -> str | None:
    return None if config.getoption("--quarter") == "all" else f"drawn: {drawn(config)[1]}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Deal before `-m` and `-k` take tests out, so that they change no test's quarter."""
    quarters = deal(items)
    yield
    quarter, words = drawn(config)
    if quarter is not None:
        others = [item for item in items if quarters.get(item.nodeid, quarter) != quarter]
        count = sum(item.nodeid in quarters for item in items)
        left_out = {item.nodeid for item in others}
        items[:] = [item for item in items if item.nodeid not in left_out]
        config.hook.pytest_deselected(items=others)
        config.stash[_LINE] = f"drawn: {count - len(others)} of {count} tests, {words}"
        if hasattr(config, "workeroutput"):
            config.workeroutput["drawn"] = config.stash[_LINE]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """All workers drew alike."""
    if line := getattr(node, "workeroutput", {}).get("drawn"):
        node.config.stash[_LINE] = line


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if line := config.stash.get(_LINE, None):
        terminalreporter.write_line(line)
