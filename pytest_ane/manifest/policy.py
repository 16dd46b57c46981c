"""Policies: what a measurement must reach to pass, gate by gate, and which evidence counts."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, Strict, WithJsonSchema

from pytest_ane.manifest.base import Form, Record, Relative

_SIZE = r"(\d{1,15}(?:\.\d{1,15})?)\s*([kMG]i?)?B"
_COUNT = r"(\d{1,15}(?:\.\d{1,15})?)\s*([kMG])"
_TIME = r"(\d{1,9}(?:\.\d{1,9})?)\s*(s|min|h)?"
_PERCENT = r"(\d{1,2}(?:\.\d{1,6})?)\s*%"
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "ki": 2**10, "Mi": 2**20, "Gi": 2**30}
CALIBRATED: Literal["calibrated"] = "calibrated"


def size(value: object) -> object:
    """Bytes of `5000000`, `"5 MB"` or `"4.8 MiB"`, rounded down; or `ValueError`."""
    message = 'must be a number of bytes or a size such as "5 MB" or "4.8 MiB"'
    return _number(value, _SIZE, message)


def seconds(value: object) -> float:
    """Seconds of `90`, `"90 s"`, `"10 min"` or `"2 h"`; `ValueError` for other forms."""
    match = re.fullmatch(_TIME, str(value).strip())
    if match is None or not float(match[1]):
        raise ValueError('must be a number of seconds or a time such as "90 s", "10 min" or "2 h"')
    return float(match[1]) * {"": 1, "s": 1, "min": 60, "h": 3600}[match[2] or ""]


def count(value: object) -> object:
    """Elements of `10000000` or `"10M"`, rounded down; `ValueError` for other forms."""
    return _number(value, _COUNT, 'must be a number of elements or a text such as "10M"')


def regression(value: object) -> float | Literal["calibrated"]:
    """The share of `"5%"` or `0.05`, below 1; `"calibrated"` as it is; else `ValueError`."""
    if value == CALIBRATED:
        return CALIBRATED
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1:
        return float(value)
    match = re.fullmatch(_PERCENT, value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError('must be a share below 1, such as "5%" or 0.05, or "calibrated"')
    return float(Decimal(match[1]) / 100)


def _number(value: object, pattern: str, message: str) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(pattern, value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(message)
    return int(Decimal(match[1]) * _UNITS[match[2] or ""])


def _schema(pattern: str) -> WithJsonSchema:
    number = {"type": "integer", "minimum": 1}
    return WithJsonSchema({"anyOf": [number, {"type": "string", "pattern": f"^{pattern}$"}]})


Size = Annotated[int, BeforeValidator(size), Field(ge=1), _schema(_SIZE)]
Count = Annotated[int, BeforeValidator(count), Field(ge=1), _schema(_COUNT)]

_REGRESSIONS = [{"type": "number", "minimum": 0, "exclusiveMaximum": 1},
                {"type": "string", "pattern": f"^({_PERCENT}|{CALIBRATED})$"}]  # fmt: skip
Regression: TypeAlias = Annotated[
    float | Literal["calibrated"],
    PlainValidator(regression),
    WithJsonSchema({"anyOf": _REGRESSIONS}),
]

# A limit that nothing can miss is refused: chance has a cosine of 0 with any reference, and zeros
# are off by 1 of it.
Cosine = Annotated[float, Field(gt=0, le=1)]
RelativeError = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(ge=0, lt=1)]
Patterns = Annotated[
    tuple[Annotated[str, Form(r"\S(.{0,254}\S)?", "must be an op's name or type")], ...],
    Strict(False),
]
OutputName = Annotated[str, Form(r"\S(.{0,254}\S)?", "must be the name of an output")]
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
    tuple[Item, ...], Strict(False), AfterValidator(_some), Field(json_schema_extra={"minItems": 1})
]
Chip = Annotated[str, Field(min_length=1, max_length=100)]
System = Annotated[
    str, Form(_SYSTEM, "must be a system such as 'macOS 26', which takes in 26.1, or 'macOS *'")
]
_VERSIONED = rf"(macOS|iOS|iPadOS) {_VERSION}"
VersionedSystem = Annotated[
    str, Form(_VERSIONED, "must be a system such as 'macOS 26', which takes in 26.1")
]
SPECIFICATIONS = {6: (15, 12), 7: (16, 13), 8: (17, 14), 9: (18, 15), 10: (26, 26)}
"""The first iOS and macOS that load a specification version of ML Programs (Model.proto)."""


def newest_specification(system: str) -> int:
    """The newest specification version that a system such as `iOS 17` loads; 0 for none."""
    name, _, version = system.partition(" ")
    major = int(version.partition(".")[0])
    firsts = {number: first[name == "macOS"] for number, first in SPECIFICATIONS.items()}
    return max((number for number, first in firsts.items() if first <= major), default=0)


def _loads_programs(system: str) -> str:
    if not newest_specification(system):
        raise ValueError("is older than iOS 15 and macOS 12, the first that load ML Programs")
    return system


OldestSystem = Annotated[VersionedSystem, AfterValidator(_loads_programs)]
Age = Annotated[
    timedelta, BeforeValidator(age), WithJsonSchema({"type": "string", "pattern": f"^{_AGE}$"})
]


class PlacementPolicy(Record):
    """Where a shard must run, and what proves it."""

    require: Literal["forecast", "predicted", "plan"] = "forecast"
    """What counts: `forecast`, from documented rules; `predicted`, that Core ML's cost model puts
    every compute op on the ANE, too; or only Core ML's own `plan`, read on a device or recorded
    there, which goes before both wherever there is one."""
    allow_off: Patterns = ()
    """Ops that may run off the ANE: names or types, with `*` and `?` as in file names. They are
    counted, and judged no further."""
    max_work_off_ane: Share | None = None
    """Greatest share of the estimated floating-point operations that may run off the ANE; every
    convolution, matrix product, recurrent layer, norm, softmax and attention is on it all the same.
    0: every compute op is on the ANE. Absent: 0.01 for a package of your own, 0 for a shard that
    is built."""
    off_ane: Patterns = ()
    """Ops that must not run on the ANE, as of `allow-off`: a `resample` that is wrong there. It is
    judged by the plan, else by rules and prediction; `unproven` where these leave it open."""
    spec_version: Annotated[int, Field(ge=1)] | None = None
    """Greatest specification version that the artifact may have, such as 8 for iOS 17: an older
    system refuses to load a newer one."""
    min_os: OldestSystem | None = None
    """Oldest system that must load the artifact, such as `"iOS 17"` or `"macOS 14"`: its
    specification version is at most that system's."""
    os: VersionedSystem = "macOS 26"
    """System the shards are for; decides the size rule: 2 GiB up to macOS 26, 1 GiB from 27."""


