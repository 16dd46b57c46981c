"""What was asked for a weight, in words, and whether its file has exactly that."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pytest_ane.build.census import SPARSE, Stage, Weight
from pytest_ane.manifest import LinearStep, PalettizeStep, PruneStep, Settings, Step


def expected(weight: Weight, settings: Settings) -> tuple[Step, ...]:
    """The steps that concern a weight of this size."""
    return tuple(step for step in settings.steps if weight.elements > step.weight_threshold)


def asked_for(steps: Sequence[Step]) -> str:
    """Steps in words: `pruned (target_sparsity 0.5), then quantized (int8, per_channel)`."""
    return ", then ".join(map(_words, steps))


def undone(weight: Weight, steps: Sequence[Step], notes: Sequence[str]) -> Iterator[str]:
    """One sentence for the first step that was not done, or for what was done unasked."""
    left = list(weight.stages)
    was = f"{weight.name} {list(weight.shape)} was to be {asked_for(steps)}"
    for step in steps:
        stage = next((s for s in left if _does(s, step, steps)), None)
        if stage is None:
            yield (
                f"{was} but is stored as {_stored(weight)}{_because(weight, steps, notes)}; choose "
                "a setting that fits its shape, or name it in compression.keep."
            )
            return
        if (says := _differs(weight, stage, step, steps)) is not None:
            yield f"{was}{says}."
            return
        left.remove(stage)
    if any(isinstance(s, PalettizeStep) and s.enable_per_channel_scale for s in steps):
        scales = [s for s in left if s.is_scale and not s.is_quantization]
        if not scales:
            yield f"{was} but its tables are not scaled by channel."
        left = [s for s in left if s not in scales]
    if left:
        yield f"{was} but is stored as {_stored(weight)}."


def declined(weight: Weight, steps: Sequence[Step], notes: Sequence[str]) -> str:
    """Why the converter left a weight as it is: its own remark, or what its shape shows."""
    return _because(weight, steps, notes).strip(" ()")


def _does(stage: Stage, step: Step, steps: Sequence[Step]) -> bool:
    if isinstance(step, PruneStep):
        return stage.op == SPARSE
    if isinstance(step, PalettizeStep):
        return stage.is_palette and not stage.of_table
    # A palette's integers are those of its tables, whichever of the two methods came first.
    palette = any(isinstance(other, PalettizeStep) for other in steps)
    return stage.is_quantization and stage.of_table == palette


def _differs(weight: Weight, stage: Stage, step: Step, steps: Sequence[Step]) -> str | None:
    """How a stage differs from the step that it carries out."""
    if isinstance(step, PruneStep):
        least = _least_sparsity(weight, step)
        if weight.sparsity < least:
            return f" but {weight.sparsity:.4f} of it are left out as zeros, not {least:.4f}"
        return None
    unique = isinstance(step, PalettizeStep) and step.mode == "unique"
    if not unique and stage.nbits != step.nbits:
        return f" but has {stage.nbits} bits"
    if isinstance(step, PalettizeStep) and stage.vector != step.cluster_dim:
        return f" but its tables hold vectors of {stage.vector}, not of {step.cluster_dim}"
    wanted = _tables(weight, step, steps)
    if stage.count not in wanted:
        numbers = " or ".join(map(str, sorted(wanted)))
        return f", which takes {numbers} tables or scales, but has {stage.count}"
    return None


def _tables(weight: Weight, step: PalettizeStep | LinearStep, steps: Sequence[Step]) -> set[int]:
    """Tables or scales that a step takes."""
    axes = _axes(weight, joint=len(steps) > 1)
    if isinstance(step, LinearStep):
        return {_scales(step, pair) for pair in axes}
    outputs = {pair[0] for pair in axes}
    grouped = step.granularity == "per_grouped_channel"
    tables = {rows // step.group_size for rows in outputs} if grouped else {1}
    if step.enable_per_channel_scale:
        # Scales lie along all other axes, and every one has a table scaled by it.
        return {n * weight.elements // rows for rows in outputs for n in tables}
    quantized = steps[0]
    if isinstance(quantized, LinearStep) and quantized.granularity != "per_tensor":
        return {_scales(quantized, pair) for pair in axes}
    return tables


def _axes(weight: Weight, *, joint: bool) -> set[tuple[int, ...]]:
    """Sizes of the output and the input channels, as the operations that take a weight have them.

    Source: `select_input_output_channel_axis` in optimize/_utils.py of coremltools 9.0, which takes
    the two for one another where compression is joint.
    """
    first, last = weight.shape[:2], weight.shape[-2:]
    found: set[tuple[int, ...]] = set()
    for op in weight.op_types or ("",):
        if op == "matmul":
            found |= {first, first[::-1], last, last[::-1]}
        else:
            found.add(first[::-1] if op == "conv_transpose" else first)
    return found | {pair[::-1] for pair in found} if joint else found


def _scales(step: LinearStep, axes: tuple[int, ...]) -> int:
    if step.granularity == "per_tensor":
        return 1
    if step.granularity == "per_channel":
        return axes[0]
    return axes[0] * (math.prod(axes[1:2]) // step.block_size)


def _least_sparsity(weight: Weight, step: PruneStep) -> float:
    """The share of zeros that a step yields at least."""
    if step.target_sparsity is not None:
        return math.floor(weight.elements * step.target_sparsity) / weight.elements
    if step.n_m_ratio is not None:
        n, m = step.n_m_ratio
        axis = 1 if step.dim is None else step.dim
        channels = weight.shape[axis] if axis < len(weight.shape) else 1
        # The last group is filled up with zeros, which are the first to be chosen.
        zeros = channels // m * n + max(0, n - m + channels % m) * (channels % m > 0)
        return zeros / channels
    return 0.5 if step.minimum_sparsity_percentile is None else step.minimum_sparsity_percentile


def _because(weight: Weight, steps: Sequence[Step], notes: Sequence[str]) -> str:
    rows, said = weight.shape[0], [note for note in notes if weight.name in note]
    grouped = (s for s in steps if isinstance(s, PalettizeStep))
    for step in (s for s in grouped if s.granularity == "per_grouped_channel"):
        if rows % step.group_size:
            return f" ({rows} output channels are not divisible by group_size {step.group_size})"
    if said:
        return f" ({said[0].removeprefix(f'{weight.name}: ').rstrip('.')})"
    one = len(weight.shape) == 1
    return " (coremltools leaves weights of one dimension as they are)" if one else ""


def _stored(weight: Weight) -> str:
    return " of ".join(stage.op for stage in reversed(weight.stages)) or "const"


def _words(step: Step) -> str:
    if isinstance(step, PalettizeStep):
        bits = "" if step.mode == "unique" else f"{step.nbits} bits, "
        return f"palettized ({step.mode}, {bits}{step.granularity})"
    if isinstance(step, LinearStep):
        return f"quantized ({step.dtype}, {step.granularity})"
    ways = {key: getattr(step, key) for key in ("target_sparsity", "n_m_ratio", "threshold")}
    key, value = next((k, v) for k, v in ways.items() if v is not None)
    return f"pruned ({key} {':'.join(map(str, value)) if isinstance(value, tuple) else value})"
