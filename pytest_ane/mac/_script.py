"""What a replayed Mac answers: a frozen record, and a JSON file of it that may be hand-written."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from pytest_ane.manifest.policy import ComputeUnits
from pytest_ane.mlprogram.atomic import write_atomically
from pytest_ane.mlprogram.errors import RecordingError
from pytest_ane.mlprogram.strict_json import first_error

NAME = "script.json"
BUILT_BY = "replayed.json"
"""Lies in every model that a replayed compiler made, and names its build of macOS."""

Device = Literal["ANE", "GPU", "CPU"]
Point = Literal["compile", "load", "plan", "predict", "state"]
Effect = Literal["error", "abort", "hang"]
Cost = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_STRICT = ConfigDict(extra="forbid")
_MOST_BYTES = 16 << 20
_CODE_14 = (
    "Failed to build the model execution plan using a model architecture file "
    "'{path}/model.mil' with error code: -14."
)


@dataclass(frozen=True)
class Mac:
    """The Mac as its tools tell; no Neural Engine with 0 cores, no Xcode without compiler."""

    __pydantic_config__ = _STRICT
    chip: str = "Apple M4 Max"
    os: str = "26.1"
    build: str = "25B78"
    cores: NonNegativeInt = 16
    compiler: str = "3500.32.1"
    model: str = "Mac16,5"
    virtual: bool = False
    translated: bool = False


VIRTUAL = Mac("Apple M1 (Virtual)", model="VirtualMac2,1", virtual=True)
"""As runners of CI services are."""
TRANSLATED = Mac("VirtualApple @ 2.50GHz processor", translated=True)
INTEL = Mac("Intel(R) Core(TM) i7-8700B CPU @ 3.20GHz", "15.6", "24G84", 0, model="Macmini8,1")


@dataclass(frozen=True)
class DeviceRule:
    """Where operations run; of several rules the first that matches counts.

    Attributes:
        preferred: `none` for operations that have no device.
        name, op, function: patterns of the first output's name, of the type, of the function.
        units: the compute units that it holds for; empty for all.
        supported: the eligible devices; by default all that the compute units allow.
        cost: `estimatedCost`; None for nil.
    """

    __pydantic_config__ = _STRICT
    preferred: Literal["ANE", "GPU", "CPU", "none"]
    name: str = "*"
    op: str = "*"
    function: str = "*"
    units: tuple[ComputeUnits, ...] = ()
    supported: tuple[Device, ...] | None = None
    cost: Cost | None = None


@dataclass(frozen=True)
class Failure:
    """An error of Core ML, a `RuntimeError` in Python; or the end of the process, or no answer.

    Attributes:
        at: which question fails.
        message: its text; `{path}` stands for the model's path.
        after: how often the question it matches is answered first.
        times: how often it then fails; None for ever.
        path: a pattern of the model's path.
        when: `other-build` limits it to models that another build of macOS compiled.
        effect: `abort` ends the process as an Objective-C exception does; `hang` never returns
            and holds the GIL, as every native call of coremltools does.
    """

    __pydantic_config__ = _STRICT
    at: Point
    message: str = ""
    after: NonNegativeInt = 0
    times: PositiveInt | None = 1
    path: str = "*"
    when: Literal["always", "other-build"] = "always"
    effect: Effect = "error"


@dataclass(frozen=True)
class Rewrite:
    """What the compiler does to compute ops, by a pattern of the first output's name.

    `fold` lets consumers read the first input instead; `rename` changes the output's name, unless
    it is the function's; `cast` puts a cast to the same type behind.
    """

    __pydantic_config__ = _STRICT
    name: str
    effect: Literal["fold", "rename", "cast"]


@dataclass(frozen=True)
class Script:
    """All that a replayed Mac answers.

    Attributes:
        devices: rules of placement. What none matches runs on the best unit that is allowed: the
            ANE, else the GPU, else the CPU. `const` and `constexpr_*` never have a device.
        unassigned_paths: plans of so many paths, the first that are loaded, have no device at
            all, as of a broken cache; copies of the models elsewhere have.
        leak: bytes that every model and plan costs the process that loads it, for good.
        compute: whether predictions that are not recorded are computed by the executor; without,
            they are a `RecordingError`.
        default_function_only: whether plans have devices for the default function alone.
    """

    __pydantic_config__ = _STRICT
    machine: Mac = field(default_factory=Mac)
    devices: tuple[DeviceRule, ...] = ()
    unassigned_paths: NonNegativeInt = 0
    failures: tuple[Failure, ...] = ()
    leak: NonNegativeInt = 0
    compute: bool = True
    default_function_only: bool = False
    rewrites: tuple[Rewrite, ...] = ()

    @classmethod
    def load(cls, folder: Path | str) -> Script:
        """Read `script.json` of a folder; `RecordingError` where it is missing or wrong."""
        file = Path(folder) / NAME
        try:
            if file.stat().st_size > _MOST_BYTES:
                raise RecordingError(f"{file}: has more than {_MOST_BYTES >> 20} MiB.")
            return TypeAdapter(cls).validate_json(file.read_bytes(), strict=True)
        except OSError as error:
            raise RecordingError(
                f"{file}: cannot be read ({error.strerror}); give a folder that the Recorder or "
                "Script.save wrote."
            ) from None
        except ValidationError as error:
            raise RecordingError(f"{file}: {first_error(error)}.") from None

    def save(self, folder: Path | str) -> Path:
        """Write `script.json` into a folder, which is made; returns the folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        data = TypeAdapter(Script).dump_json(self, indent=1, exclude_defaults=True) + b"\n"
        write_atomically(folder / NAME, data)
        return folder


def stale(at: Point = "plan") -> Failure:
    return Failure(at, _CODE_14, times=None, when="other-build")


def code_14(at: Point = "plan", *, times: int | None = 1) -> Failure:
    """Error -14, the first `times` times; None for ever."""
    return Failure(at, _CODE_14, times=times)
