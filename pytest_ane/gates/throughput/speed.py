"""A timed benchmark, as it is stored in `extra_info`, and how its figures are written."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

What: TypeAlias = Literal["load", "call", "decode"]
"""Loading a shard up to its first prediction; one call of a shard; tokens of the whole chain."""

KEY = "ane"
"""Where a `Speed` stands in `extra_info`."""

_Seconds: TypeAlias = Annotated[float, Field(gt=0)]


class Speed(BaseModel):
    """Rounds of one benchmark.

    Attributes:
        what: what a round is.
        subject: qualified shard (`smollm2:L01`) or model (`smollm2`).
        kind: of the shard, as its family calls it: `block`, `mixture`, `head`...
        tokens: positions that a round computes; 0 where it computes none.
        seconds: of each round, warm-up left out.
        confirmation: of each round of the confirmation run, if there was one.
        control: median seconds of the control workload, timed before and after the rounds.
        identity: what two runs must share to be compared: machine, chip, system, backend, units.
        state: what may differ, and explains a difference: power, thermal state, load, versions.
        prompt: token ids that were decoded from.
        profile: median seconds of a round by part, `block`, `head`, `host`...
        counts: how many shards a part has.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    what: What
    subject: str
    kind: str = ""
    tokens: Annotated[int, Field(ge=0)]
    seconds: Annotated[tuple[_Seconds, ...], Field(min_length=1)]
    confirmation: tuple[_Seconds, ...] = ()
    control: _Seconds | None = None
    identity: dict[str, str]
    state: dict[str, str] = {}
    artifacts: dict[str, str] = {}
    prompt: tuple[int, ...] = ()
    profile: dict[str, float] = {}
    counts: dict[str, int] = {}

    @property
    def median(self) -> float:
        """Seconds of the median round of the first run, which is the one that is stored."""
        return float(np.median(self.seconds))

    @property
    def medians(self) -> tuple[float, ...]:
        """Seconds of the median round of each run: the first, and the confirmation."""
        runs = (self.seconds, self.confirmation)
        return tuple(float(np.median(seconds)) for seconds in runs if seconds)

    @property
    def tok_s(self) -> float | None:
        """Tokens a second, by the median round; None where a round computes none."""
        return self.tokens / self.median if self.tokens else None

    @property
    def title(self) -> str:
        """`decoding`, `load`, or a call with its positions, `T=4`; `call` if they are unknown."""
        call = f"T={self.tokens}" if self.tokens else "call"
        return {"load": "load", "decode": "decoding", "call": call}[self.what]

    @property
    def machine(self) -> str:
        """The identity in one line."""
        return ", ".join(filter(None, self.identity.values())) or "an unknown machine"

    def figure(self, median: float | None = None) -> str:
        """`9.25 tok/s`, of the first run or of another median; `812.5 ms` without tokens."""
        value = self.median if median is None else median
        return rate(self.tokens / value) if self.tokens else seconds(value)

    def to_json(self) -> dict[str, Any]:
        """The value of `extra_info["ane"]`: with the medians, for people and other tools."""
        ms = 1000 * self.median / self.tokens if self.tokens else None
        return self.model_dump(mode="json") | {"tok_s": self.tok_s, "ms_token": ms}


def rate(tok_s: float) -> str:
    """`9.25 tok/s`, `6,400 tok/s`."""
    return f"{tok_s:.2f} tok/s" if tok_s < 100 else f"{tok_s:,.0f} tok/s"


def seconds(value: float) -> str:
    """`1.25 s`, `812.5 ms`, `0.3 ms`."""
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.4g} ms"


def percent(share: float, *, signed: bool = False) -> str:
    """`5 %`, `12.4 %`, `4,950 %`; `+12.4 %` with a sign."""
    return f"{100 * share:{'+' if signed else ''}{',.0f' if abs(share) >= 10 else '.3g'}} %"
