"""Command line options, their ini twins, and markers; and their values, checked.

This imports the standard library and pytest alone.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import pytest

from pytest_ane.gates.words import GATE_WORDS
from pytest_ane.mlprogram.arithmetic import Arithmetic, read_arithmetics
from pytest_ane.project.process import in_ci

if TYPE_CHECKING:
    from pytest_ane.backends import ComputeUnits

GATE_MARKERS = {
    "gate": "a quality gate of a model shard; runs only with --ane-shards or --ane-package.",
    "bench": "a throughput benchmark of a model shard; runs only with --ane-shards and -m bench.",
}

FATES = ("fail", "allow")
BACKENDS = ("auto", "cpu", "coreml")
UNITS = ("ALL", "CPU_AND_GPU", "CPU_AND_NE", "CPU_ONLY")
WHERE = ("auto", "on", "off")
BLAMES = ("always", "failed", "never")
_NONE = "none"
"""The cluster or store of who wants none, whatever ini file and manifest say."""
_WAIT = 60.0
"""Seconds that a run waits for a cluster's scheduler and workers."""
VERBS = ("missing", "stale", "all")

_INI = {
    "ane_manifest": "the manifest, relative to the ini file",
    "ane_cache": "cache folder, relative to the ini file",
    "ane_cluster": "URL of the Dask scheduler over whose workers the run is spread",
    "ane_cluster_timeout": "how long to wait for scheduler and workers, such as '5 min'",
    "ane_cache_max_size": "how much the cache folder may hold, such as '20 GB'",
    "ane_store": "the store that machines share: a URL, or a folder relative to the ini file",
    "ane_min_cosine": "overrides fidelity policies' min-cosine: a number, or 'L27:0.95,head*:0.98'",
    "ane_min_contribution": "the same for min-contribution",
    "ane_evidence": "where evidence is kept, relative to the ini file",
    "ane_builds": "how many shards are built at once, over all workers",
    "ane_memory": "memory that running a program may take, such as '8 GB'",
    "ane_time": "how long one call of a program may take, such as '10 min'",
    "ane_backend": "'auto', 'cpu' or 'coreml': what runs artifacts",
    "ane_compute_units": "where Core ML may run a model, with the backend coreml",
    "ane_device_timeout": "how long one call of Core ML may take, such as '20 min'",
    "ane_arithmetic": "'typed', 'ane' or 'typed,ane': overrides every model's arithmetic",
    "ane_unproven": "'fail' or 'allow': overrides what becomes of an unproven verdict",
    "ane_blame": "'always', 'failed' or 'never': which fidelity verdicts are explained",
    "ane_github": "'auto', 'on' or 'off': job summary and annotations for GitHub Actions",
}


