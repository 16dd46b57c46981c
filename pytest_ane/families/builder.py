"""Models of the user's own: a function makes each shard's torch module and names its ports."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pytest_ane.core.errors import BuildError, ManifestError
from pytest_ane.families.base import Conversion, Port
from pytest_ane.families.code import code_digests, import_code, said
from pytest_ane.manifest import Model
from pytest_ane.sources.identity import digests


class BuilderModel:
    """What a manifest's `builder = "module:function"` makes, as the build takes it."""

    def __init__(self, model: Model) -> None:
        assert model.builder is not None
        self.target = model.builder
        self._model = model
        self._module, _, self._name = model.builder.partition(":")

    description: dict[str, Any] = {}  # noqa: RUF012
    """Nothing: there is no layout to rebuild."""

    def identity(self, root: Path) -> dict[str, Any]:
        """What the shards depend on, as far as it can be known without running the builder.

        The digests of its module's source, of what the manifest says it depends on, and torch's
        version. Digests of large files are remembered in the cache folder `root`.
        """
        return {
            "builder": self.target,
            "code": code_digests(self._module),
            "depends": digests(self._depends(), root),
            "versions": {name: version(name) for name in ("numpy", "torch")},
        }

    def conversion(self, shard: str) -> Conversion:
        """Have a shard made.

        Raises:
            ManifestError: there is no such module or function, or the import fails.
            BuildError: the function fails, or gives something else than a sound `Conversion`.
        """
        subject = f"{self._model.name}:{shard}"
        function = self._function
        try:
            made = function(shard)
        # It is the user's code, which may raise anything, SystemExit included.
        except (Exception, SystemExit) as error:
            raise BuildError(
                f"{subject}: builder {self.target!r} failed: {said(error, self._module)}."
            ) from error
        if not isinstance(made, Conversion):
            raise BuildError(
                f"{subject}: builder {self.target!r} gave {_article(made)}; return a "
                "pytest_ane.families.Conversion."
            )
        if says := _unsound(made):
            raise BuildError(f"{subject}: the Conversion of builder {self.target!r} {says}.")
        return made

    @cached_property
    def _function(self) -> Callable[[str], Any]:
        key = f"{self._model.name}: builder {self.target!r}"
        found = getattr(import_code(self._module, key), self._name, None)
        if not callable(found):
            raise ManifestError(f"{key}: {self._module} has no function {self._name!r}.")
        function: Callable[[str], Any] = found
        return function

    def _depends(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for path in self._model.depends:
            if not path.exists():
                raise ManifestError(
                    f"{self._model.name}: depends names {path}, which is not there; check the path."
                )
            files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
            found |= {str(file): file for file in files}
        return found


def _unsound(made: Conversion) -> str | None:
    """What is wrong with a `Conversion`, as the rest of a sentence."""
    import torch

    if not isinstance(made.module, torch.nn.Module):
        return f"has {_article(made.module)} for a module; give a torch.nn.Module"
    if made.reference is not None and not callable(made.reference):
        return f"has {_article(made.reference)} for a reference; give a callable or None"
    ports = (*made.inputs, *made.outputs, *made.states)
    if not made.inputs or not made.outputs:
        return "names no inputs or no outputs; give a Port for each"
    for port in ports:
        if not isinstance(port, Port):
            return f"has {_article(port)} among its ports; give a pytest_ane.families.Port"
        if not all(d == "T" or (isinstance(d, int) and d > 0) for d in port.shape):
            return f"gives {port.name!r} the shape {port.shape}; use sizes and 'T'"
    names = [port.name for port in ports]
    if len(set(names)) < len(names):
        return f"names a port twice among {', '.join(names)}"
    return None


def _article(value: object) -> str:
    name = type(value).__name__
    return f"an {name}" if name[0] in "AEIOUaeiou" else f"a {name}"
