"""A native module of our own in coremltools, for a while."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from pytest_ane.build.coremltools_quiet import import_coremltools
from pytest_ane.predict import hook

_ABSENT: Any = object()


@contextmanager
def in_place(native: ModuleType, macos: tuple[int, ...] | None) -> Iterator[None]:
    """Let coremltools' classes talk to `native`, and afterwards to what it was before.

    Args:
        native: in place of `coremltools.libcoremlpython`.
        macos: the version coremltools is told it runs on; None leaves that as it is.
    """
    coremltools = import_coremltools()
    before = sys.modules.get(hook.NATIVE)
    attribute = getattr(coremltools, "libcoremlpython", _ABSENT)
    new = hook.proxies(native)
    old = {name: getattr(before, name, None) for name in new}
    if macos is not None:
        new |= hook.on_macos(macos)
        utils, deps = coremltools.models.utils, coremltools._deps
        old |= {
            "_IS_MACOS": deps._IS_MACOS,
            "_is_macos": utils._is_macos,
            "_macos_version": utils._macos_version,
        }
    sys.modules[hook.NATIVE] = coremltools.libcoremlpython = native
    _replace(old, new)
    try:
        yield
    finally:
        # First, so that `native` is none of coremltools' modules and keeps its own names.
        _restore(coremltools, before, attribute)
        # By value: a module that was imported meanwhile took the new ones.
        _replace(new, old)


def _replace(old: dict[str, Any], new: dict[str, Any]) -> None:
    for module in hook.modules():
        for name, value in new.items():
            if vars(module).get(name, _ABSENT) is old[name]:
                setattr(module, name, value)


def _restore(coremltools: Any, before: ModuleType | None, attribute: Any) -> None:
    if before is None:
        sys.modules.pop(hook.NATIVE, None)
    else:
        sys.modules[hook.NATIVE] = before
    if attribute is _ABSENT:
        del coremltools.libcoremlpython
    else:
        coremltools.libcoremlpython = attribute
