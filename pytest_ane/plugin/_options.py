"""Options: one table, from which the command line, the ini twins, help and docs are made.

This imports the standard library and pytest alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_ane.gates.words import GATE_WORDS
from pytest_ane.mlprogram.arithmetic import read_arithmetics
from pytest_ane.mlprogram.errors import AneError
from pytest_ane.project.process import in_ci

GATE_MARKERS = {
    "gate": "a quality gate of a model shard; runs only with --ane-shards or --ane-package.",
    "bench": "a throughput benchmark of a model shard; runs only with --ane-shards and -m bench.",
}
VERBS = ("missing", "stale", "all")
COMPARE = "--benchmark-compare"
_NONE = "none"
"""The cluster or store of who wants none, whatever ini file and manifest say."""


def _size(text: str) -> object:
    from pytest_ane.manifest import policy

    return policy.size(int(text) if text.isdecimal() else text)


def _seconds(text: str) -> object:
    from pytest_ane.manifest import policy

    return policy.seconds(int(text) if text.isdecimal() else text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= 1000):
        raise ValueError("give a number from 1 to 1000")
    return int(text)


def _verbs(text: str) -> frozenset[str]:
    verbs = frozenset(verb.strip() for verb in text.split(","))
    if unknown := sorted(verbs - {*VERBS}):
        raise ValueError(f"{unknown[0]!r} is none of {', '.join(VERBS)}")
    return verbs


@dataclass(frozen=True)
class Option:
    """An option, `--ane-cache`, and its twin of an ini file, `ane_cache`, if it `has_twin`.

    `read` makes a value of a text, of `default` where nothing is given; `ValueError` says what is
    wrong. `alone` is the text of the option without a value; `action` argparse's.
    """

    name: str
    meaning: str
    metavar: str = ""
    choices: tuple[str, ...] = ()
    read: Callable[[str], Any] = str
    default: str = ""
    has_twin: bool = True
    alone: str = ""
    action: str = ""

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


OPTIONS = (
    Option(
        "ane_shards",
        "shards to gate: ids, ranges and globs such as 'L00-L04,head*', 'smollm2:L01', "
        "'decoder[verify4]', 'sample:5' or 'all'; without it no gate runs",
        metavar="SELECTION",
        has_twin=False,
    ),
    Option(
        "ane_package",
        "gate an .mlpackage or .mlmodelc without a manifest: placement forecast, size, finite "
        "output that its input changes; may be given several times",
        metavar="PATH",
        action="append",
        has_twin=False,
    ),
    Option(
        "ane_manifest", "the manifest (default: shards.toml here, or in the root directory)", "FILE"
    ),
    Option(
        "ane_cache",
        "where built shards and recorded references are kept (default: the user's cache)",
        metavar="DIR",
    ),
    Option(
        "ane_store",
        "a store that machines share, such as s3://bucket/ane or a folder: what it has is not "
        "built here, and what is built here is stored; 'none' for none, whatever the manifest says",
        metavar="URL",
    ),
    Option(
        "ane_cluster",
        "spread builds, references and measurements over the workers of a Dask scheduler, such as "
        "tcp://10.0.0.7:8786; 'pytest-ane worker URL' adds one; 'none' for none, whatever the "
        "manifest says",
        metavar="URL",
    ),
    Option(
        "ane_cluster_timeout",
        "how long to wait for the scheduler, for a worker that can build a shard, and for one with "
        "a Neural Engine where a policy requires a device (default: 1 min)",
        metavar="TIME",
        read=_seconds,
        default="1 min",
    ),
    Option(
        "ane_cluster_insecure",
        "use a scheduler without certificates, in a network that is all yours: who reaches it, or "
        "reads along, runs code here",
        action="store_true",
        has_twin=False,
    ),
    Option(
        "ane_min_cosine",
        "override every fidelity policy's min-cosine, or that of some shards: '0.97', "
        "'L27:0.95,head*:0.98'; the last term that names a shard holds",
        metavar="[SHARDS:]X,...",
    ),
    Option(
        "ane_builds",
        "how many shards are built at once, over all workers and runs that share the cache "
        "(default: as many as memory holds at 3 GB each, at most one a core)",
        metavar="N",
        read=_count,
    ),
    Option(
        "ane_memory",
        "memory that running a program on the CPU executor may take, such as '8 GB' (default: half "
        "of what is free)",
        metavar="SIZE",
        read=_size,
    ),
    Option(
        "ane_time",
        "how long one call of a program may take on the CPU executor, such as '90 s' or '2 h' "
        "(default: 10 min)",
        metavar="TIME",
        read=_seconds,
    ),
    Option(
        "ane_arithmetic",
        "override every model's arithmetic: 'typed', 'ane' (simulated ANE, M4 and later) or "
        "'typed,ane'; for the CPU executor",
        metavar="A[,B]",
        read=read_arithmetics,
    ),
    Option(
        "ane_unproven",
        "override what becomes of a gate that could compare nothing (default: fail)",
        choices=("fail", "allow"),
    ),
    Option(
        "ane_warnings",
        "what becomes of a passed gate that warns, such as one that is predicted off the ANE",
        choices=("warn", "error"),
        default="warn",
    ),
    Option(
        "ane_backend",
        "what runs artifacts: Core ML, or the CPU executor (default: auto, which is coreml on "
        "macOS and cpu elsewhere)",
        choices=("auto", "cpu", "coreml"),
        default="auto",
    ),
    Option(
        "ane_compute_units",
        "where Core ML may run a model, with the backend coreml (default: CPU_AND_NE)",
        choices=("ALL", "CPU_AND_GPU", "CPU_AND_NE", "CPU_ONLY"),
        default="CPU_AND_NE",
    ),
    Option(
        "ane_device_timeout",
        "how long one call of Core ML may take before its process is ended, such as '20 min' "
        "(default: 10 min, since compiling a large shard for the ANE takes minutes); 0 runs Core "
        "ML in this process, without a limit",
        metavar="TIME",
        read=lambda text: None if text == "0" else _seconds(text),
        default="10 min",
    ),
    Option(
        "ane_blame",
        "say which weights and operations a shard's error comes from: of shards that 'failed' "
        "fidelity (the default), 'always' (the option alone) or 'never'",
        metavar="WHEN",
        choices=("always", "failed", "never"),
        default="failed",
        alone="always",
    ),
    Option(
        "ane_report",
        "write all verdicts to a file, whose name ends with .html or .md; or all records to a file "
        ".jsonl, which 'pytest-ane evidence verify-run' judges again, or to a new file in a "
        "folder, such as history/, which 'pytest-ane history' asks",
        metavar="FILE",
        action="append",
        has_twin=False,
    ),
    Option(
        "ane_model_explorer",
        "write the program of every judged shard as a graph for Google's Model Explorer, with the "
        "unit, error and hazards of its operations",
        metavar="DIR",
        has_twin=False,
    ),
    Option(
        "ane_record",
        "on a Mac: record evidence of what is measured; 'missing', 'stale', both (the default), or "
        "'all'",
        metavar="WHICH",
        read=_verbs,
        alone="missing,stale",
        has_twin=False,
    ),
    Option(
        "ane_record_force", "record in CI, or with xdist, too", action="store_true", has_twin=False
    ),
    Option("ane_evidence", "where evidence is kept (default: evidence beside the manifest)", "DIR"),
    Option(
        "ane_rehash",
        "read every artifact, cache entry and source again, whatever is remembered of its digest; "
        "always so in CI",
        action="store_true",
        has_twin=False,
    ),
)
_BY_NAME = {option.name: option for option in OPTIONS}


def add(parser: pytest.Parser) -> None:
    group = parser.getgroup("ane", "quality gates for Core ML model shards (pytest-ane)")
    for option in OPTIONS:
        how: dict[str, Any] = {"action": option.action} if option.action else {}
        if option.metavar:
            how["metavar"] = option.metavar
        elif option.choices:
            how["choices"] = option.choices
        if option.alone:
            how |= {"nargs": "?", "const": option.alone}
        group.addoption(option.flag, help=option.meaning, **how)
        if option.has_twin:
            relative = ", relative to the ini file" if option.metavar in ("FILE", "DIR") else ""
            parser.addini(option.name, f"as {option.flag}{relative}; the option wins", default="")


def add_markers(config: pytest.Config) -> None:
    """Register markers, so that strict markers know them."""
    for name, meaning in GATE_MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    for gate, words in GATE_WORDS.items():
        for word in (gate, *words):
            config.addinivalue_line("markers", f"{word}: the {gate} gate.")


def wanted(config: pytest.Config) -> bool:
    return any(config.getoption(name, None) is not None for name in ("ane_shards", "ane_package"))


def is_compared(config: pytest.Config) -> bool:
    """Whether `--benchmark-compare` was given, on the command line or in `addopts`."""
    return bool(config.getoption("benchmark_compare", None))


def is_requested(config: pytest.Config) -> bool:
    """Whether it was given on the command line, so that a run without a comparison is an error."""
    return any(str(a).partition("=")[0] == COMPARE for a in config.invocation_params.args)


def is_given(config: pytest.Config, option: str) -> bool:
    """Whether an option was given whose default is no None."""
    given = [*map(str, config.invocation_params.args), *config.getini("addopts")]
    return any(arg.startswith(option) for arg in given)


@contextmanager
def usage_errors() -> Iterator[None]:
    """Let our errors be pytest's: one sentence, and exit code 4."""
    try:
        yield
    except AneError as error:
        raise pytest.UsageError(str(error)) from None


