"""Core ML's known error texts: what they mean, and what to do about them.

Collected from public logs and threads. A clean log proves nothing: the compiler may speak from a
helper process, and only when it compiles; Core ML then falls back to the CPU without a word.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_ane.mlprogram.text import printable

_REASONS = tuple(
    re.compile(rf'{key}"?\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;}}]+))')
    for key in (
        "NSLocalizedDescription",
        "NSLocalizedFailureReason",
        "NSDebugDescription",
        "NSUnderlyingError",
    )
)
"""Keys of `userInfo` that say why; the first that is there and not empty counts."""
_ESCAPE = re.compile(r"\\(?:U([0-9a-fA-F]{4})|(.))")
"""NSDictionary prints characters beyond ASCII, quotes and line breaks so."""
_BREAKS = dict.fromkeys("nrt", " ")
_UNSIGNED_14 = re.compile(r"error code: 14\b")
_LONGEST = 400


@dataclass(frozen=True)
class KnownError:
    """What a line must contain, what that means, what to do; `stale` if an upgrade is the cause."""

    parts: tuple[str, ...]
    meaning: str
    remedy: str
    failure: bool = True
    stale: bool = False

    def __str__(self) -> str:
        return f"{self.meaning}; {self.remedy}" if self.remedy else self.meaning


KNOWN_ERRORS = (
    KnownError(
        ("Failed to build the model execution plan", "error code: -14"),
        "Core ML built no plan (-14): per-block quantization, a pattern of states, or an .mlmodelc "
        "that an OS upgrade made stale",
        "compile the .mlpackage again, and if that fails too, look for constexpr_blockwise_* and "
        "for states that are written in part",
        stale=True,
    ),
    KnownError(
        # ml-stable-diffusion #5: of model.mil:11:258, at loading.
        ("Could not open ", "weight.bin"),
        "The compiled model lacks its weights",
        "delete it from the cache with `pytest-ane cache prune`, and compile the .mlpackage again",
    ),
    KnownError(
        # coremltools #2079: an Objective-C exception, without its text.
        ("Caught an unknown exception!",),
        "Core ML raised an exception that says nothing here",
        "see the log of the process, and whether it runs with --ane-compute-units=CPU_ONLY",
    ),
    KnownError(
        # pytorch #109444.
        ("nil value for URL",),
        "Core ML was given no path of a compiled model",
        "compile the .mlpackage again",
    ),
    KnownError(
        ("ANE model load has failed for on-device compiled macho",),
        "Core ML compiles the bundle again; nothing failed",
        "",
        failure=False,
    ),
    KnownError(
        ("Invalid blob shape: Data-dependent shapes were disabled",),
        "A shape derives from a run-time value",
        "keep shapes fixed and mask (R053)",
    ),
    KnownError(
        ("Tensor dimensions ", "are not within supported range"),
        "A dimension exceeds what this ANE takes",
        "fold the axis or cut the tensor (R030)",
    ),
    KnownError(
        ("ANE does not support blob with rank",),
        "A tensor has more axes than the ANE takes, 5",
        "merge axes before the op (R027)",
    ),
    KnownError(
        ("ANE only support per-cout/per-tensor quantization",),
        "Scales per block are not for the ANE",
        "use per-channel scales or grouped palettes (R064)",
    ),
    KnownError(
        ("'mps.dequantize' op operand #2 must be tensor of quantized values",),
        "A palette with per-channel scales cannot be lowered",
        "palettize with enable_per_channel_scale=False (R069)",
    ),
    KnownError(
        ("Program Inference overflow",),
        "A value overflowed on the ANE at run time",
        "scale activations before they are squared",
    ),
    KnownError(
        # With status=0x1d, and 0x2, 0x16 (public threads of 2023 and 2026).
        ("ANEProgramProcessRequestDirect() Failed",),
        "A prediction failed on the ANE at run time",
        "see whether it runs with --ane-compute-units=CPU_ONLY",
    ),
    KnownError(
        ("Program load failure (0x20004)",),
        "The ANE could not load the compiled program",
        "seen where memory is short (ml-stable-diffusion #26): run fewer processes at once, or cut "
        "the shard smaller",
    ),
    KnownError(
        ("ANECCompile(", "FAILED"),
        "The ANE's compiler refused the program; Core ML falls back to CPU or GPU silently",
        "see what `pytest-ane explain` says of its operations",
    ),
    KnownError(
        ("Error plan build: -1",),
        "The older path's plan failed to build, mostly after an ANE compile failure",
        "see what `pytest-ane explain` says of its operations",
    ),
)


def recognise(text: str) -> KnownError | None:
    """The first known text that a line contains, if any."""
    text = _UNSIGNED_14.sub("error code: -14", text)
    return next((one for one in KNOWN_ERRORS if all(part in text for part in one.parts)), None)


def error_text(error: BaseException) -> str:
    """A Core ML error in one line of at most 400 characters: an NSError's printed `userInfo`."""
    text = str(error)
    if found := [match for reason in _REASONS for match in reason.finditer(text)]:
        text = next((group for match in found for group in match.groups() if group), "")
        text = _ESCAPE.sub(
            lambda mark: chr(int(mark[1], 16)) if mark[1] else _BREAKS.get(mark[2], mark[2]), text
        )
        # Characters beyond 16 bits are printed as two.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    elif text.strip(" {}\n") in ("", "(null)"):
        return ""
    return printable(" ".join(text.split()).rstrip("."), _LONGEST)


def explain(error: BaseException) -> str:
    """What Core ML says, with what that means and what to do where it is known."""
    known = recognise(" ".join(str(error).split()))
    words = error_text(error) or f"{type(error).__name__}, without a reason"
    return f"{words} ({known})" if known else words


def is_stale(error: BaseException) -> bool:
    """Whether a compiled model that another system made is a likely cause."""
    known = recognise(" ".join(str(error).split()))
    return known is not None and known.stale
