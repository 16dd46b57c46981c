"""What is the user's own: code that a manifest names, and packages of other ports.

Families and builders are imported and digested. A builder is a function that makes each shard's
torch module and names its ports. A package made elsewhere may call a family's ports otherwise.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np

from pytest_ane.manifest import FAMILIES, Manifest, Model
from pytest_ane.manifest.records import OwnPort
from pytest_ane.mlprogram.arrays import Array, Arrays, FloatArray
from pytest_ane.mlprogram.digests import digests, file_digest
from pytest_ane.mlprogram.errors import BuildError, ManifestError
from pytest_ane.models.families import Conversion, Inputs, Layout, Port, Ports, trait


def make_importable(manifest: Manifest) -> None:
    """Put a manifest's folder last on `sys.path`, if the manifest names a module of the user's.

    Last, so that nothing in it stands in for a library that is imported later.
    """
    own = any(
        model.builder or model.family not in (None, *FAMILIES) or ":" in str(model.reference)
        for model in manifest.models
    )
    folder = str(manifest.path.absolute().parent)
    if own and folder not in sys.path:
        sys.path.append(folder)


def import_code(name: str, key: str) -> ModuleType:
    """Import a module that a manifest's key names; `ManifestError` where that fails."""
    try:
        module = import_module(name)
        if name not in _imported and name.partition(".")[0] != "pytest_ane":
            _imported[name] = _states(name)
        return module
    # A module may raise anything, SystemExit included, while it is imported.
    except (Exception, SystemExit) as error:
        raise ManifestError(
            f"{key}: {name} cannot be imported: {error_line(error, name)}."
        ) from error


_imported: dict[str, dict[str, tuple[int, int]]] = {}
"""Size and time of change of each module's files as it was imported."""


def edited_since_import() -> list[str]:
    """Modules of users whose source is no longer what this process imported and runs."""
    return [name for name, states in _imported.items() if _states(name) != states]


def _states(name: str) -> dict[str, tuple[int, int]]:
    try:
        stats = {part: file.stat() for part, file in _code_files(name).items()}
    except (ManifestError, OSError):
        return {}
    return {part: (stat.st_size, stat.st_mtime_ns) for part, stat in stats.items()}


@contextmanager
def running(target: str, label: str) -> Iterator[Callable[..., Any]]:
    """The function `module:name`, else `ManifestError`; what the block raises is a `BuildError`."""
    module, _, name = target.partition(":")
    function = getattr(import_code(module, label), name, None)
    if not callable(function):
        raise ManifestError(f"{label}: {module} has no function {name!r}.")
    try:
        yield function
    # It is the user's code, which may raise anything, SystemExit included.
    except (Exception, SystemExit) as error:
        raise BuildError(f"{label} failed: {error_line(error, module)}.") from error


def error_line(error: BaseException, module: str) -> str:
    """An error in one line, with the last line of the user's own module that led to it."""
    text = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".: ")
    file = getattr(sys.modules.get(module), "__file__", None)
    with suppress(ImportError, ValueError):  # Its import failed, so it is not among those loaded.
        file = file or getattr(find_spec(module), "origin", None)
    own = [f for f in traceback.extract_tb(error.__traceback__) if file and f.filename == file]
    return f"{text} ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else text


def code_digests(module: str) -> dict[str, str]:
    """SHA-256 of a module's source by file: of its top-level package, without importing it."""
    return {part: file_digest(file) for part, file in _code_files(module).items()}


def _code_files(module: str) -> dict[str, Path]:
    top = module.partition(".")[0]
    spec = None
    with suppress(ValueError):
        spec = find_spec(top)
    if spec is None:
        raise ManifestError(f"{module} is neither in the manifest's folder nor installed.")
    if spec.submodule_search_locations is None:
        return {top: Path(spec.origin)} if spec.has_location and spec.origin else {}
    folders = [Path(location) for location in spec.submodule_search_locations]
    return {
        f"{top}/{file.relative_to(folder).as_posix()}": file
        for folder in folders
        for file in sorted(folder.rglob("*.py"))
    }


