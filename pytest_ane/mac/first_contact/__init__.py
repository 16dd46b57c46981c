"""The first run on a Mac, as a pytest suite: what the Core ML backend assumes, a test for each.

    pytest-ane first-contact --shard L01

A test's docstring is the assumption; its assert says what it means when it does not hold, and a
skip why this machine cannot tell. The tests ask Core ML where the backend does, in a child process
with a time limit, so a crash or a hang is one failed test. Each result is a line of
`results.jsonl` as soon as it is known. The next run in the folder takes over what did not fail,
and asks the rest: a killed run goes on where it was. What goes home is a zip file of the results,
JUnit's XML, what Core ML answered (folders for a `Replayer`), and rows of its arithmetic.
"""

from __future__ import annotations

import getpass
import inspect
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import filelock
import pytest

import pytest_ane
from pytest_ane.backends.coreml import Machine, without_ane
from pytest_ane.backends.coreml.backend import compile_package
from pytest_ane.backends.coreml.process import Device
from pytest_ane.mac.first_contact._packages import package
from pytest_ane.mlprogram.atomic import write_atomically
from pytest_ane.mlprogram.errors import ExecutionError

T = TypeVar("T")
SUITE, PARTS = Path(__file__).parent, ("machine", "core_ml", "backend")
_SENT = ("results.jsonl", "junit.xml", "recordings", "arithmetic")
_SHORTEST_NAME = 2
_PLACE, _WORD = r"(?:{})(?![\w-])", r"(?<![^\W_])(?:{})(?![^\W_])"


@dataclass(frozen=True)
class Setup:
    """What a run is of.

    Attributes:
        folder: of this run, for one build of macOS.
        shard: the shard whose gates run; empty for a package of the suite's own.
        manifest: that has the shard; empty for `shards.toml` in the current folder.
        replay: a folder with a script that answers for Core ML; empty for Core ML itself.
        seconds: how long one question to Core ML may take.
    """

    folder: Path
    shard: str = ""
    manifest: str = ""
    replay: str = ""
    seconds: float = 300.0


@dataclass(frozen=True)
class Result:
    """What became of a test.

    Attributes:
        test: its name, with parameters.
        outcome: `passed`, `failed` or `skipped`.
        assumed: the assumption.
        found: what the machine did, and what that means or why it is not known.
    """

    test: str
    outcome: str
    assumed: str
    found: str


def run(setup: Setup, keyword: str = "") -> list[Result]:
    """Run the tests that have not passed yet; the results of all that were chosen.

    Args:
        setup: what the run is of; its folder is made.
        keyword: an expression of `pytest -k` that chooses tests.

    Raises:
        ExecutionError: the folder holds a run of another setup, is in use, or cannot be written;
            or no test is chosen.
        KeyboardInterrupt: Ctrl-C; what was measured is kept.
    """
    try:
        setup.folder.mkdir(parents=True, exist_ok=True)
        options = [
            *(str(SUITE / f"test_{name}.py") for name in PARTS), f"--rootdir={SUITE}",
            f"--confcutdir={SUITE}", "-c", os.devnull, "-q", "--tb=no", "-rN", "-k", keyword,
            "-p", "no:cacheprovider", "-p", "no:warnings", "-p", "no:xdist", "-p", "no:ane",
            "-o", "junit_family=xunit1", f"--junitxml={setup.folder / 'junit.xml'}",
        ]  # fmt: skip
        if setup.replay:
            options += ["-p", "pytest_ane.mac.testing", f"--ane-replay={setup.replay}"]
        with filelock.FileLock(setup.folder / "lock", timeout=0), _awake():
            kit = Kit(setup)
            code = pytest.main(options, plugins=[kit, sys.modules[__name__]])
    except filelock.Timeout:
        raise ExecutionError(
            f"{setup.folder}: another run uses this folder; wait for it, or name another with "
            "--folder."
        ) from None
    except OSError as error:
        raise ExecutionError(f"{setup.folder}: cannot be written ({error.strerror}).") from None
    if code == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise ExecutionError(f"-k {keyword!r}: no test has such a name; give words of the table.")
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise ExecutionError(f"first-contact: pytest ended with exit code {int(code)}; see above.")
    return kit.results()


@pytest.fixture(scope="session")
def kit(pytestconfig: pytest.Config) -> Kit:
    """What the tests share."""
    return next(p for p in pytestconfig.pluginmanager.get_plugins() if isinstance(p, Kit))


@pytest.fixture
def found(record_property: Callable[[str, object], None]) -> Callable[[object], None]:
    """`found("3 of 3 ops on the ANE")`: what the machine did, for the table and JUnit's XML."""
    return partial(record_property, "found")