def add(parser: pytest.Parser) -> None:
    """Register options and ini values."""
    group = parser.getgroup("ane", "quality gates for Core ML model shards (pytest-ane)")
    group.addoption(
        "--ane-shards",
        metavar="SELECTION",
        help="shards to gate: ids, ranges and globs such as 'L00-L04,head*', 'smollm2:L01', "
        "'decoder[verify4]', 'sample:5' or 'all'; without it no gate runs",
    )
    group.addoption(
        "--ane-package",
        metavar="PATH",
        action="append",
        help="gate an .mlpackage or .mlmodelc without a manifest: placement forecast, size, "
        "finite output that its input changes; may be given several times",
    )
    group.addoption(
        "--ane-manifest",
        metavar="FILE",
        help="the manifest (default: shards.toml in the root directory)",
    )
    group.addoption(
        "--ane-cache",
        metavar="DIR",
        help="where built shards and recorded references are kept (default: the user's cache)",
    )
    group.addoption(
        "--ane-cache-max-size",
        metavar="SIZE",
        help="how much the cache folder may hold, such as '20 GB'; entries that no process uses "
        "are deleted, the least recently used first (default: any)",
    )
    group.addoption(
        "--ane-store",
        metavar="URL",
        help="a store that machines share, such as s3://bucket/ane or a folder: what it has is not "
        "built here, and what is built here is stored; 'none' for none, whatever the manifest says",
    )
    group.addoption(
        "--ane-cluster",
        metavar="URL",
        help="spread builds, references and measurements over the workers of a Dask scheduler, "
        "such as tcp://10.0.0.7:8786; 'pytest-ane worker URL' adds one; 'none' for none, whatever "
        "the manifest says",
    )
    group.addoption(
        "--ane-cluster-timeout",
        metavar="TIME",
        help="how long to wait for the scheduler, for a worker that can build a shard, and for one "
        "with a Neural Engine where a policy requires a device (default: 1 min)",
    )
    group.addoption(
        "--ane-min-cosine",
        metavar="[SHARDS:]X,...",
        help="override every fidelity policy's min-cosine, or that of some shards: "
        "'0.97', 'L27:0.95,head*:0.98'; the last term that names a shard holds",
    )
    group.addoption(
        "--ane-min-contribution",
        metavar="[SHARDS:]X,...",
        help="the same for min-contribution, the cosine with the residual path taken out",
    )
    group.addoption(
        "--ane-builds",
        metavar="N",
        help="how many shards are built at once, over all workers and runs that share the cache "
        "(default: as many as memory holds at 3 GB each, at most one a core)",
    )
    group.addoption(
        "--ane-memory",
        metavar="SIZE",
        help="memory that running a program on the CPU executor may take, such as '8 GB' "
        "(default: half of what is free)",
    )
    group.addoption(
        "--ane-time",
        metavar="TIME",
        help="how long one call of a program may take on the CPU executor, such as '90 s' or '2 h' "
        "(default: 10 min)",
    )
    group.addoption(
        "--ane-arithmetic",
        metavar="A[,B]",
        help="override every model's arithmetic: 'typed', 'ane' (simulated ANE, M4 and later) or "
        "'typed,ane'; for the CPU executor",
    )
    group.addoption(
        "--ane-unproven",
        choices=FATES,
        help="override what becomes of a gate that could compare nothing (default: fail)",
    )
    group.addoption(
        "--ane-backend",
        choices=BACKENDS,
        help="what runs artifacts: Core ML, or the CPU executor (default: auto, which is coreml on "
        "macOS and cpu elsewhere)",
    )
    group.addoption(
        "--ane-compute-units",
        choices=UNITS,
        help="where Core ML may run a model, with the backend coreml (default: CPU_AND_NE)",
    )
    group.addoption(
        "--ane-device-timeout",
        metavar="TIME",
        help="how long one call of Core ML may take before its process is ended, such as '20 min' "
        "(default: 10 min, since compiling a large shard for the ANE takes minutes); 0 runs Core "
        "ML in this process, without a limit",
    )
    group.addoption(
        "--ane-blame",
        metavar="WHEN",
        nargs="?",
        const="always",
        help="say which weights and operations a shard's error comes from: of shards that 'failed' "
        "fidelity (the default), 'always' (the option alone) or 'never'",
    )
    group.addoption(
        "--ane-github",
        choices=WHERE,
        help="job summary and annotations for GitHub Actions (default: auto, where "
        "GITHUB_ACTIONS=true)",
    )
    group.addoption(
        "--ane-report",
        metavar="FILE",
        action="append",
        help="write all verdicts to a file, whose name ends with .html or .md; or all records to a "
        "file .jsonl, which 'pytest-ane evidence verify-run' judges again, or to a new file in a "
        "folder, such as history/, which 'pytest-ane history' asks",
    )
    group.addoption(
        "--ane-model-explorer",
        metavar="DIR",
        help="write the program of every judged shard as a graph for Google's Model Explorer, with "
        "the unit, error and hazards of its operations",
    )
    group.addoption(
        "--ane-record",
        metavar="WHICH",
        nargs="?",
        const="missing,stale",
        help="on a Mac: record evidence of what is measured; 'missing', 'stale', both (the "
        "default), or 'all'",
    )
    group.addoption(
        "--ane-record-force",
        action="store_true",
        help="record in CI, or with xdist, too",
    )
    group.addoption(
        "--ane-evidence",
        metavar="DIR",
        help="where evidence is kept (default: evidence beside the manifest)",
    )
    group.addoption(
        "--ane-rehash",
        action="store_true",
        help="read every artifact, cache entry and source again, whatever is remembered of its "
        "digest; always so in CI",
    )
    for name, meaning in _INI.items():
        option = name.replace("_", "-")
        parser.addini(name, f"{meaning}; --{option} wins", default="")


