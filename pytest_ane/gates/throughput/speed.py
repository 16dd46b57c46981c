"""What was timed, as it goes into a benchmark's `extra_info` and comes back from a stored run."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

What: TypeAlias = Literal["load", "call", "decode"]
"""Loading a shard up to its first prediction; one call of a shard; tokens of the whole chain."""

KEY = "ane"
"""Where it stands in `extra_info`."""


class Speed(BaseModel):
    """Rounds of one benchmark.

    Attributes:
        what: what a round is.
        subject: qualified shard (`smollm2:L01`) or model (`smollm2`).
        tokens: positions that a round computes; 0 where it computes none.
        seconds: of each round, warm-up left out.
        batches: how often the rounds were timed; `seconds` are those of the fastest.
        yardstick: median seconds of the machine's yardstick beside them; None on a device.
        identity: what two runs must share to be compared: machine, chip, system, backend, units.
        state: what may differ, and explains a difference: power, thermal state, load, versions.
        artifacts: digests by shard.
        prompt: token ids that were decoded from.
        profile: median seconds of a round by part, `block`, `head`, `host`...
        counts: how many shards a part has.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    what: What
    subject: str
    tokens: Annotated[int, Field(ge=0)]
    seconds: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)]
    batches: Annotated[int, Field(ge=1)] = 1
    yardstick: Annotated[float, Field(gt=0)] | None = None
    identity: dict[str, str]
    state: dict[str, str] = {}
    artifacts: dict[str, str] = {}
    prompt: tuple[int, ...] = ()
    profile: dict[str, float] = {}
    counts: dict[str, int] = {}

    @property
    def median(self) -> float:
        """Median seconds of a round."""
        return float(np.median(self.seconds))

    @property
    def tok_s(self) -> float | None:
        """Tokens a second, by the median round; None where a round computes none."""
        return self.tokens / self.median if self.tokens else None

    def to_json(self) -> dict[str, Any]:
        """What `extra_info["ane"]` holds; medians beside the rounds, for people and other tools."""
        return self.model_dump(mode="json") | {
            "tok_s": self.tok_s,
            "ms_token": 1000 * self.median / self.tokens if self.tokens else None,
        }
