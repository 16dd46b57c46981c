"""Ranks, extents and sizes beyond what the Neural Engine addresses."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_ane.gates.placement.graph import Depends, Site
from pytest_ane.gates.placement.rules.base import AUTHORING, DISPATCH, OpRule, Rule
from pytest_ane.gates.placement.segmenter.support import limit
from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.mlprogram.records import TensorType

_GIB = 2**30
_OS = re.compile(r"(macOS|iOS|iPadOS)\s+(\d{1,3})(\.\d+)*", re.IGNORECASE)
# The compiler: "Tensor dimensions N1D1C1H1W240000 are not within supported range,
# N[1-65536] D[1-16384] C[1-65536] H[1-16384] W[1-16384]" (A15).
_SPATIAL = 16_384
_HEAD = 16_384
_MESSAGE = '"Tensor dimensions ... are not within supported range"'
_R030_SOURCE = (
    f"the compiler's message {_MESSAGE}; FluidInference/mobius mel_encoder_ane_behavior.md; "
    "FluidAudio #121; sbryngelson/ane-guide@9eb1afe (arXiv 2606.22283)"
)
_R030_FIX = "fold the long axis into two, or cut the tensor (a vocabulary into slices)"


def _tensors(site: Site) -> Iterator[TensorType]:
    yield from site.outputs()
    yield from site.inputs()


def _rank(site: Site) -> str | None:
    for kind in _tensors(site):
        if len(kind.shape) > (most := limit("rank")):
            return f"{kind} has rank {len(kind.shape)}; the ANE takes rank {most} at most."
    return None


def _extents(kind: TensorType) -> Iterator[tuple[int, int, bool]]:
    """Axis, extent, and whether the axis holds channels: N C H W from rank 4 on."""
    for axis, extent in enumerate(kind.shape):
        if extent is not None:
            yield axis, extent, len(kind.shape) >= 4 and axis == 1


def _too_long(site: Site) -> str | None:
    most = limit("axis")
    for kind in _tensors(site):
        for axis, extent, channels in _extents(kind):
            if extent > most and not (channels and site.op == "conv"):
                return f"Axis {axis} of {kind} is longer than {most:,}, the most the ANE takes."
    return None


def _may_be_too_long(site: Site) -> str | None:
    for kind in _tensors(site):
        for axis, extent, channels in _extents(kind):
            if channels and extent > limit("axis") and site.op == "conv":
                return f"{kind} has {extent:,} channels; the compiler documents 65,536 at most."
            spatial = axis >= 2 or axis == len(kind.shape) - 1
            if spatial and not channels and _SPATIAL < extent <= limit("axis"):
                return (
                    f"Axis {axis} of {kind} is longer than 16,384, the most that "
                    "H, W and D take before A16 and M4."
                )
    return None


def _wide_head(site: Site) -> str | None:
    weight = site.argument("weight" if site.op == "linear" else "y")
    if weight is None or site.graph.origin(weight).values > Depends.NOTHING:
        return None
    for kind in site.outputs():
        extent = kind.shape[-1] if kind.shape else None
        if extent is not None and extent > _HEAD:
            return f"It has {extent:,} outputs; `linear` heads fail where `conv` slices do not."
    return None


RULES = (
    OpRule(
        id="R027",
        title="ANE tensors are of rank 5 at most.",
        matches="any op with a run-time input or an output of rank 6 or more",
        why=_rank,
        consequence="the op runs on the CPU, or the whole compile fails",
        scope="all",
        source='the compiler\'s messages "ANE does not support blob with rank: 6" and "Cannot '
        'reshape a tensor of rank > 5"; sbryngelson/ane-guide@9eb1afe, chapter 17; ANEForge #42; '
        + AUTHORING,
        fix="merge axes before the op (window partition in two steps of rank 5)",
    ),
    OpRule(
        id="R030",
        title="No axis of an ANE tensor is longer than 65,536.",
        matches="a run-time input or output with an extent above 65,536; the channels (axis 1 of "
        "rank 4 and 5) of a `conv` are not counted",
        why=_too_long,
        consequence="ANE compile error; runs on CPU or GPU",
        scope="all; A15 message, limit raised to 65,536 from A16 and M4 on; 65,537 fails on "
        "C, H and W of an M4",
        source=f"{_R030_SOURCE}; {DISPATCH}",
        fix=_R030_FIX,
    ),
    OpRule(
        id="R030",
        title="Before A16 and M4, H, W and D end at 16,384, and C is documented up to 65,536.",
        matches="an extent of 16,385 to 65,536 on axes from 2 on or on the last axis, or a `conv` "
        "with more than 65,536 channels",
        why=_may_be_too_long,
        outcome="warned",
        consequence="ANE compile error on A15 and its generation",
        scope="A15 message; newer chips take 65,536, and a convolution to 262,144 channels is "
        "reported on the ANE",
        source=_R030_SOURCE,
        fix=_R030_FIX,
    ),
    OpRule(
        id="R032",
        title="A language-model head as `linear` or `matmul` may exceed the ANE's output limit.",
        matches="`linear`, or `matmul` by a constant, with more than 16,384 outputs",
        ops=frozenset({"linear", "matmul"}),
        why=_wide_head,
        outcome="warned",
        consequence='"Output blob dimensions exceed ANE limit", the head runs on the CPU',
        scope="M1 Max on macOS 13 and 14, M4 Max on macOS 26; 17,408 outputs are reported fine",
        source="smpanaro/more-ane-transformers, src/experiments/NOTES.md; "
        "videlalvaro/ane-book@4ab89e2, journal 021, 080, 081; maderix/ANE #26",
        fix="cut the vocabulary into slices and write each as a 1x1 convolution",
    ),
)
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
