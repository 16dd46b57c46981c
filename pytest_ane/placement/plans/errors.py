"""What Core ML's known error texts mean.

A clean log proves nothing: the compiler may speak from a helper process, and only when it compiles.
Core ML falls back to the CPU without a word to the program.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_ane.placement.plans.record import Message, Plan

_MOST = 1000
_LONGEST = 200


@dataclass(frozen=True)
class _Known:
    parts: tuple[str, ...]
    meaning: str
    failure: bool = True


_KNOWN = (
    _Known(
        ("Failed to build the model execution plan", "error code: -14"),
        "Core ML built no plan (-14): per-block quantization, a pattern of states, or an .mlmodelc "
        "that an OS upgrade made stale; compile the .mlpackage again.",
    ),
    _Known(
        ("ANE model load has failed for on-device compiled macho",),
        "Core ML compiles the bundle again; nothing failed.",
        failure=False,
    ),
    _Known(
        ("Invalid blob shape: Data-dependent shapes were disabled",),
        "A shape derives from a run-time value; keep shapes fixed and mask (R053).",
    ),
    _Known(
        ("Tensor dimensions ", "are not within supported range"),
        "A dimension exceeds what this ANE takes; fold the axis or cut the tensor (R030).",
    ),
    _Known(
        ("ANE does not support blob with rank",),
        "A tensor has more axes than the ANE takes, 5; merge axes before the op (R027).",
    ),
    _Known(
        ("ANE only support per-cout/per-tensor quantization",),
        "Scales per block are not for the ANE; use per-channel scales or grouped palettes (R064).",
    ),
    _Known(
        ("'mps.dequantize' op operand #2 must be tensor of quantized values",),
        "A palette with per-channel scales cannot be lowered; palettize with "
        "enable_per_channel_scale=False (R069).",
    ),
    _Known(
        ("ANEProgramProcessRequestDirect() Failed", "status=0x1d"),
        "A prediction failed on the ANE at run time.",
    ),
    _Known(
        ("Program Inference overflow",),
        "A value overflowed on the ANE at run time; scale activations before they are squared.",
    ),
    _Known(("Program load failure (0x20004)",), "The ANE could not load the compiled program."),
    _Known(
        ("ANECCompile(", "FAILED"),
        "The ANE's compiler refused the program; Core ML falls back to CPU or GPU silently.",
    ),
    _Known(
        ("Error plan build: -1",),
        "The older path's plan failed to build, mostly after an ANE compile failure.",
    ),
)


def explain(text: str) -> tuple[Message, ...]:
    """The known lines of a log, in order; at most 1,000."""
    found: list[Message] = []
    for number, line in enumerate(text.splitlines(), 1):
        known = next((k for k in _KNOWN if all(part in line for part in k.parts)), None)
        if known:
            found.append(Message(line.strip()[:_LONGEST], known.meaning, known.failure, number))
            if len(found) == _MOST:
                break
    return tuple(found)


def recognises(text: str) -> bool:
    """Whether a text has a known line."""
    return any(part in text for known in _KNOWN for part in known.parts[:1]) and bool(explain(text))


def read(text: str) -> Plan:
    """A log as a plan: messages, and no word of where an operation runs."""
    return Plan("log", messages=explain(text))