class Kit:
    """The plugin of a run, and the fixture `kit` of its tests."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.folder = setup, setup.folder
        self.device = Device(setup.seconds)
        self._file = self.folder / "results.jsonl"
        self._done: dict[str, Any] = {}
        self._reports: dict[str, list[pytest.TestReport]] = {}
        self._test = ""
        self._read()

    @cached_property
    def machine(self) -> Machine:
        """This Mac."""
        return Machine.detect()

    @property
    def no_ane(self) -> str:
        """The kind of machine, where it proves nothing of the ANE; else empty."""
        return without_ane(self.machine.device_facts())

    @property
    def units(self) -> str:
        """With the ANE where there is one."""
        return "CPU_ONLY" if self.no_ane else "CPU_AND_NE"

    @cached_property
    def work(self) -> Path:
        """Packages and compiled models, which are not sent."""
        folder = self.folder / "work"
        folder.mkdir(exist_ok=True)
        return folder

    def package(self, name: str) -> Path:
        """One of the suite's packages."""
        return package(name, self.work)

    def compiled(self, name: str) -> Path:
        """The same, compiled; made unless it is there."""
        path = self.work / f"{name}.mlmodelc"
        if not path.is_dir():
            # Renamed when it is complete: a killed run leaves no half model under the name.
            unfinished = path.with_name(f"{name}.unfinished.mlmodelc")
            shutil.rmtree(unfinished, ignore_errors=True)
            compile_package(self.package(name), unfinished, self.machine, self.device)
            unfinished.rename(path)
        return path

    def ask(self, doing: str, function: Callable[..., T], *arguments: Any) -> T:
        """What a module's function gives in the process of Core ML.

        Raises:
            Exception: the function's own.
            ExecutionError: it took too long, or ended the process.
        """
        return self.device.run(self._test, doing, function, *arguments)

    def ask_recorded(self, name: str, doing: str, function: Callable[..., T], *arguments: Any) -> T:
        """The same, while Core ML's answers are kept for a `Replayer`."""
        folder = self.folder / "recordings" / name
        shutil.rmtree(folder, ignore_errors=True)
        answer: T = self.ask(doing, _recorded, str(folder), function, *arguments)
        return answer

    def results(self) -> list[Result]:
        """Of the tests of this run."""
        return [_result(reports) for reports in self._reports.values()]

    def _read(self) -> None:
        """Results of an earlier run; of a killed one the last line may be half."""
        run = {
            "pytest_ane": pytest_ane.__version__,
            "coremltools": version("coremltools"),
            "manifest": self.setup.manifest,
            "replay": self.setup.replay,
        }
        text = self._file.read_text() if self._file.exists() else ""
        known, *results = [*_parsed(text)] or [run]
        if known != run:
            differs = next(key for key in run if known.get(key) != run[key])
            raise ExecutionError(
                f"{self.folder}: holds a run with another {differs} ({known.get(differs)!r}, now "
                f"{run[differs]!r}); delete it, or name another folder with --folder."
            )
        latest = {result["test"]: result for result in results}
        lines = (f"{json.dumps(one)}\n" for one in (run, *latest.values()))
        write_atomically(self._file, "".join(lines).encode())
        self._done = {
            test: result["reports"]
            for test, result in latest.items()
            if not any(report["outcome"] == "failed" for report in result["reports"])
        }

    def pytest_configure(self, config: pytest.Config) -> None:
        """Keep the configuration, whose hooks read and write reports."""
        self._config = config

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """The shard's name is part of its tests' names, so that another shard is measured anew."""
        if "shard" in metafunc.fixturenames:
            metafunc.parametrize("shard", [self.setup.shard or "conv-iOS18"])

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """What is known already comes first: fixtures of tests end with the next test that runs."""
        items.sort(key=lambda item: item.nodeid not in self._done)
        for item in items:
            assert isinstance(item, pytest.Function)
            assumed = " ".join((inspect.getdoc(item.function) or "").split())
            item.user_properties.append(("assumed", assumed))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Report a known result again instead of running the test."""
        if item.nodeid not in self._done:
            return None
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for data in self._done[item.nodeid]:
            report = hook.pytest_report_from_serializable(config=self._config, data=data)
            if isinstance(report.longrepr, list):  # JSON has no tuples, which a skip's reason is.
                report.longrepr = tuple(report.longrepr)
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Remember whose question it is."""
        self._test = item.name

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a result once its test has ended, and print what was assumed and found."""
        reports = self._reports.setdefault(report.nodeid, [])
        reports.append(report)
        if report.when != "teardown":
            return
        if report.nodeid not in self._done:
            to_data = partial(self._config.hook.pytest_report_to_serializable, config=self._config)
            line = {"test": report.nodeid, "reports": [to_data(report=one) for one in reports]}
            with self._file.open("a") as file:
                file.write(f"{json.dumps(line)}\n")
        result = _result(reports)
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        terminal.write_line(f"{result.outcome:8} {result.test}: {result.assumed}")
        terminal.write_line(f"{'':9}{result.found}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str]:
        """Count a test once, and print no letter for it."""
        decides = report.when == "call" or report.outcome != "passed"
        return report.outcome if decides else "", "", ""


def _recorded(folder: str, function: Callable[..., T], *arguments: Any) -> T:
    from pytest_ane.mac.testing import Recorder

    with Recorder(folder):
        return function(*arguments)


def _parsed(text: str) -> Iterator[Any]:
    for line in text.splitlines():
        with suppress(ValueError):
            yield json.loads(line)


def _result(reports: list[pytest.TestReport]) -> Result:
    deciding = next((report for report in reports if report.outcome != "passed"), reports[0])
    properties = dict(reports[-1].user_properties)
    crash = getattr(deciding.longrepr, "reprcrash", None)
    why = ""
    if deciding.skipped and isinstance(deciding.longrepr, tuple):
        why = deciding.longrepr[2].removeprefix("Skipped: ")
    elif crash is not None:
        why = re.sub(r"^(?:AssertionError|[\w.]*\.ExecutionError): ", "", crash.message)
    found = "; ".join(filter(None, (str(properties.get("found", "")), why.partition("\n")[0])))
    test = deciding.nodeid.partition("::")[2].removeprefix("test_")
    return Result(test, deciding.outcome, str(properties.get("assumed", "")), found)


@contextmanager
def _awake() -> Iterator[None]:
    """Keep a Mac from going to sleep, as one does that nobody attends to."""
    if (tool := shutil.which("caffeinate")) is None:
        yield
        return
    with subprocess.Popen([tool, "-i", "-w", str(os.getpid())], stdin=subprocess.DEVNULL) as keeper:
        try:
            yield
        finally:
            keeper.kill()


def pack(folder: Path, target: Path) -> None:
    """Write a zip file of what goes home.

    Texts lose the user's name, the home folder, the machine's name, and the folders in use.

    Raises:
        ExecutionError: it cannot be written.
    """
    redact = redacting(folder)

    def copy(source: str, destination: str) -> None:
        data = Path(source).read_bytes()
        if not source.endswith(".safetensors"):
            data = redact(data.decode(errors="replace")).encode()
        Path(destination).write_bytes(data)

    try:
        with tempfile.TemporaryDirectory() as temporary:
            staged = Path(temporary, "sent")
            staged.mkdir()
            for name in _SENT:
                source = folder / name
                if source.is_dir():
                    shutil.copytree(source, staged / name, copy_function=copy)
                elif source.exists():
                    copy(str(source), str(staged / name))
            archive = shutil.make_archive(str(staged), "zip", staged)
            write_atomically(target, Path(archive).read_bytes())
    except OSError as error:
        raise ExecutionError(f"{target}: cannot be written ({error.strerror}).") from None


def redacting(folder: Path) -> Callable[[str], str]:
    """A function that takes personal data of this machine out of a text."""
    places = {
        str(folder.resolve()): "FOLDER",
        str(folder): "FOLDER",
        str(Path.cwd()): "CWD",
        str(Path.home()): "~",
        str(Path(tempfile.gettempdir()).resolve()): "TMP",
        tempfile.gettempdir(): "TMP",
    }
    host, user = socket.gethostname(), ""
    with suppress(KeyError, OSError):  # An account without a name.
        user = getpass.getuser()
    words = {user: "USER", host: "HOST", host.partition(".")[0]: "HOST"}
    patterns = [
        (re.compile(pattern.format(_forms(text)), re.IGNORECASE), name)
        for pattern, names in (
            (r"(?:{})(?![\w-])", places),
            (r"(?<![^\W_])(?:{})(?![^\W_])", words),
        )
        for text, name in sorted(names.items(), key=lambda item: -len(item[0]))
        if len(text) > _SHORTEST_NAME
    ]

    def redact(text: str) -> str:
        for pattern, name in patterns:
            text = pattern.sub(name, text)
        return text

    return redact


def _forms(text: str) -> str:
    """A pattern of a name as texts of macOS have it: decomposed, in a URL, for a shell, in JSON."""
    composed = {unicodedata.normalize(form, text) for form in ("NFC", "NFD")}
    forms = {text} | composed | {quote(one) for one in composed}
    forms |= {one.replace(" ", "\\ ") for one in composed}
    forms |= {json.dumps(one)[1:-1] for one in composed}
    return "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