class CompressionPolicy(Record):
    """Size limits of a shard, limits on the error of its weights, and one on per-tensor int8."""

    max_bytes: Size | None = None
    """Budget on disk: bytes, or a size such as `"5 MB"` or `"4.8 MiB"`."""
    min_ratio: Annotated[float, Field(gt=0)] | None = None
    """Bytes of all weights in fp16 over bytes on disk."""
    max_weight_error: Annotated[float, Field(ge=1, le=10)] = 1.25
    """Greatest squared error of a weight over what its scheme reaches on the uncompressed weight.
    Our own engine's palettes are at 1; coremltools' k-means, of 2 to 6 bits, at 1.133 at most on
    weights of SmolLM2-135M."""
    int8_per_tensor_over: Count | None = None
    """Elements, such as `"10M"`: over this many, a weight may not be quantized linearly with one
    scale for all of it, which its outliers set."""


class OutputPolicy(Record):
    """How close one output must be; what is absent is as the shard's policy has it."""

    min_cosine: Cosine | None = None
    """As of the shard."""
    min_contribution: Cosine | None = None
    """Lowest cosine with the residual path taken out, position 0 of captured probes apart; it
    fails for a shard that has no residual path. Absent, for a package of your own:
    2 min-cosine^2 - 1, twice the angle that `min-cosine` allows, and never less than its default
    does."""
    max_relative_l2: RelativeError | None = None
    """Greatest |a - b| / |b| of any position, position 0 of captured probes apart. Absent, for a
    package of your own: 2 sqrt(1 - min-cosine), for a cosine sees no scale, and never more than
    its default gives. Of one that is held to `uncompressed`, the mean over seeded positions."""
    max_non_finite: Share | None = None
    """Share of values that may be NaN or infinite; positions that have one are not compared."""