def add_markers(config: pytest.Config) -> None:
    """Register markers, so that strict markers know them."""
    for name, meaning in GATE_MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    for gate, words in GATE_WORDS.items():
        for word in (gate, *words):
            config.addinivalue_line("markers", f"{word}: the {gate} gate.")


def names_gates(expression: str) -> bool:
    """Whether `-m` or `-k` asks for gates by any of their words."""
    words = set(re.findall(r"\w+", re.sub(r"\bnot\s+\w+", "", expression)))
    return not words.isdisjoint({*GATE_MARKERS, *GATE_WORDS, *chain(*GATE_WORDS.values())})


def wanted(config: pytest.Config) -> bool:
    """Whether shards or a package are selected."""
    return any(config.getoption(name, None) is not None for name in ("ane_shards", "ane_package"))


def refuse_recording_nothing(config: pytest.Config) -> None:
    """Refuse `--ane-record` without shards: no gate would run, and nothing be recorded.

    Raises:
        pytest.UsageError: `--ane-record` without shards.
    """
    if config.getoption("ane_record", None) is not None:
        raise pytest.UsageError(
            "--ane-record records the gates of selected shards, and none is selected; add "
            "--ane-shards=all -m gate."
        )


def text(config: pytest.Config, name: str) -> str:
    """An option's text: command line, else ini, else empty."""
    value = _given(config, name)
    return value if value is not None else str(config.getini(name) or "")


def origin(config: pytest.Config, name: str) -> str:
    """How a value was set: `--ane-min-cosine` or `ane_min_cosine`."""
    on_command_line = config.getoption(name, None) is not None
    return f"--{name.replace('_', '-')}" if on_command_line else name


def path(config: pytest.Config, name: str) -> Path | None:
    """A path option: relative to where pytest was called, or to the ini file for an ini value."""
    value = _given(config, name)
    if value is not None:
        return _below(config.invocation_params.dir, value)
    value = config.getini(name)
    base = config.inipath.parent if config.inipath else config.rootpath
    return _below(base, value) if value else None


def store(config: pytest.Config) -> str | None:
    """URL, or absolute folder, of the store that machines share; None to leave the manifest's.

    Empty for none: `--ane-store=none`.

    Raises:
        pytest.UsageError: the option is empty.
    """
    if "://" in (value := text(config, "ane_store")) or value == _NONE:
        return value if value != _NONE else ""
    folder = path(config, "ane_store")
    return str(folder) if folder is not None else None


def cluster(config: pytest.Config) -> str | None:
    """URL of the scheduler over whose workers the run is spread; None to leave the manifest's.

    Empty for none: `--ane-cluster=none`.

    Raises:
        pytest.UsageError: the option is empty.
    """
    value = text(config, "ane_cluster")
    return "" if value == _NONE else value or None


def cluster_timeout(config: pytest.Config) -> float:
    """Seconds to wait for scheduler and workers.

    Raises:
        pytest.UsageError: it is no time.
    """
    from pytest_ane.manifest.policy import seconds

    return cast("float | None", _measured(config, "ane_cluster_timeout", seconds)) or _WAIT


def refuse_with_cluster(config: pytest.Config) -> None:
    """Refuse what a run over a cluster cannot do.

    Raises:
        pytest.UsageError: with the option that is to be left out.
    """
    if config.getoption("numprocesses", None) or config.getoption("tx", None):
        raise pytest.UsageError(
            "--ane-cluster and -n: the cluster's workers already work side by side; leave out -n, "
            "or say --ane-cluster=none."
        )
    if text(config, "ane_backend") == "coreml":
        raise pytest.UsageError(
            "--ane-cluster: Core ML is asked on workers, where a policy requires a device; leave "
            "--ane-backend=coreml out, or say --ane-cluster=none."
        )
    if config.getoption("ane_record", None) is not None:
        raise pytest.UsageError(
            "--ane-cluster records what workers with a Neural Engine measure by itself; leave "
            "--ane-record out, or say --ane-cluster=none."
        )


def max_cache(config: pytest.Config) -> int | None:
    """Bytes that the cache folder may hold; None to leave what the manifest says.

    Raises:
        pytest.UsageError: it is no size.
    """
    from pytest_ane.manifest.policy import size

    return cast("int | None", _measured(config, "ane_cache_max_size", size))


