"""How large a package may be before the Neural Engine refuses it whole."""

from __future__ import annotations

import re

from pytest_ane.core.errors import ManifestError
from pytest_ane.gates.placement.rules.base import Rule

_GIB = 2**30
_OS = re.compile(r"(macOS|iOS|iPadOS)\s+(\d{1,3})(\.\d+)*", re.IGNORECASE)

SIZE_RULE = Rule(
    id="R076",
    title="A package above the system's size limit is kept off the ANE as a whole.",
    matches="an artifact above 2 GiB, or above 1 GiB from macOS 27 on",
    consequence="every op runs on the CPU, silently; sometimes the load fails with -14",
    scope="M2 on macOS 26 and 27.0.1, M4 Max on macOS 26, A19",
    source="eeane 2.1.0, ne_limits.py; videlalvaro/ane-book@4ab89e2, journal 055; "
    "smpanaro/more-ane-transformers, src/experiments/NOTES.md",
    fix="cut the model into more shards, or compress further",
)


def limit_bytes(os: str) -> int:
    """The largest artifact, in bytes, that the ANE of a system takes: 2 GiB, 1 GiB on macOS 27.

    Raises:
        ManifestError: `os` is not of the form `macOS 26`.
    """
    match = _OS.fullmatch(os.strip())
    if match is None:
        raise ManifestError(
            f"policy.placement os = {os!r} is not a system; write it like 'macOS 26'."
        )
    name, major = match[1].lower(), int(match[2])
    return _GIB if name == "macos" and major >= 27 else 2 * _GIB


def too_large(size_bytes: int, os: str) -> str | None:
    """Why an artifact of this size is refused; `None` where it is not."""
    limit = limit_bytes(os)
    if size_bytes <= limit:
        return None
    return (
        f"The artifact has {size_bytes / _GIB:.2f} GiB; {os.strip()} takes {limit // _GIB} GiB "
        "at most."
    )
