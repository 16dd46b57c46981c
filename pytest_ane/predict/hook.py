"""A native module of our own in coremltools: for good, or for a while."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

NATIVE = "coremltools.libcoremlpython"
MACOS = (26, 0)
"""The system coremltools is told it runs on: one that every opset of coremltools 9 runs on."""


def activate() -> None:
    """Register our native module; patch coremltools now, or as soon as it is imported."""
    if getattr(sys.modules.get(NATIVE), "PYTEST_ANE", False):
        return
    from pytest_ane.predict import native

    sys.modules[NATIVE] = native
    if "coremltools.models" in sys.modules:
        patch()
    else:
        sys.meta_path.insert(0, _Finder())


def patch() -> None:
    """Set what coremltools found out about this machine, in every module that took a copy."""
    from pytest_ane.predict import native

    names = proxies(native) | on_macos(MACOS)
    for module in modules():
        for name, value in names.items():
            if name in vars(module):
                setattr(module, name, value)
    sys.modules["coremltools"].libcoremlpython = native  # type: ignore[attr-defined]


def proxies(native: ModuleType) -> dict[str, Any]:
    """The classes that coremltools' modules take from the native one."""
    return {name: value for name, value in vars(native).items() if name.endswith("Proxy")}


def on_macos(version: tuple[int, ...]) -> dict[str, Any]:
    """What coremltools' modules would find out about the system on macOS."""
    return {
        "_IS_MACOS": True,
        "_is_macos": lambda: True,
        "_macos_version": lambda: version,
    }


def modules() -> Sequence[ModuleType]:
    """Those of coremltools that are imported."""
    return [m for name, m in list(sys.modules.items()) if name.split(".")[0] == "coremltools"]


class _Finder(MetaPathFinder):
    """Finds coremltools as ever, and patches it once its import is complete."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The usual specification; its loader patches after the import."""
        if fullname != "coremltools":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                patch()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_ABSENT: Any = object()


@contextmanager
def in_place(native: ModuleType, macos: tuple[int, ...] | None) -> Iterator[None]:
    """Let coremltools' classes talk to `native`, and afterwards to what it was before.

    Args:
        native: in place of `coremltools.libcoremlpython`.
        macos: the version coremltools is told it runs on; None leaves that as it is.
    """
    from pytest_ane.make.coremltools_quiet import import_coremltools

    coremltools = import_coremltools()
    before = sys.modules.get(NATIVE)
    attribute = getattr(coremltools, "libcoremlpython", _ABSENT)
    new = proxies(native)
    old = {name: getattr(before, name, None) for name in new}
    if macos is not None:
        new |= on_macos(macos)
        utils, deps = coremltools.models.utils, coremltools._deps
        old |= {
            "_IS_MACOS": deps._IS_MACOS,
            "_is_macos": utils._is_macos,
            "_macos_version": utils._macos_version,
        }
    sys.modules[NATIVE] = coremltools.libcoremlpython = native
    _replace(old, new)
    try:
        yield
    finally:
        # First, so that `native` is none of coremltools' modules and keeps its own names.
        _restore(coremltools, before, attribute)
        # By value: a module that was imported meanwhile took the new ones.
        _replace(new, old)


def _replace(old: dict[str, Any], new: dict[str, Any]) -> None:
    for module in modules():
        for name, value in new.items():
            if vars(module).get(name, _ABSENT) is old[name]:
                setattr(module, name, value)


def _restore(coremltools: Any, before: ModuleType | None, attribute: Any) -> None:
    if before is None:
        sys.modules.pop(NATIVE, None)
    else:
        sys.modules[NATIVE] = before
    if attribute is _ABSENT:
        del coremltools.libcoremlpython
    else:
        coremltools.libcoremlpython = attribute
