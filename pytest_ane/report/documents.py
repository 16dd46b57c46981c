"""What commands print with `--json`, read back for the pictures of a report."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, Field, FiniteFloat, TypeAdapter, ValidationError

from pytest_ane.mlprogram.errors import ReportError
from pytest_ane.records.run import is_run
from pytest_ane.report.verdict import parse_shown

_MOST_BYTES = 1 << 28
_Measure: TypeAlias = Annotated[FiniteFloat, Field(gt=0)]
"""What an axis has a place for; only errors may be NaN or infinite."""


class _Document(BaseModel):
    """Of any command; what pictures do not read is not checked."""

    model: str | None = None


class _Candidate(BaseModel):
    name: str
    size: _Measure
    kl: float | None
    passed: bool
    reasons: list[str] = []
    facts: dict[str, float] = {}
    settings: dict[str, FiniteFloat] = {}


class _Best(BaseModel):
    name: str


class _Recommend(_Document):
    max_kl: FiniteFloat | None = None
    candidates: list[_Candidate]
    best: _Best | None = None


class _Device(BaseModel):
    name: str


class _Kind(BaseModel):
    kind: str
    seconds: FiniteFloat


class _Call(BaseModel):
    tokens: int | None
    rate: _Measure
    kinds: list[_Kind]


class _Measured(BaseModel):
    runtime: str
    device: str
    tok_s: _Measure
    tokens: int


class _Bound(_Document):
    name: str
    device: _Device
    calls: list[_Call]
    measured: list[_Measured] = []


class _Reading(BaseModel):
    relative_l2: float


class _Readings(BaseModel):
    rest: _Reading | None


class _Shard(BaseModel):
    shard: str
    stack: _Readings


class _Drift(_Document):
    shards: list[_Shard]


class _Cost(BaseModel):
    t1: _Measure
    tv: _Measure


class _Speculated(BaseModel):
    calls: list[float]
    accepted: int


class _Yield(BaseModel):
    width: int
    tokens_per_call: FiniteFloat


class _Speculate(_Document):
    cost: _Cost
    prompt: str = ""
    width: int | None = None
    speculated: _Speculated | None = None
    widths: list[_Yield] = []


COMMANDS: Mapping[str, TypeAdapter[Any]] = {
    "recommend": TypeAdapter(_Recommend),
    "bound": TypeAdapter(_Bound),
    "drift": TypeAdapter(_Drift),
    "speculate": TypeAdapter(_Speculate),
}
"""Commands whose documents are read, in the order in which they are listed."""


def read_document(path: Path, models: Collection[str], of_run: str) -> dict[str, Any]:
    """What a command printed with `--json`; texts as people may read them.

    Args:
        path: of the file.
        models: of the run that it is shown with.
        of_run: what to do with the file of a run instead, in a sentence.

    Raises:
        ReportError: it is missing, damaged, of another command, or of another model.
    """
    try:
        if is_run(path):
            raise ReportError(f"{path} is not what a command printed with --json. {of_run}")
        if path.stat().st_size > _MOST_BYTES:
            raise ReportError(f"{path} has more bytes than what any command prints.")
        data: Any = parse_shown(path.read_text())
    except OSError as error:
        raise ReportError(f"{path} cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise ReportError(f"{path} is not what a command printed with --json: {error}.") from None
    command = data.get("command") if isinstance(data, dict) else None
    if not isinstance(command, str) or command not in COMMANDS:
        raise ReportError(
            f"{path} is not what a command printed with --json that a report can draw; those are "
            f"{', '.join(COMMANDS)}."
        )
    try:
        found = COMMANDS[command].validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ReportError(
            f"{path}: {place} is not as pytest-ane {command} --json prints it ({first['msg']})."
        ) from None
    if found.model is not None and found.model not in models:
        raise ReportError(
            f"{path} is of model {found.model}, and the run is of {', '.join(sorted(models))}."
        )
    made: dict[str, Any] = data
    return made