def packages(config: pytest.Config) -> list[Path]:
    """The packages to gate without a manifest, each once.

    Raises:
        pytest.UsageError: the option is empty, as with an unset variable in a script.
    """
    values = config.getoption("ane_package") or ()
    if "" in values:
        raise pytest.UsageError("--ane-package is empty; name an .mlpackage.")
    return list(dict.fromkeys(_below(config.invocation_params.dir, value) for value in values))


def builds(config: pytest.Config) -> int | None:
    """How many builds may run at once; None if that is not set.

    Raises:
        pytest.UsageError: it is no number from 1 to 1,000.
    """
    value = text(config, "ane_builds")
    if not value:
        return None
    if not (value.isascii() and value.isdecimal() and 1 <= int(value[:9]) <= 1000):
        raise pytest.UsageError(
            f"{origin(config, 'ane_builds')}={value}: give a number from 1 to 1000."
        )
    return int(value)


def memory(config: pytest.Config) -> int | None:
    """Bytes that running a program may take; None if that is not set.

    Raises:
        pytest.UsageError: it is no size.
    """
    from pytest_ane.manifest.policy import size

    return cast("int | None", _measured(config, "ane_memory", size))


def seconds(config: pytest.Config) -> float | None:
    """How long one call of a program may take; None if that is not set.

    Raises:
        pytest.UsageError: it is no time.
    """
    from pytest_ane.manifest.policy import seconds

    return cast("float | None", _measured(config, "ane_time", seconds))


def device_timeout(config: pytest.Config) -> float | None:
    """Seconds that one call of Core ML may take; None for calls in this process, without a limit.

    Raises:
        pytest.UsageError: it is no time.
    """
    from pytest_ane.backends.coreml.process import DEVICE_TIMEOUT
    from pytest_ane.manifest.policy import seconds

    if text(config, "ane_device_timeout") == "0":
        return None
    return cast("float | None", _measured(config, "ane_device_timeout", seconds)) or DEVICE_TIMEOUT


def arithmetic(config: pytest.Config) -> tuple[Arithmetic, ...]:
    """The overriding arithmetic; empty to leave the manifest's.

    Raises:
        pytest.UsageError: it names another one, or a generation whose arithmetic is not known.
    """
    value = text(config, "ane_arithmetic")
    try:
        return read_arithmetics(value) if value else ()
    except ValueError as error:
        raise pytest.UsageError(f"{origin(config, 'ane_arithmetic')}={value}: {error}.") from None


def unproven(config: pytest.Config) -> str:
    """The overriding fate of unproven verdicts: `fail`, `allow`, or empty.

    Raises:
        pytest.UsageError: the ini value is neither.
    """
    return _choice(config, "ane_unproven", FATES)


def blame(config: pytest.Config) -> str:
    """Which fidelity verdicts are explained: `always`, `failed` or `never`.

    Raises:
        pytest.UsageError: the value is none of these.
    """
    return _choice(config, "ane_blame", BLAMES) or "failed"


def backend(config: pytest.Config) -> Literal["cpu", "coreml"]:
    """What runs artifacts; `auto` is settled by the system.

    Raises:
        pytest.UsageError: the ini value is none of the choices.
    """
    value = _choice(config, "ane_backend", BACKENDS) or "auto"
    if value == "auto":
        return "coreml" if sys.platform == "darwin" else "cpu"
    return "coreml" if value == "coreml" else "cpu"


def compute_units(config: pytest.Config) -> ComputeUnits:
    """Where Core ML may run a model.

    Raises:
        pytest.UsageError: the ini value is none of the choices, or the option was given beside
            `cpu`, which has none.
    """
    value = _choice(config, "ane_compute_units", UNITS)
    asked_here = config.getoption("ane_compute_units", None) is not None
    if asked_here and text(config, "ane_backend") == "cpu":
        raise pytest.UsageError(
            f"--ane-compute-units={value} is for --ane-backend=coreml; leave it out with cpu."
        )
    return cast("ComputeUnits", value or "CPU_AND_NE")


def reports(config: pytest.Config) -> list[Path]:
    """Files and folders that `--ane-report` names.

    Raises:
        pytest.UsageError: a name is empty.
    """
    names: list[str] = list(config.getoption("ane_report") or ())
    if "" in names:
        raise pytest.UsageError("--ane-report is empty; name a file, or leave it out.")
    return [_below(config.invocation_params.dir, name) for name in names]


