"""A family's shard as a package of the user's own that calls its ports otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pytest_ane.manifest.records import OwnPort
from pytest_ane.mlprogram.arrays import Array, Arrays, FloatArray
from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.models.families.base import Inputs, Layout, Port, Ports, recurrent_of


@dataclass(frozen=True)
class Renaming:
    """The family's ports as a package has them.

    Args:
        ports: of the family.
        own: by the family's names, those and the order of axes of the package.
    """

    ports: Ports
    own: Mapping[str, OwnPort]

    def declared(self) -> Ports:
        """The ports that the package must have."""
        sides = (self.ports.inputs, self.ports.outputs, self.ports.states)
        return Ports(*(tuple(map(self._port, side)) for side in sides))

    def name(self, port: str) -> str:
        """What the package calls a port."""
        return (port in self.own and self.own[port].name) or port

    def arrays(self, arrays: Arrays) -> dict[str, Array]:
        """The family's arrays as the package takes them."""
        return {self.name(port): self._moved(port, array) for port, array in arrays.items()}

    def family(self, arrays: Arrays) -> dict[str, Array]:
        """The package's arrays as the family has them; those of other names as they are."""
        names = {self.name(port.name): port for port in self._all}
        return {
            names[name].name if name in names else name: (
                self._back(names[name], array) if name in names else array
            )
            for name, array in arrays.items()
        }

    @property
    def _all(self) -> tuple[Port, ...]:
        return (*self.ports.inputs, *self.ports.outputs, *self.ports.states)

    def _axes(self, port: str) -> tuple[int, ...] | None:
        return self.own[port].axes if port in self.own else None

    def _port(self, port: Port) -> Port:
        axes = self._axes(port.name)
        shape = port.shape if axes is None else tuple(port.shape[axis] for axis in axes)
        return Port(self.name(port.name), shape)

    def _moved(self, port: str, array: Array) -> Array:
        axes = self._axes(port)
        if axes is None:
            return array
        left = [axis for axis in range(array.ndim) if axis not in axes]
        moved: Array = np.transpose(array, (*left, *axes))
        return moved.reshape(moved.shape[len(left) :])

    def _back(self, port: Port, array: Array) -> Array:
        axes = self._axes(port.name)
        if axes is None or array.ndim != len(axes):
            return array
        left = [axis for axis in range(len(port.shape)) if axis not in axes]
        whole = array.reshape((1,) * len(left) + array.shape)
        back: Array = np.transpose(whole, np.argsort((*left, *axes)))
        return back


def renaming(subject: str, ports: Ports, own: Mapping[str, OwnPort]) -> Renaming:
    """What `ports` of the manifest says of a family's shard.

    Raises:
        ManifestError: the family has no such port, or the axes are not the port's.
    """
    known = {port.name: port for port in (*ports.inputs, *ports.outputs, *ports.states)}
    for name, port in own.items():
        if name not in known:
            raise ManifestError(
                f"{subject}: ports names {name!r}, which its family does not have; there are: "
                f"{', '.join(known)}."
            )
        shape = known[name].shape
        axes = port.axes if port.axes is not None else tuple(range(len(shape)))
        left = [n for axis, n in enumerate(shape) if axis not in axes]
        if not set(axes) <= set(range(len(shape))) or any(n != 1 for n in left):
            raise ManifestError(
                f"{subject}: ports.{name} gives the axes {list(axes)}; {name} has the shape "
                f"{list(shape)}, and only axes of 1 may be left out."
            )
    return Renaming(ports, own)


class RenamedLayout:
    """A family's layout for a package that calls its ports otherwise."""

    width: int
    sees: Literal["itself", "call", "state"]
    shifts: bool

    def __init__(self, layout: Layout, names: Renaming) -> None:
        self._layout, self._names = layout, names

    def __getattr__(self, name: str) -> Any:
        """What the family tells of its layout, or leaves out, it tells or leaves out of this."""
        return getattr(self._layout, name)

    @property
    def recurrent(self) -> Any:
        """As of the family, by the package's names; None where it does not tell."""
        told = recurrent_of(self._layout)
        return None if told is None else tuple(map(self._names.name, told))

    def inputs(self, hidden: FloatArray, start: int = 0, first: int = 0) -> Inputs:
        """The package's inputs."""
        where = (start, first) if first else (start,)
        return self._names.arrays(self._layout.inputs(hidden, *where))

    def output(self, outputs: Inputs) -> FloatArray:
        """The package's output as rows."""
        return self._layout.output(self._names.family(outputs))
