"""Thresholds of fidelity: those of a shard, and those of single outputs laid over them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pytest_ane.manifest.base import Form, Record

Cosine = Annotated[float, Field(ge=-1, le=1)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
OutputName = Annotated[str, Form(r"\S(.{0,254}\S)?", "must be the name of an output")]


class OutputPolicy(Record):
    """How close one output must be; what is absent is as the shard's policy has it."""

    min_cosine: Cosine | None = None
    """Lowest cosine of any position of any live probe."""
    min_cosine_first: Cosine | None = None
    """The same for position 0 of captured probes."""
    min_contribution: Cosine | None = None
    """Lowest cosine with the residual path taken out, position 0 of captured probes apart."""
    min_cosine_flat: Cosine | None = None
    """Lowest cosine of all positions of a probe as one vector."""
    min_cosine_group: Cosine | None = None
    """Lowest cosine of 32 channels over all positions of a probe."""
    max_relative_l2: NotNegative | None = None
    """Greatest |a - b| / |b| of any position, position 0 of captured probes apart."""
    min_snr: float | None = None
    """Lowest signal-to-noise ratio of any position in dB, position 0 of captured probes apart."""
    max_error: NotNegative | None = None
    """Greatest absolute difference of any value."""
    max_relative_error: NotNegative | None = None
    """Greatest |a - b| / |b| of any value, |b| being at least 2^-14."""
    max_non_finite: Share | None = None
    """Share of values that may be NaN or infinite; positions that have one are not compared."""
