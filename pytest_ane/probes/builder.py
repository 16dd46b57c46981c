"""Cases of a builder's shards: seeded arrays for every input port, through its float32 module."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from pytest_ane.make import Cache
from pytest_ane.manifest import Input, Shard
from pytest_ane.manifest.inputs import questions
from pytest_ane.mlprogram.arrays import Array, Arrays, FloatArray
from pytest_ane.mlprogram.digests import key_digest
from pytest_ane.mlprogram.errors import BuildError
from pytest_ane.mlprogram.records import DType, Feature
from pytest_ane.models.families import Conversion, Inputs, Port
from pytest_ane.models.families.own import error_line
from pytest_ane.probes.cases import TURNS, Case, flexible_axis, package_case, with_prefix
from pytest_ane.probes.domains import SAMPLER, Sampler, Slots, check_names, from_manifest
from pytest_ane.probes.inputs import kind_axes
from pytest_ane.probes.recording import RECORDING_VERSION, load, load_ports, save
from pytest_ane.probes.seeded import GENERATOR, KINDS, generator, lengths
from pytest_ane.probes.sequences import first_calls, long_cases, steady


def builder_cases(folder: Path, tables: Mapping[str, Input] | None = None) -> list[Case]:
    """A shard's seeded probes, at several T where it is flexible, with its reference's outputs.

    `tables` are the manifest's, of inputs that were drawn so when the probes were recorded.
    """
    tensors, metadata = load(folder)
    ports = load_ports(folder).outputs
    domains = {name: from_manifest(spec) for name, spec in (tables or {}).items()}
    return [
        package_case(
            kind, name,
            [with_prefix(tensors, f"{i}.{call}.in.") for call in range(calls)],
            [with_prefix(tensors, f"{i}.{call}.out.") for call in range(calls)],
            ports, length=length, start=min(spans, default=[0])[0], carried=carried,
            states=with_prefix(tensors, f"{i}.state."), spans=tuple(map(tuple, spans)),
            slots=metadata["slots"], domains=domains, same_module=metadata["same_module"],
        )
        for i, (kind, name, length, calls, carried, spans) in enumerate(metadata["probes"])
    ]  # fmt: skip


def record_builder(
    cache: Cache, identity: dict[str, Any], shard: Shard, conversion: Callable[[], Conversion]
) -> Path:
    """The entry with probes `{i}.{call}.in.NAME`, outputs `{i}.{call}.out.NAME`, and metadata.

    `conversion` is called only when there is no recording yet. `BuildError` where the reference
    fails, `ProgramError` where the manifest's inputs do not fit.
    """
    key = identity | {
        "recording": [RECORDING_VERSION, GENERATOR], "shard": shard.id, "max": shard.max_tokens,
        "probes": shard.probes.model_dump(mode="json"),
        "inputs": [SAMPLER, questions(shard.inputs)],
    }  # fmt: skip

    def make(folder: Path) -> None:
        built = conversion()
        oracle, draws = _Module(built, shard.qualified), _Draws(shard, built)
        leads = draws.slots(oracle) if oracle.keeps else Slots()
        tensors: dict[str, FloatArray] = {}
        listed: list[list[Any]] = []

        def keep(case: Case, outputs: Sequence[Arrays], carried: Mapping[str, bool]) -> None:
            i, made = len(listed), len(outputs)
            parts = {f"{i}.state": case.states}
            for call, results in enumerate(outputs):
                parts |= {f"{i}.{call}.in": case.calls[call], f"{i}.{call}.out": results}
            tensors.update({f"{at}.{n}": x for at, part in parts.items() for n, x in part.items()})
            listed.append([case.kind, case.name, case.length, made, carried, case.spans[:made]])

        for case in draws.cases(leads):
            state = oracle.make_state()
            outputs = [oracle.predict(call, state) for call in case.calls]
            keep(case, outputs, oracle.carried(case.calls[-1], outputs[-1]))
        for case in draws.long_cases(leads) if oracle.keeps and listed else ():
            if made := steady(oracle, case, growing=not leads.states):
                keep(case, made, {})
        same = built.reference in (None, built.module)
        about = {"shard": shard.qualified, "probes": listed, "ports": asdict(built.ports)}
        save(folder, tensors, about | {"same_module": same, "slots": dict(leads.states)})

    return cache.get_or_make("recordings", key_digest(key), make, shard.qualified)


class _Draws:
    """What a builder's shard is probed with: its ports, or what the manifest says of them."""

    def __init__(self, shard: Shard, built: Conversion) -> None:
        self._shard, self._built = shard, built
        check_names(shard.qualified, shard.inputs, [port.name for port in built.inputs])
        features = (
            Feature(port.name, DType.FP16, (), tuple(zip(*ends, strict=True)))
            for port in built.inputs if port.name in shard.inputs
            for ends in [[_port_shape(port, length) for length in (1, shard.max_tokens)]]
        )  # fmt: skip
        domains = {name: from_manifest(spec) for name, spec in shard.inputs.items()}
        self._sampler = Sampler(tuple(features), shard.qualified, domains)
        self._flexible = any("T" in port.shape for port in built.inputs)
        self._largest = shard.max_tokens if self._flexible else 1

    def cases(self, leads: Slots) -> Iterator[Case]:
        """Each drawn kind and number at several T, with states over four calls."""
        probes = self._shard.probes
        turns = TURNS if self._built.states else TURNS[:1]
        for kind in (kind for kind in probes.kinds if kind in KINDS):
            for length in lengths(self._largest, probes.seed):
                for number in range(probes.count if length in (1, self._largest) else 1):
                    seed = (probes.seed, kind, length, number)
                    spans = first_calls(turns, self._step(length), leads)
                    starts = enumerate(at for at, _ in spans)
                    calls = [self._call(kind, seed, length, at, i) for i, at in starts]
                    name, whole = f"{kind} T={length} #{number}", length * len(calls)
                    yield package_case(kind, name, calls, (), length=whole, spans=spans)

    def long_cases(self, leads: Slots) -> Iterator[Case]:
        """Long sequences, with states over their whole length."""
        seed = self._shard.probes.seed

        def call(length: int, number: int, at: int, i: int) -> dict[str, Array]:
            return self._call("gaussian", (seed, "sequence", length, number), length, at, i)

        steps = {self._step(length): length for length in sorted({1, self._largest})}
        states = {port.name: _port_shape(port, 1) for port in self._built.states}
        return long_cases(seed, leads, steps, states, call)

    def slots(self, oracle: _Module) -> Slots:
        """Where positions lead: as the manifest's masks say, or beyond what nothing is kept."""
        specs, shapes = self._shard.inputs, self._shapes(self._largest)
        states = {port.name: set(map(int, port.shape)) for port in self._built.states}
        end, found = None, []
        for port in self._built.inputs:
            shape, spec = shapes[port.name], specs.get(port.name)
            if spec and spec.kind in ("one-hot", "causal-mask"):
                axes = kind_axes(shape, spec.axis, spec.position_axis, flexible_axis(port))
                found.append(shape[axes.own])
        if not found and any(spec.kind == "positions" for spec in specs.values()):
            step = self._step(1)
            found = [
                n for n in sorted(set().union(*states.values()))
                if n > step and self._keeps(oracle, n - step) and not self._keeps(oracle, n)
            ]  # fmt: skip
            end = max(found, default=None)
        return Slots({n: max(found) for n, sizes in states.items() if sizes & {*found}}, end)

    def _keeps(self, oracle: _Module, start: int) -> bool:
        """Whether a call at a position leaves anything in the states."""
        state, seed = oracle.make_state(), (self._shard.probes.seed, "slots", 1, 0)
        before = oracle.read_states(state)
        with suppress(BuildError):
            oracle.predict(self._call("gaussian", seed, 1, start, 0), state)
        return any(not np.array_equal(before[n], x) for n, x in oracle.read_states(state).items())

    def _step(self, length: int) -> int:
        return length if self._flexible else self._sampler.positions(self._shapes(length))

    def _shapes(self, length: int) -> dict[str, tuple[int, ...]]:
        return {port.name: _port_shape(port, length) for port in self._built.inputs}

    def _call(
        self, kind: str, seed: tuple[Any, ...], length: int, start: int, call: int
    ) -> dict[str, Array]:
        drawn: dict[str, Array] = {
            port.name: _array(port, kind, length, (*seed, port.name, *filter(None, [call])))
            for port in self._built.inputs
        }
        asked = self._shapes(length), kind, seed[:3], seed[3]
        return drawn | self._sampler.call(*asked, start=start, call=call)