class FidelityPolicy(OutputPolicy):
    """How close a shard must be to its reference."""

    require: Literal["any", "device"] = "any"
    """Where it must have been measured: on `any` machine, or on a `device`, now or recorded."""
    require_independent: bool = False
    """Whether the reference must be by another author than the converted form. Without one a shard
    is unproven where it would pass."""
    min_cosine: Cosine = 0.97
    """Lowest cosine of any position. At position 0 of captured probes, where the attention sink
    makes one channel carry nearly the whole norm, 1 - cosine may be three times as much. With an
    error budget, which sees each position better, the mean over all positions of seeded probes has
    to reach it, `extreme` apart and `unit-norm` left out."""
    max_non_finite: Share = 0.0
    """Share of values that may be NaN or infinite; positions that have one are not compared."""
    max_algebra: RelativeError = 0.02
    """Greatest relative L2 error, at any position, of what the uncompressed program adds in
    float32, against the reference: 5 times the worst of the default model's 34 shards (0.0041).
    As a root mean square over all positions a tenth of it: 2.6 times their worst (0.00076)."""
    max_rounding: RelativeError = 0.1
    """Greatest relative L2 error, at any position, of what the uncompressed program adds in its
    own types, against itself in float32: 6 times the worst of the default model's shards (0.016).
    As a root mean square over all positions a tenth of it: 4 times their worst (0.0023)."""
    max_total_ratio: Annotated[float, Field(ge=1, le=10)] = 1.15
    """The whole error over the root of the squares of algebra's, rounding's and compression's, each
    a root mean square over positions. Independent errors add up so; right shards are at 1.00."""
    input_range: Annotated[float, Field(gt=0, le=65504)] | None = None
    """Largest magnitude of the inputs, up to which the shard must be right. Absent, the row says
    from which one on fp16 overflows, or a package of your own departs from its reference."""
    min_live_probes: Annotated[int, Field(ge=1)] = 1
    """Probes on which artifact and reference are not both zero."""
    outputs: dict[OutputName, OutputPolicy] = Field(default_factory=dict)
    """Other thresholds for some outputs, by name; a family's shards have one, `y`."""

    def of_output(self, name: str) -> OutputPolicy:
        """The thresholds of one output: its own, else those of all."""
        own = self.outputs.get(name, OutputPolicy()).model_dump(exclude_none=True)
        common = {key: getattr(self, key) for key in OutputPolicy.model_fields}
        return OutputPolicy.model_construct(**common | own)


class HazardsPolicy(Record):
    """What the ANE's arithmetic may cost, where `arithmetic` names it.

    Overflow, infinities taken for numbers, and cliffs always fail. It is computed here and now:
    recorded evidence never counts.
    """

    max_dropped_weight: Share = 0.1
    """Greatest share of the sum of |w x| that an operation may lose, as products are dropped; from
    a tenth of it on it warns. A seeded diffuse attention over 4,096 keys loses 6 % of values of
    deviation 0.3; operations of the default model lose 0.04 %, and 1 % in L00."""
    warn_table_error: RelativeError = 0.01
    """Greatest error of an activation's table, root mean square relative to that of its exact
    results, without a warning: no error is known that breaks a model. In the default model SiLU's
    is at 0.03, others are below 0.002."""