class BuilderModel:
    """What a manifest's `builder = "module:function"` makes, as the build takes it."""

    def __init__(self, model: Model) -> None:
        assert model.builder is not None
        self.target = model.builder
        self._model = model

    description: dict[str, Any] = {}  # noqa: RUF012
    """Nothing: there is no layout to rebuild."""

    def identity(self, root: Path) -> dict[str, Any]:
        """What the shards depend on, as far as it is known without running the builder."""
        depends: dict[str, Path] = {}
        for path in self._model.depends:
            if not path.exists():
                raise ManifestError(
                    f"{self._model.name}: depends names {path}, which is not there; check the path."
                )
            files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
            depends |= {str(file): file for file in files}
        return {
            "builder": self.target,
            "code": code_digests(self.target.partition(":")[0]),
            "depends": digests(depends, root),
            "versions": {name: version(name) for name in ("numpy", "torch")},
        }

    def conversion(self, shard: str) -> Conversion:
        """Have a shard made; `ManifestError` without the function, `BuildError` where it fails."""
        subject = f"{self._model.name}:{shard}"
        with running(self.target, f"{subject}: builder {self.target!r}") as function:
            made = function(shard)
        if not isinstance(made, Conversion):
            raise BuildError(
                f"{subject}: builder {self.target!r} gave {type(made).__name__}; return a "
                "pytest_ane.models.families.Conversion."
            )
        if fault := _unsound(made):
            raise BuildError(f"{subject}: the Conversion of builder {self.target!r} {fault}.")
        return made


def _unsound(made: Conversion) -> str | None:
    import torch

    if not isinstance(made.module, torch.nn.Module):
        return f"has {type(made.module).__name__} for a module; give a torch.nn.Module"
    if made.reference is not None and not callable(made.reference):
        return f"has {type(made.reference).__name__} for a reference; give a callable or None"
    ports = (*made.inputs, *made.outputs, *made.states)
    if not made.inputs or not made.outputs:
        return "names no inputs or no outputs; give a Port for each"
    for port in ports:
        if not isinstance(port, Port):
            return f"has {type(port).__name__} among its ports; give a families.Port"
        if not all(d == "T" or (isinstance(d, int) and d > 0) for d in port.shape):
            return f"gives {port.name!r} the shape {port.shape}; use sizes and 'T'"
    names = [port.name for port in ports]
    if len(set(names)) < len(names):
        return f"names a port twice among {', '.join(names)}"
    return None