def _array(port: Port, kind: str, length: int, seed: tuple[object, ...]) -> FloatArray:
    """A probe drawn position by position, so that `unit-norm` means each position's norm."""
    shape = _port_shape(port, length)
    axis = flexible_axis(port)
    rows = 1 if axis is None else length
    drawn = KINDS[kind](generator(*seed), (rows, math.prod(shape) // rows))
    if axis is None:
        return drawn.reshape(shape)
    others = (*shape[:axis], *shape[axis + 1 :])
    return np.ascontiguousarray(np.moveaxis(drawn.reshape(length, *others), 0, axis))


class _Module:
    """A builder's float32 reference, run as a package is; its states are its buffers."""

    def __init__(self, built: Conversion, subject: str) -> None:
        import torch

        self._built, self._subject = built, subject
        module = built.reference or built.module.float().eval()
        # A reference of the builder's own may be any function; such a one keeps no state.
        buffers = module.named_buffers() if isinstance(module, torch.nn.Module) else ()
        self._module, self._buffers = module, dict(buffers)
        self._fresh = {name: buffer.clone() for name, buffer in self._buffers.items()}
        self._states = [port.name for port in built.states if port.name in self._buffers]
        self.keeps = bool(self._states) and len(self._states) == len(built.states)

    def make_state(self) -> dict[str, Any]:
        """Its buffers; those that become states are zero, as Core ML's are."""
        state = {name: buffer.clone() for name, buffer in self._fresh.items()}
        for port in self._built.states if self._built.reference is None else ():
            state[port.name].zero_()
        return state

    def read_states(self, state: dict[str, Any]) -> dict[str, Array]:
        return {name: state[name].numpy().copy() for name in self._states}

    def write_states(self, state: dict[str, Any], values: Arrays) -> None:
        import torch

        for name, kept in values.items():
            state[name].copy_(torch.from_numpy(kept))

    def predict(self, inputs: Arrays, state: dict[str, Any]) -> dict[str, FloatArray]:
        """Outputs by port; `BuildError` where it fails, or gives other shapes than it says."""
        import torch

        length = next((
            inputs[p.name].shape[p.shape.index("T")] for p in self._built.inputs if "T" in p.shape
        ), 1)  # fmt: skip
        with torch.no_grad():
            for name, buffer in self._buffers.items():
                buffer.copy_(state[name])
            try:
                return self._outputs(inputs, length)
            finally:
                for name, buffer in self._buffers.items():
                    state[name].copy_(buffer)
                    buffer.copy_(self._fresh[name])

    def _outputs(self, inputs: Arrays, length: int) -> dict[str, FloatArray]:
        import torch

        tensors = [torch.from_numpy(inputs[port.name]) for port in self._built.inputs]
        try:
            result = self._module(*tensors)
        except Exception as error:
            message = error_line(error, type(self._module).__module__)
            raise BuildError(
                f"{self._subject}: its float32 reference failed: {message}."
            ) from error
        outputs = result if isinstance(result, tuple | list) else (result,)
        shapes = [tuple(getattr(output, "shape", ())) for output in outputs]
        declared = [_port_shape(port, length) for port in self._built.outputs]
        if shapes != declared:
            raise BuildError(
                f"{self._subject}: at T = {length} its reference gives {_listed(shapes)}, and its "
                f"output ports say {_listed(declared)}."
            )
        named = zip(self._built.outputs, outputs, strict=True)
        return {p.name: torch.as_tensor(x).to(torch.float32).numpy().copy() for p, x in named}

    def carried(self, last: Inputs, outputs: Inputs) -> dict[str, bool]:
        """Whether the last call's outputs are others on fresh states; nobody tells them apart."""
        if not self._built.states:
            return {}
        fresh = self.predict(last, self.make_state())
        differs = any(not np.array_equal(fresh[n], x, equal_nan=True) for n, x in outputs.items())
        return {port.name: differs for port in self._built.states}


def _port_shape(port: Port, length: int) -> tuple[int, ...]:
    return tuple(length if size == "T" else int(size) for size in port.shape)


def _listed(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(str(list(shape)) for shape in shapes)