class BehaviourPolicy(Record):
    """How close the whole stack must be. Position 0 of a decoder's prompts is left out."""

    require: Literal["any", "device"] = "any"
    """Where it must have been measured: on `any` machine, or on a `device`, now or recorded."""
    min_positions: Annotated[int, Field(ge=1)] = 32
    """Positions that must be judged, of all golden prompts together; with fewer the gate is
    unproven: of 32 right positions one near tie is 3 % of top-1, of 10 it is all that `min-top1`
    allows."""
    min_top1: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of positions with the reference's likeliest token; of an encoder, of prompts for which
    the reference's best sentence, or one within 0.01 of its cosine, comes first."""
    max_kl: Annotated[float, Field(ge=0, le=5)] = 0.05
    """Mean KL(reference || shards) in nats."""
    max_perplexity_increase: Annotated[float, Field(ge=0, le=100)] | None = None
    """Perplexity of the shards on the prompts over the reference's, less 1: 0.02 is 2 % more."""
    max_reference_perplexity: Annotated[float, Field(gt=1)] | None = None
    """Perplexity of the reference itself on the prompts, above which the reference is wrong.
    Absent: that of a model of token frequencies alone, by the vocabulary's size and the prompts'
    length; none for synthetic weights, or where the prompts are too short to tell."""
    min_centred_cosine: Cosine = 0.9
    """Lowest cosine of mean-free logits at any position."""
    min_greedy: Annotated[int, Field(ge=0)] = 10
    """Equal greedy tokens before the first difference, in every prompt."""
    min_embedding_cosine: Cosine = 0.98
    """Of an encoder: lowest cosine of a text's embedding with the reference's; 2 sqrt(1 - this) is
    the greatest relative L2 error, for a cosine sees no norm."""
    min_kendall: Annotated[float, Field(ge=-1, le=1)] = 0.9
    """Of an encoder: lowest Kendall's tau of a prompt's order of the sentences, by the cosine of
    embeddings, over pairs that the reference has 0.01 or more apart; -1 for none."""


class ThroughputPolicy(Record):
    """How fast. It is measured here and now: recorded evidence never counts."""

    max_regression: Regression | None = None
    """How much less than the baseline tok/s may be, and how much more seconds a load may take:
    `"5%"`, a share, or `"calibrated"`, what `pytest-ane calibrate` found to be noise. Given, every
    benchmark is compared; absent, only with `--benchmark-compare`."""
    min_tok_s: Annotated[float, Field(gt=0)] | None = None
    """Fewest tokens a second, of the whole chain or of a shard's calls."""


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


class Policy(Record):
    """What a shard must reach to pass its gates."""

    placement: PlacementPolicy = PlacementPolicy()
    """Where it must run."""
    compression: CompressionPolicy = CompressionPolicy()
    """How small it must be."""
    fidelity: FidelityPolicy = FidelityPolicy()
    """How close to its reference."""
    hazards: HazardsPolicy = HazardsPolicy()
    """What the ANE's arithmetic may cost."""
    behaviour: BehaviourPolicy = BehaviourPolicy()
    """How close the whole stack must be."""
    throughput: ThroughputPolicy = ThroughputPolicy()
    """How fast, on the machine at hand."""
    evidence: EvidencePolicy = EvidencePolicy()
    """Which recorded evidence counts."""
    unproven: Literal["fail", "allow"] = "fail"
    """What becomes of a gate that could compare nothing."""

    def requires_evidence(self, gate: str) -> bool:
        """Whether a gate passes only on what a device measured, now or in recorded evidence."""
        return getattr(getattr(self, gate), "require", "any") in ("plan", "device")