def record_files(config: pytest.Config) -> list[Path]:
    """Those for records: files .jsonl, and folders, whose names end with a slash or that exist."""
    names: list[str] = list(config.getoption("ane_report") or ())
    return [
        path
        for path, name in zip(reports(config), names, strict=True)
        if path.suffix.lower() == ".jsonl"
        or (not path.suffix and (name.endswith("/") or path.is_dir()))
    ]


def report_files(config: pytest.Config) -> list[Path]:
    """Those for people."""
    records = record_files(config)
    return [path for path in reports(config) if path not in records]


def model_explorer(config: pytest.Config) -> Path | None:
    """The folder that `--ane-model-explorer` names.

    Raises:
        pytest.UsageError: its name is empty.
    """
    value = _given(config, "ane_model_explorer")
    return _below(config.invocation_params.dir, value) if value is not None else None


def project_folder(config: pytest.Config, manifest: Path) -> Path:
    """The manifest's folder; with `--ane-package` the current one.

    A package may lie in a cache, which is no checkout of what is tested.
    """
    if packages(config):
        return config.invocation_params.dir
    return manifest.absolute().parent


def github(config: pytest.Config) -> bool:
    """Whether to report to GitHub Actions.

    Raises:
        pytest.UsageError: the ini value is none of the choices.
    """
    value = _choice(config, "ane_github", WHERE) or "auto"
    return value == "on" or (value == "auto" and os.environ.get("GITHUB_ACTIONS") == "true")


def recording(config: pytest.Config) -> frozenset[str]:
    """Which evidence to record: of `missing`, `stale` and `all`; nothing without the option.

    Raises:
        pytest.UsageError: it names something else, or recording is refused: under xdist workers
            would share one device and disturb each other, in CI evidence would record itself.
    """
    value = _given(config, "ane_record")
    if value is None:
        return frozenset()
    verbs = [verb.strip() for verb in value.split(",")]
    if unknown := next((verb for verb in verbs if verb not in VERBS), None):
        raise pytest.UsageError(f"--ane-record={value}: {unknown!r} is none of {', '.join(VERBS)}.")
    if not config.getoption("ane_record_force"):
        _refuse_recording(config)
    return frozenset(verbs)


def _measured(config: pytest.Config, name: str, parse: Callable[[object], Any]) -> Any:
    """A size or a time above 0; None if it is not set."""
    value = text(config, name)
    if not value:
        return None
    try:
        return parse(int(value) if value.isdecimal() else value)
    except ValueError as error:
        raise pytest.UsageError(f"{origin(config, name)}={value}: {error}.") from None


def _choice(config: pytest.Config, name: str, choices: Sequence[str]) -> str:
    """A value of a few; argparse has looked at the command line, nobody yet at ini."""
    value = text(config, name)
    if value not in ("", *choices):
        equals = "=" if config.getoption(name, None) is not None else " = "
        raise pytest.UsageError(
            f"{origin(config, name)}{equals}{value}: give {_alternatives(choices)}."
        )
    return value


def _alternatives(choices: Sequence[str]) -> str:
    *most, last = map(repr, choices)
    return f"{', '.join(most)} or {last}"


def _refuse_recording(config: pytest.Config) -> None:
    # `-n`, and what it stands for: `--dist` with `--tx`.
    spread = config.getoption("numprocesses", None) or config.getoption("tx", None)
    if hasattr(config, "workerinput") or spread:
        raise pytest.UsageError(
            "--ane-record under xdist: processes that share one device disturb each other; leave "
            "-n out, or add --ane-record-force."
        )
    if in_ci():
        raise pytest.UsageError(
            "--ane-record in CI (the variable CI is set): a run that records its own evidence "
            "verifies nothing; record on a Mac and commit the files, or add --ane-record-force."
        )


def _given(config: pytest.Config, name: str) -> str | None:
    """An option as given; an empty one, as from an unset variable in a script, is an error."""
    value = config.getoption(name, None)
    if value == "":
        raise pytest.UsageError(
            f"--{name.replace('_', '-')} is empty; give a value or leave it out."
        )
    return str(value) if value is not None else None


def _below(base: Path, value: str) -> Path:
    return Path(base, Path(value).expanduser()).absolute()
