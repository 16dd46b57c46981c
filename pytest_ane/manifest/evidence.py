"""Which recorded evidence counts: chips, systems, compute units, age and signers."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, Strict, WithJsonSchema

from pytest_ane.manifest.base import Form, Record, Relative

ComputeUnits: TypeAlias = Literal["ALL", "CPU_AND_GPU", "CPU_AND_NE", "CPU_ONLY"]
"""Where Core ML may run a model: names of `coremltools.ComputeUnit`."""
WITH_ANE: tuple[ComputeUnits, ...] = ("ALL", "CPU_AND_NE")
"""Compute units with the ANE in them; others are for comparison, and count where a policy names
them."""

_AGE = r"(\d{1,5})\s*(hour|day|week)s?"
_VERSION = r"\d{1,3}(\.\d{1,3}){0,2}"
_SYSTEM = rf"(macOS|iOS|iPadOS) (\*|{_VERSION}(\.?\*)?)"


def age(value: object) -> object:
    """The time of `"90 days"`, `"12 hours"` or `"2 weeks"`; `ValueError` for other forms."""
    if isinstance(value, timedelta):
        return value
    match = re.fullmatch(_AGE, value.strip()) if isinstance(value, str) else None
    if match is None or not int(match[1]):
        raise ValueError('must be a time such as "90 days", "12 hours" or "2 weeks"')
    return timedelta(**{f"{match[2]}s": int(match[1])})


def takes_in(pattern: str, text: str) -> bool:
    """Whether a pattern names a chip or a system as a whole.

    `*` stands for any characters and `?` for one, but numbers are whole: after a digit, `*` does
    not begin with another, so that `Apple M1*` takes in `Apple M1 Max` and never `Apple M10`.
    """
    wild = re.sub(r"(?<=\d)\\\*", r"(?!\\d).*", re.escape(pattern))
    wild = wild.replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(wild, text, re.DOTALL) is not None


def covers(pattern: str, system: str) -> bool:
    """Whether a system's pattern takes in a system; a version takes in what is below it.

    So it does with an asterisk and without: `macOS 26` takes in `macOS 26.1` and not `macOS 260`.
    """
    return takes_in(f"{pattern.rstrip('*.')}*", system)


def _some(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if not values:
        raise ValueError("is empty and would accept nothing; leave it out to accept any")
    return values


Item = TypeVar("Item")
# Looked at after the values, for a list of one bad value is not empty.
Some: TypeAlias = Annotated[
    tuple[Item, ...],
    Strict(False),
    AfterValidator(_some),
    Field(json_schema_extra={"minItems": 1}),
]
Chip = Annotated[str, Field(min_length=1, max_length=100)]
System = Annotated[
    str, Form(_SYSTEM, "must be a system such as 'macOS 26', which takes in 26.1, or 'macOS *'")
]
VersionedSystem = Annotated[
    str,
    Form(
        rf"(macOS|iOS|iPadOS) {_VERSION}",
        "must be a system such as 'macOS 26', which takes in 26.1",
    ),
]
Age = Annotated[
    timedelta,
    BeforeValidator(age),
    WithJsonSchema({"type": "string", "pattern": f"^{_AGE}$"}),
]


class EvidencePolicy(Record):
    """Which recorded evidence counts; a key that is absent asks for nothing."""

    chips: Some[Chip] | None = None
    """Chips, as the machine calls them, such as `"Apple M4*"`; `*` never continues a number."""
    os: Some[System] | None = None
    """Systems: `"macOS 26"`, which is the same as `"macOS 26*"`, takes in 26 and 26.1, not 260."""
    systems: Some[VersionedSystem] | None = None
    """Systems that each need evidence of their own, such as `["macOS 26", "macOS 27"]`; the verdict
    is that of the worst. `os` says which evidence counts."""
    compute_units: Some[ComputeUnits] | None = None
    """Compute units that Core ML was allowed, such as `CPU_AND_NE`; absent, those with the ANE."""
    max_age: Age | None = None
    """How old a record may be: `"90 days"`, `"12 hours"` or `"2 weeks"`."""
    signers: Some[Relative] | None = None
    """Public keys (PEM files, relative to the manifest); one of them must have signed."""

    def takes_system(self, system: str) -> bool:
        """Whether evidence of this system, such as `macOS 26.1`, counts."""
        return self.os is None or any(covers(pattern, system) for pattern in self.os)

    def system_of(self, system: str) -> str:
        """The one of `systems` that a machine's system, such as `macOS 26.1`, stands for; or ''."""
        return next((named for named in self.systems or () if covers(named, system)), "")

    def takes_chip(self, chip: str) -> bool:
        """Whether evidence of this chip, such as `Apple M4 Max`, counts; an unknown one is ''.

        `Apple M1 (Virtual)` only where a pattern has the word.
        """
        if self.chips is None:
            return True
        patterns = [p for p in self.chips if "Virtual" not in chip or "Virtual" in p]
        return bool(chip) and any(takes_in(pattern, chip) for pattern in patterns)