class Renaming:
    """A family's ports as a package has them, whose names and axes `own` has by the family's.

    Several states may be one of the package's, one after another along an axis. `ManifestError`,
    which begins with `subject`, for ports that the family does not have.
    """

    def __init__(self, subject: str, ports: Ports, own: Mapping[str, OwnPort]) -> None:
        self.ports, self.own = ports, own
        every = (*ports.inputs, *ports.outputs, *ports.states)
        self._known = {port.name: port for port in every}
        if unknown := [name for name in own if name not in self._known]:
            raise ManifestError(
                f"{subject}: ports names {unknown[0]!r}, which its family does not have; there "
                f"are: {', '.join(self._known)}."
            )
        for name in own:
            shape = self._known[name].shape
            left, axes = self._axes(name, len(shape))
            if not set(axes) <= set(range(len(shape))) or any(shape[axis] != 1 for axis in left):
                raise ManifestError(
                    f"{subject}: ports.{name} gives the axes {list(axes)}; {name} has the shape "
                    f"{list(shape)}, and only axes of 1 may be left out."
                )
        self._check_joined(subject)

    def _check_joined(self, subject: str) -> None:
        """Ports of one name are states, each with the axis along which the package has them."""
        groups: dict[str, list[str]] = {}
        for port in self._known:
            groups.setdefault(self.name(port), []).append(port)
        states = {port.name for port in self.ports.states}
        for name, ports in groups.items():
            joins = {self.own[port].join if port in self.own else None for port in ports}
            if len(ports) == 1 and joins == {None}:
                continue
            shapes = [self._port(self._known[port]).shape for port in ports]
            axis = joins.pop()
            apart = axis is None or any(axis >= len(shape) for shape in shapes)
            rest = {(*s[:axis], *s[axis + 1 :]) for s in shapes} if axis is not None else ()
            if apart or joins or len(rest) > 1 or len(ports) == 1 or not states.issuperset(ports):
                raise ManifestError(
                    f"{subject}: ports calls {' and '.join(ports)} {name!r}; two or more states "
                    "may be one of the package's, with one 'join' for all, the axis along which "
                    "it has them, and the same extents along others."
                )

    def _ordered(self, ports: Iterable[str]) -> list[str]:
        order = {name: at for at, name in enumerate(self.own)}
        return sorted(ports, key=lambda port: order.get(port, len(order)))

    def declared(self) -> Ports:
        """The ports that the package must have."""
        sides = (self.ports.inputs, self.ports.outputs, self.ports.states)
        return Ports(*map(self._side, sides))

    def _side(self, side: Sequence[Port]) -> tuple[Port, ...]:
        made: dict[str, Port] = {}
        known = {port.name: port for port in side}
        for name in self._ordered(known):
            port = self._port(known[name])
            if (before := made.get(port.name)) is not None:
                axis = self.own[name].join or 0
                both = int(before.shape[axis]) + int(port.shape[axis])
                shape = (*port.shape[:axis], both, *port.shape[axis + 1 :])
                port = Port(port.name, shape)
            made[port.name] = port
        return tuple(made.values())

    def name(self, port: str) -> str:
        """What the package calls a port."""
        return (port in self.own and self.own[port].name) or port

    def arrays(self, arrays: Arrays) -> dict[str, Array]:
        """The family's arrays as the package takes them."""
        made: dict[str, Array] = {}
        for port in self._ordered(arrays):
            array, name = self._moved(port, arrays[port]), self.name(port)
            if name in made:
                array = np.concatenate([made[name], array], self.own[port].join)
            made[name] = array
        return made

    def family(self, arrays: Arrays) -> dict[str, Array]:
        """The package's arrays as the family has them; those of other names as they are."""
        known = {self.name(port.name): port for port in self._known.values()}
        others = {name: array for name, array in arrays.items() if name not in known}
        own = (known[name] for name in arrays if name in known)
        return others | {p.name: self._back(p, arrays[self.name(p.name)]) for p in own}

    def _axes(self, port: str, count: int) -> tuple[Sequence[int], Sequence[int]]:
        own = self.own[port].axes if port in self.own else None
        axes = range(count) if own is None else own
        return [axis for axis in range(count) if axis not in axes], axes

    def _port(self, port: Port) -> Port:
        _, axes = self._axes(port.name, len(port.shape))
        return Port(self.name(port.name), tuple(port.shape[axis] for axis in axes))

    def _moved(self, port: str, array: Array) -> Array:
        left, axes = self._axes(port, array.ndim)
        moved: Array = np.transpose(array, (*left, *axes))
        return moved.reshape(moved.shape[len(left) :])

    def _back(self, port: Port, array: Array) -> Array:
        left, axes = self._axes(port.name, len(port.shape))
        if array.ndim != len(axes):
            return array
        whole = array.reshape((1,) * len(left) + array.shape)
        return np.transpose(whole, np.argsort((*left, *axes)))


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
        told = trait(self._layout, "recurrent")
        return None if told is None else tuple(dict.fromkeys(map(self._names.name, told)))

    def inputs(self, hidden: FloatArray, start: int = 0, first: int = 0) -> Inputs:
        """The package's inputs."""
        where = (start, first) if first else (start,)
        return self._names.arrays(self._layout.inputs(hidden, *where))

    def output(self, outputs: Inputs) -> FloatArray:
        """The package's output as rows."""
        return self._layout.output(self._names.family(outputs))