def text(config: pytest.Config, name: str) -> str:
    """An option's text: command line, else ini, else empty; `UsageError` as of `value`."""
    if (given := config.getoption(name, None)) == "":
        raise pytest.UsageError(f"{_BY_NAME[name].flag} is empty; give a value or leave it out.")
    if given is None and _BY_NAME[name].has_twin:
        given = config.getini(name)
    return str(given or "")


def value(config: pytest.Config, name: str) -> Any:
    """An option's value as the table reads it, None without any; `UsageError` where it is wrong."""
    option = _BY_NAME[name]
    given = text(config, name) or option.default
    how = f"{origin(config, name)}={given}"
    if option.choices and given not in ("", *option.choices):
        *most, last = map(repr, option.choices)
        raise pytest.UsageError(f"{how}: give {', '.join(most)} or {last}.")
    try:
        return option.read(given) if given else None
    except ValueError as error:
        raise pytest.UsageError(f"{how}: {error}.") from None


def origin(config: pytest.Config, name: str) -> str:
    """How a value was set: `--ane-min-cosine` or `ane_min_cosine`."""
    return name if config.getoption(name, None) is None else _BY_NAME[name].flag


def path(config: pytest.Config, name: str) -> Path | None:
    """A path option: relative to where pytest was called, or to the ini file for an ini value."""
    given, base = text(config, name), config.inipath.parent if config.inipath else config.rootpath
    if config.getoption(name, None) is not None:
        base = config.invocation_params.dir
    return Path(base, Path(given).expanduser()).absolute() if given else None


