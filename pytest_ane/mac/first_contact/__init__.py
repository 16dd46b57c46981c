"""The first run on a Mac, as a pytest suite: what the Core ML backend assumes, a test for each.

A test's docstring is the assumption; its assert says what it means when it does not hold, and a
skip why this machine cannot tell. Core ML is asked in a child process with a time limit. Each
result is a line of `results.jsonl` as soon as it is known; the next run in the folder asks what is
missing or failed. What goes home is a zip file of results, recorded answers and rows of arithmetic.
"""

from __future__ import annotations

import getpass
import inspect
import io
import json
import os
import re
import shutil
import socket
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest

import pytest_ane
from pytest_ane.backends.coreml import Machine, without_ane
from pytest_ane.backends.coreml.backend import compile_package
from pytest_ane.backends.coreml.process import Device
from pytest_ane.mac._experiments import convert
from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.mlprogram.atomic import replacing_folder, write_atomically
from pytest_ane.mlprogram.errors import ExecutionError

T = TypeVar("T")
Found = Callable[[object], None]
SUITE, PARTS = Path(__file__).parent, ("machine", "core_ml", "backend")
_SENT = ("results.jsonl", "recordings", "arithmetic")
_SHORTEST_NAME = 2
_PLACE, _WORD = r"(?:{})(?![\w-])", r"(?<![^\W_])(?:{})(?![^\W_])"


@dataclass(frozen=True)
class Setup:
    """What a run is of; `seconds` are how long one question to Core ML may take.

    An empty `shard` is a package of the suite's own, an empty `manifest` `shards.toml` in the
    current folder; `replay` is a folder with a script that answers for Core ML, empty for itself.
    """

    folder: Path
    shard: str = ""
    manifest: str = ""
    replay: str = ""
    seconds: float = 300.0


@dataclass(frozen=True)
class Result:
    """A test's name and outcome, its assumption, and what was found, or why nothing was."""

    test: str
    outcome: str
    assumed: str
    found: str


def run(setup: Setup, keyword: str = "") -> list[Result]:
    """Run the tests that `-k` chooses and lack a result; `ExecutionError` if there is none."""
    try:
        setup.folder.mkdir(parents=True, exist_ok=True)
        kit = Kit(setup)
    except OSError as error:
        raise ExecutionError(f"{setup.folder}: cannot be written ({error.strerror}).") from None
    options = [
        *(str(SUITE / f"test_{name}.py") for name in PARTS), f"--rootdir={SUITE}",
        f"--confcutdir={SUITE}", "-c", os.devnull, "-q", "--tb=no", "-rN", "-k", keyword,
        "-p", "no:cacheprovider", "-p", "no:warnings", "-p", "no:xdist", "-p", "no:ane",
    ]  # fmt: skip
    if setup.replay:
        options += ["-p", "pytest_ane.mac.testing", f"--ane-replay={setup.replay}"]
    code = pytest.main(options, plugins=[kit, sys.modules[__name__]])
    if code == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if code in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
        raise ExecutionError(f"first-contact: pytest ended with exit code {int(code)}; see above.")
    if not kit.results:
        raise ExecutionError(f"-k {keyword!r}: no test has such a name; give words of the table.")
    return [*kit.results.values()]


@pytest.fixture(scope="session")
def kit(pytestconfig: pytest.Config) -> Kit:
    """What the tests share."""
    return next(p for p in pytestconfig.pluginmanager.get_plugins() if isinstance(p, Kit))


@pytest.fixture
def found(record_property: Callable[[str, object], None]) -> Found:
    """`found("3 of 3 ops on the ANE")`: what the machine did, for the table."""
    return partial(record_property, "found")


