"""Cases of a builder's shards: seeded arrays for every input port, through the float32 module."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from pytest_ane.make import Cache
from pytest_ane.manifest import Input, Shard
from pytest_ane.manifest.inputs import questions
from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.digests import key_digest
from pytest_ane.mlprogram.errors import BuildError
from pytest_ane.mlprogram.records import DType, Feature
from pytest_ane.models.families import Conversion, Inputs, Port
from pytest_ane.models.families.user_code import error_line
from pytest_ane.probes.cases import TURNS, Case, flexible_axis, package_case, with_prefix
from pytest_ane.probes.domains import check_names, from_manifest
from pytest_ane.probes.recording import RECORDING_VERSION, load, load_ports, save
from pytest_ane.probes.sampler import SAMPLER, Sampler
from pytest_ane.probes.seeded import KINDS, generator, lengths

BuilderProbe: TypeAlias = tuple[str, str, int, Sequence[Inputs]]
"""Kind, name, T, and the inputs by port of each call."""


def builder_cases(folder: Path, tables: Mapping[str, Input] = MappingProxyType({})) -> list[Case]:
    """A shard's seeded probes, at several T where it is flexible, with its reference's outputs.

    `tables` are the manifest's, of inputs that were drawn so when the probes were recorded.
    """
    tensors, metadata = load(folder)
    ports = load_ports(folder).outputs
    domains = {name: from_manifest(spec) for name, spec in tables.items()}
    cases = [
        package_case(
            kind,
            name,
            [with_prefix(tensors, f"{i}.{call}.in.") for call in range(calls)],
            [with_prefix(tensors, f"{i}.{call}.out.") for call in range(calls)],
            ports,
            length=length,
            carried=carried,
        )
        for i, (kind, name, length, calls, carried) in enumerate(metadata["probes"])
    ]
    return [replace(case, domains=domains) for case in cases]


def record_builder(
    cache: Cache, identity: dict[str, Any], shard: Shard, conversion: Callable[[], Conversion]
) -> Path:
    """Probes as `{i}.{call}.in.NAME`, outputs as `{i}.{call}.out.NAME`, and metadata.

    Recorded in the cache; `conversion` is called only when there is no recording yet.

    Returns:
        The entry's folder.

    Raises:
        BuildError: the reference fails, or its outputs are not those that the ports say.
        ProgramError: the manifest names an input that is no port, or its options do not fit.
    """
    key = {
        **identity,
        "recording": RECORDING_VERSION,
        "shard": shard.id,
        "max": shard.max_tokens,
        "probes": shard.probes.model_dump(mode="json"),
        **({"inputs": [SAMPLER, questions(shard.inputs)]} if shard.inputs else {}),
    }

    def make(folder: Path) -> None:
        built = conversion()
        probes = list(_probes(shard, built))
        tensors: dict[str, FloatArray] = {}
        listed = []
        for i, (kind, name, length, calls) in enumerate(probes):
            outputs = _reference(built, calls, length, shard.qualified)
            for call, (inputs, results) in enumerate(zip(calls, outputs, strict=True)):
                tensors |= {f"{i}.{call}.in.{port}": array for port, array in inputs.items()}
                tensors |= {f"{i}.{call}.out.{port}": array for port, array in results.items()}
            carried = _carried(built, calls[-1], outputs[-1], length, shard.qualified)
            listed.append([kind, name, length * len(calls), len(calls), carried])
        about = {"shard": shard.qualified, "probes": listed, "ports": asdict(built.ports)}
        save(folder, tensors, about)

    return cache.get_or_make("recordings", key_digest(key), make, shard.qualified)


def _probes(shard: Shard, built: Conversion) -> Iterator[BuilderProbe]:
    probes, ports = shard.probes, built.inputs
    flexible = any("T" in port.shape for port in ports)
    sampler = _sampler(shard, ports)
    for kind in (kind for kind in probes.kinds if kind in KINDS):
        largest = shard.max_tokens if flexible else 1
        for length in lengths(largest):
            for number in range(probes.count if length in (1, largest) else 1):
                seed = (probes.seed, kind, length, number)
                shapes = {port.name: _shape(port, length) for port in ports}
                step = length if flexible else sampler.positions(shapes)
                yield kind, f"{kind} T={length} #{number}", length, [
                    {p.name: _array(p, kind, length, (*seed, p.name, *filter(None, [i])))
                     for p in ports}
                    | sampler.call(shapes, kind, seed[:3], number, start=turn * step, call=i)
                    for i, turn in enumerate(TURNS if built.states else TURNS[:1])
                ]  # fmt: skip


def _sampler(shard: Shard, ports: Sequence[Port]) -> Sampler:
    """Draws the inputs that the manifest names."""
    check_names(shard.qualified, shard.inputs, [port.name for port in ports])
    features = (
        Feature(
            port.name,
            DType.FP16,
            (),
            tuple((1, shard.max_tokens) if n == "T" else (int(n), int(n)) for n in port.shape),
        )
        for port in ports
        if port.name in shard.inputs
    )
    domains = {name: from_manifest(spec) for name, spec in shard.inputs.items()}
    return Sampler(tuple(features), shard.qualified, domains)


def _array(port: Port, kind: str, length: int, seed: tuple[object, ...]) -> FloatArray:
    """A probe drawn position by position, so that `unit-norm` means each position's norm."""
    shape = _shape(port, length)
    axis = flexible_axis(port)
    rows = 1 if axis is None else length
    drawn = KINDS[kind](generator(*seed), (rows, math.prod(shape) // rows))
    if axis is None:
        return drawn.reshape(shape)
    others = (*shape[:axis], *shape[axis + 1 :])
    return np.ascontiguousarray(np.moveaxis(drawn.reshape(length, *others), 0, axis))


def _reference(
    built: Conversion, calls: Sequence[Inputs], length: int, subject: str
) -> list[Inputs]:
    """The outputs by port of each call, in float32; states start at zero, as Core ML's do."""
    import torch

    module = built.reference or built.module.float().eval()
    # A reference of the builder's own may be any function; such a one keeps no state.
    buffers = dict(module.named_buffers()) if isinstance(module, torch.nn.Module) else {}
    before = {name: buffer.clone() for name, buffer in buffers.items()}
    with torch.no_grad():
        for port in built.states if built.reference is None else ():
            buffers[port.name].zero_()
        outputs = [_call(module, built, inputs, length, subject) for inputs in calls]
        for name, buffer in buffers.items():
            buffer.copy_(before[name])
    return outputs


def _call(module: Any, built: Conversion, inputs: Inputs, length: int, subject: str) -> Inputs:
    import torch

    tensors = [torch.from_numpy(inputs[port.name]) for port in built.inputs]
    try:
        result = module(*tensors)
    except Exception as error:
        message = error_line(error, type(module).__module__)
        raise BuildError(f"{subject}: its float32 reference failed: {message}.") from error
    outputs = result if isinstance(result, tuple | list) else (result,)
    shapes = [tuple(getattr(output, "shape", ())) for output in outputs]
    declared = [_shape(port, length) for port in built.outputs]
    if shapes != declared:
        raise BuildError(
            f"{subject}: at T = {length} its reference gives {_listed(shapes)}, and its output "
            f"ports say {_listed(declared)}."
        )
    named = zip(built.outputs, outputs, strict=True)
    return {p.name: torch.as_tensor(x).to(torch.float32).numpy().copy() for p, x in named}


def _carried(
    built: Conversion, last: Inputs, outputs: Inputs, length: int, subject: str
) -> dict[str, bool]:
    """Whether the last call's outputs are others on a fresh state; nobody tells states apart."""
    if not built.states:
        return {}
    (fresh,) = _reference(built, [last], length, subject)
    differs = any(not np.array_equal(fresh[n], x, equal_nan=True) for n, x in outputs.items())
    return {port.name: differs for port in built.states}


def _shape(port: Port, length: int) -> tuple[int, ...]:
    return tuple(length if size == "T" else int(size) for size in port.shape)


def _listed(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(str(list(shape)) for shape in shapes)