def manifest_file(config: pytest.Config) -> Path:
    """The manifest; it need not exist. One where pytest was called goes before the root's."""
    here = config.invocation_params.dir / "shards.toml"
    usual = here if here.is_file() else config.rootpath / "shards.toml"
    return path(config, "ane_manifest") or usual


def url(config: pytest.Config, name: str) -> str | None:
    """URL of store or cluster, of a folder its path; None for the manifest's, empty for `none`."""
    if (given := text(config, name)) == _NONE:
        return ""
    folder = path(config, name) if name == "ane_store" and "://" not in given else given
    return str(folder) if folder else None


def refuse_with_cluster(config: pytest.Config) -> None:
    """Refuse, by `UsageError`, what a run over a cluster does by itself."""
    given = {
        "-n": is_spread(config),
        "--ane-backend=coreml": text(config, "ane_backend") == "coreml",
        "--ane-record": config.getoption("ane_record", None) is not None,
    }
    if wrong := next((option for option, is_there in given.items() if is_there), ""):
        raise pytest.UsageError(
            f"--ane-cluster and {wrong}: a cluster's workers work side by side, ask Core ML where "
            f"a policy requires a device, and record it; leave {wrong} out, or say "
            "--ane-cluster=none."
        )


def is_spread(config: pytest.Config) -> bool:
    """Whether xdist runs the tests: `-n`, and what it stands for, `--dist` with `--tx`."""
    return bool(config.getoption("numprocesses", None) or config.getoption("tx", None))


def backend(config: pytest.Config) -> Literal["cpu", "coreml"]:
    """What runs artifacts; `auto` is settled by the system."""
    asked = value(config, "ane_backend")
    on_mac = asked == "coreml" or (asked == "auto" and sys.platform == "darwin")
    return "coreml" if on_mac else "cpu"


def compute_units(config: pytest.Config) -> Any:
    """Where Core ML may run a model; `UsageError` where cpu is given beside, which has none."""
    units = value(config, "ane_compute_units")
    given = config.getoption("ane_compute_units", None) is not None
    if given and text(config, "ane_backend") == "cpu":
        raise pytest.UsageError(
            f"--ane-compute-units={units} is for --ane-backend=coreml; leave it out with cpu."
        )
    return units


def packages(config: pytest.Config) -> list[Path]:
    return list(dict.fromkeys(file for file, _ in _named(config, "ane_package")))


def report_files(config: pytest.Config, *, records: bool) -> list[Path]:
    """Those for people, or for `records`: .jsonl, and folders: that exist, or end with a slash."""
    found = []
    for path, name in _named(config, "ane_report"):
        is_folder = not path.suffix and (name.endswith("/") or path.is_dir())
        if records == (path.suffix.lower() == ".jsonl" or is_folder):
            found.append(path)
    return found


def on_github() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"


def recording(config: pytest.Config) -> frozenset[str]:
    """Verbs of `--ane-record`; `UsageError` in CI, and under xdist, which shares a device."""
    verbs: frozenset[str] = value(config, "ane_record") or frozenset()
    if not verbs or config.getoption("ane_record_force"):
        return verbs
    if hasattr(config, "workerinput") or is_spread(config):
        raise pytest.UsageError(
            "--ane-record under xdist: processes that share one device disturb each other; leave "
            "-n out, or add --ane-record-force."
        )
    if in_ci():
        raise pytest.UsageError(
            "--ane-record in CI (the variable CI is set): a run that records its own evidence "
            "verifies nothing; record on a Mac and commit the files, or add --ane-record-force."
        )
    return verbs


def _named(config: pytest.Config, name: str) -> list[tuple[Path, str]]:
    names: list[str] = config.getoption(name) or []
    if "" in names:
        raise pytest.UsageError(f"{_BY_NAME[name].flag} is empty; give a value or leave it out.")
    return [(Path(config.invocation_params.dir, Path(n).expanduser()).absolute(), n) for n in names]
