"""Command line options, their ini twins, and markers; `settings` reads what was given."""

from __future__ import annotations

import pytest

GATE_MARKERS = {
    "gate": "a quality gate of a model shard; runs only with --ane-shards or --ane-package.",
    "bench": "a throughput benchmark of a model shard; runs only with --ane-shards and -m bench.",
}

FATES = ("fail", "allow")
BACKENDS = ("auto", "cpu", "coreml")
UNITS = ("ALL", "CPU_AND_GPU", "CPU_AND_NE", "CPU_ONLY")
WHERE = ("auto", "on", "off")
BLAMES = ("always", "failed", "never")
VERBS = ("missing", "stale", "all")

_INI = {
    "ane_manifest": "the manifest, relative to the ini file",
    "ane_cache": "cache folder, relative to the ini file",
    "ane_min_cosine": "overrides fidelity policies' min-cosine: a number, or 'L27:0.95,head*:0.98'",
    "ane_min_contribution": "the same for min-contribution",
    "ane_evidence": "where evidence is kept, relative to the ini file",
    "ane_builds": "how many shards are built at once, over all workers",
    "ane_backend": "'auto', 'cpu' or 'coreml': what runs artifacts",
    "ane_compute_units": "where Core ML may run a model, with the backend coreml",
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
        "'sample:5' or 'all'; without it no gate runs",
    )
    group.addoption(
        "--ane-package",
        metavar="PATH",
        help="gate one .mlpackage or .mlmodelc without a manifest: placement forecast, size, "
        "finite output",
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
        help="read every artifact anew, whatever is remembered of its digest",
    )
    for name, meaning in _INI.items():
        option = name.replace("_", "-")
        parser.addini(name, f"{meaning}; --{option} wins", default="")


def add_markers(config: pytest.Config) -> None:
    """Register markers, so that strict markers know them."""
    for name, meaning in GATE_MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def wanted(config: pytest.Config) -> bool:
    """Whether any shard or package was asked for."""
    return any(config.getoption(name, None) is not None for name in ("ane_shards", "ane_package"))


def refuse_recording_nothing(config: pytest.Config) -> None:
    """Without shards no gate runs, so nothing would be recorded, and nobody would notice.

    Raises:
        pytest.UsageError: recording was asked for, of nothing.
    """
    if config.getoption("ane_record", None) is not None:
        raise pytest.UsageError(
            "--ane-record records the gates of selected shards, and none is selected; add "
            "--ane-shards=all -m gate."
        )