class Kit:
    """The plugin of a run, and the fixture `kit` of its tests."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.folder = setup, setup.folder
        self.device = Device(setup.seconds)
        self.results: dict[str, Result] = {}
        self._reports: list[pytest.TestReport] = []
        self._file = self.folder / "results.jsonl"
        self._of = {
            "pytest_ane": pytest_ane.__version__, "coremltools": version("coremltools"),
            "manifest": setup.manifest, "replay": setup.replay,
        }  # fmt: skip
        known = {line.pop("node"): line for line in self._lines() if line.pop("of") == self._of}
        self._known = {n: Result(**of) for n, of in known.items() if of["outcome"] != "failed"}
        lines = (self._line(node, result) for node, result in self._known.items())
        write_atomically(self._file, "".join(lines).encode())

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
        if not (path := self.work / f"{name}.mlmodelc").is_dir():
            with replacing_folder(path) as new:
                compile_package(self.package(name), new, self.machine, self.device)
        return path

    def ask(self, doing: str, function: Callable[..., T], *arguments: Any) -> T:
        """What a module's function gives, or raises, in the process of Core ML."""
        return self.device.run(self._item.name, doing, function, *arguments)

    def ask_recorded(self, name: str, doing: str, function: Callable[..., T], *arguments: Any) -> T:
        """The same, while Core ML's answers are kept for a `Replayer`."""
        folder = self.folder / "recordings" / name
        shutil.rmtree(folder, ignore_errors=True)
        answer: T = self.ask(doing, _recorded, str(folder), function, *arguments)
        return answer

    def _lines(self) -> Iterator[dict[str, Any]]:
        """Of an earlier run; of a killed one the last may be half."""
        for line in self._file.read_text().splitlines() if self._file.exists() else ():
            with suppress(ValueError):
                yield json.loads(line)

    def _line(self, node: str, result: Result) -> str:
        return json.dumps({"of": self._of, "node": node, **asdict(result)}) + "\n"

    def pytest_configure(self, config: pytest.Config) -> None:
        """Keep the terminal."""
        self._plugins = config.pluginmanager

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """The shard's name is part of its tests' names, so that another shard is measured anew."""
        if "shard" in metafunc.fixturenames:
            metafunc.parametrize("shard", [self.setup.shard or "conv-iOS18"])

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Print known results again, and leave their tests out."""
        for item in [item for item in items if item.nodeid in self._known]:
            items.remove(item)
            self._show(item.nodeid, self._known[item.nodeid])

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Remember whose question it is."""
        assert isinstance(item, pytest.Function)
        self._item = item

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a result once its test has ended, and print what was assumed and found."""
        self._reports.append(report)
        if report.when == "teardown":
            assumed = " ".join((inspect.getdoc(self._item.function) or "").split())
            result = _result(self._reports, assumed)
            self._reports = []
            with self._file.open("a") as file:
                file.write(self._line(report.nodeid, result))
            self._show(report.nodeid, result)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str]:
        """Count a test once, and print no letter for it."""
        decides = report.when == "call" or report.outcome != "passed"
        return report.outcome if decides else "", "", ""

    def _show(self, node: str, result: Result) -> None:
        self.results[node] = result
        terminal: Any = self._plugins.get_plugin("terminalreporter")
        terminal.write_line(f"{result.outcome:8} {result.test}: {result.assumed}")
        terminal.write_line(f"{'':9}{result.found}")


def _recorded(folder: str, function: Callable[..., T], *arguments: Any) -> T:
    from pytest_ane.mac.testing import Recorder

    with Recorder(folder):
        return function(*arguments)


def _result(reports: list[pytest.TestReport], assumed: str) -> Result:
    deciding = next((report for report in reports if report.outcome != "passed"), reports[0])
    crash = getattr(deciding.longrepr, "reprcrash", None)
    why = ""
    if isinstance(deciding.longrepr, tuple):  # A skip's file, line and reason.
        why = deciding.longrepr[2].removeprefix("Skipped: ")
    elif crash is not None:
        why = re.sub(r"^(?:AssertionError|[\w.]*\.ExecutionError): ", "", crash.message)
    told = str(dict(reports[-1].user_properties).get("found", ""))
    found = "; ".join(filter(None, (told, why.partition("\n")[0])))
    test = deciding.nodeid.partition("::")[2].removeprefix("test_")
    return Result(test, deciding.outcome, assumed, found)


def pack(folder: Path, target: Path) -> None:
    """Write a zip file of what goes home, without the names of user, machine and folders."""
    redact, data = redacting(folder), io.BytesIO()
    try:
        with ZipFile(data, "w", ZIP_DEFLATED) as archive:
            for sent in (folder / name for name in _SENT):
                for path in filter(Path.is_file, (sent, *sorted(sent.rglob("*")))):
                    content = path.read_bytes()
                    if path.suffix != ".safetensors":
                        content = redact(content.decode(errors="replace")).encode()
                    archive.writestr(path.relative_to(folder).as_posix(), content)
        write_atomically(target, data.getvalue())
    except OSError as error:
        raise ExecutionError(f"{target}: cannot be written ({error.strerror}).") from None


def redacting(folder: Path) -> Callable[[str], str]:
    """A function that takes personal data of this machine out of a text."""
    temporary, host, user = tempfile.gettempdir(), socket.gethostname(), ""
    with suppress(KeyError, OSError):  # An account without a name.
        user = getpass.getuser()
    places = {
        str(folder.resolve()): "FOLDER", str(folder): "FOLDER", str(Path.cwd()): "CWD",
        str(Path.home()): "~", str(Path(temporary).resolve()): "TMP", temporary: "TMP",
    }  # fmt: skip
    words = {user: "USER", host: "HOST", host.partition(".")[0]: "HOST"}
    patterns = [
        (re.compile(pattern.format(_forms(text)), re.IGNORECASE), name)
        for pattern, names in ((_PLACE, places), (_WORD, words))
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


CHANNELS = 64
SHAPE = (1, CHANNELS, 1, 4)
"""Of `x` in the convolutions."""
PIXELS = (1, 3, 8, 8)


def package(name: str, folder: Path) -> Path:
    """An `.mlpackage` of `PACKAGES` in a folder, made unless it is there."""
    if not (path := folder / f"{name}.mlpackage").exists():
        import_coremltools()
        with converter_notes(), replacing_folder(path) as new:
            PACKAGES[name](new)
    return path


def _conv(path: Path, target: str, factor: float = 1.0) -> None:
    """`conv`, `relu`, `conv` in fp16 between casts of the fp32 input and output."""
    from coremltools.converters.mil import Builder as mb

    weights = np.random.default_rng(0).standard_normal((CHANNELS, CHANNELS, 1, 1))
    first = (weights * factor).astype(np.float32)

    def body(x: Any) -> Any:
        inner = mb.relu(x=mb.conv(x=x, weight=first, name="first"), name="relu")
        return mb.conv(x=inner, weight=first[::-1].copy(), name="second")

    convert(path, body, [mb.TensorSpec(SHAPE)], target)


def _foldable(path: Path) -> None:
    """Ops that an optimizing compiler folds: two reshapes that cancel, and a product with 1."""
    from coremltools.converters.mil import Builder as mb

    weights = np.random.default_rng(1).standard_normal((CHANNELS, CHANNELS, 1, 1))
    # The converter's other passes would fold ops themselves.
    no_folding = import_coremltools().PassPipeline.CLEANUP

    def body(x: Any) -> Any:
        inner = mb.conv(x=x, weight=weights.astype(np.float32), name="first")
        inner = mb.reshape(x=inner, shape=(1, CHANNELS, 4, 1), name="there")
        inner = mb.reshape(x=inner, shape=SHAPE, name="back")
        return mb.relu(x=inner, name="relu")

    convert(path, body, [mb.TensorSpec(SHAPE)], "iOS18", pass_pipeline=no_folding)


def _state(path: Path) -> None:
    """`y` is the sum of all `x` so far, kept in the state `total`."""
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    def body(x: Any, total: Any) -> Any:
        new = mb.add(x=mb.read_state(input=total), y=x, name="sum")
        mb.coreml_update_state(state=total, value=new)
        return mb.identity(x=new, name="y")

    shape = (1, CHANNELS, 1, 32)
    specs = [mb.TensorSpec(shape, types.fp16), mb.StateTensorSpec(shape, types.fp16)]
    convert(path, body, specs, "iOS18")


def _functions(path: Path) -> None:
    ct = import_coremltools()
    description = ct.utils.MultiFunctionDescriptor()
    for name, factor in (("one", 1.0), ("two", 2.0)):
        part = path.with_name(f"functions-{name}.mlpackage")
        _conv(part, "iOS18", factor)
        description.add_function(str(part), "main", name)
    description.default_function_name = "one"
    ct.utils.save_multifunction(description, str(path))


def _image(path: Path) -> None:
    """The picture's channels, each plus 1, as floats."""
    from coremltools.converters.mil import Builder as mb

    picture = import_coremltools().ImageType(name="x", shape=PIXELS)

    def body(x: Any) -> Any:
        return mb.add(x=x, y=np.float32(1), name="y")

    convert(path, body, [mb.TensorSpec(PIXELS)], "iOS18", inputs=[picture])


def _int8(path: Path) -> None:
    """Rounded `x` as int8, an output type of macOS 26."""
    from coremltools.converters.mil import Builder as mb

    output = import_coremltools().TensorType(name="y", dtype=np.int8)

    def body(x: Any) -> Any:
        return mb.cast(x=x, dtype="int8", name="y")

    convert(path, body, [mb.TensorSpec((1, 16))], "iOS26", outputs=[output])


PACKAGES: Mapping[str, Callable[[Path], None]] = {
    **{f"conv-{target}": partial(_conv, target=target) for target in ("iOS16", "iOS17", "iOS18")},
    "foldable": _foldable,
    "state": _state,
    "functions": _functions,
    "image": _image,
    "int8": _int8,
}
