"""`MLModel.predict` on any machine: coremltools' native module, served by the executor.

    pytest -p pytest_ane.mac.predict tests/
    predict.install()                                # or in Python
    pytest-ane run model.mlpackage --input x=in.npy --out y.npy

With the arithmetic `ane`, models whose compute units have the ANE in them compute as an M4's does.
`install` puts `_native` in place of coremltools' native module and makes coremltools believe that
it runs on macOS. There it does nothing unless forced, or asked for the arithmetic `ane`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import pytest

from pytest_ane.mlprogram.arithmetic import Arithmetic, RuleShares, read_arithmetic
from pytest_ane.mlprogram.errors import ExecutionError

__all__ = ["install", "installed", "rule_shares"]

NATIVE = "coremltools.libcoremlpython"
MACOS = (26, 0)
"""The system coremltools is told it runs on: one that every opset of coremltools 9 runs on."""
_arithmetic: Arithmetic = "typed"


def install(*, force: bool = False, arithmetic: str | None = None) -> bool:
    """Serve predictions from the executor in this process; whether it does so now.

    Args:
        force: also on macOS, in place of Core ML.
        arithmetic: of models that are loaded from now on, `typed` or `ane`; None leaves it as it
            is, at first `typed`. With `ane` the executor answers on macOS, too.

    Raises:
        ExecutionError: another arithmetic, such as that of M1 to M3 (h13 to h15).
    """
    global _arithmetic
    if arithmetic is not None:
        try:
            _arithmetic = read_arithmetic(arithmetic)
        except ValueError as error:
            raise ExecutionError(f"arithmetic {arithmetic!r}: {error}.") from None
    if sys.platform == "darwin" and not force and _arithmetic == "typed":
        return False
    activate(_arithmetic)
    return True


def rule_shares() -> RuleShares:
    """By which rules of the ANE all predictions of this process have been computed so far."""
    from pytest_ane.mac import _native

    return sum(_native.settings.rules.values(), RuleShares())


def installed() -> bool:
    """Whether the executor answers `MLModel.predict` in this process."""
    return bool(getattr(sys.modules.get(NATIVE), "PYTEST_ANE", False))


def activate(arithmetic: Arithmetic) -> None:
    """Put our native module in place now, or as soon as coremltools is imported."""
    from pytest_ane.mac import _native

    _native.settings.arithmetic = arithmetic
    if installed():
        return
    if "coremltools.models" in sys.modules:
        _put(_native, MACOS)
    else:
        sys.modules[NATIVE] = _native
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds coremltools as ever, and patches it once its import is complete."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "coremltools":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _put(sys.modules[NATIVE], MACOS)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_ABSENT: Any = object()


@contextmanager
def in_place(native: ModuleType, macos: tuple[int, ...] | None) -> Iterator[None]:
    """Let coremltools' classes talk to `native` meanwhile, told this macOS version unless None."""
    undo = _put(native, macos)
    try:
        yield
    finally:
        undo()


def _put(native: ModuleType, macos: tuple[int, ...] | None) -> Callable[[], None]:
    """Put a module in place, as of `in_place`; what puts everything back is returned."""
    from pytest_ane.make.coremltools_quiet import import_coremltools

    coremltools = import_coremltools()
    before, attribute = sys.modules.get(NATIVE), vars(coremltools).get("libcoremlpython", _ABSENT)
    # Modules have copies of the classes, and of what coremltools found out about the system.
    new = {name: value for name, value in vars(native).items() if name.endswith("Proxy")}
    old = {name: getattr(before, name, None) for name in new}
    if macos is not None:
        new |= {"_IS_MACOS": True, "_is_macos": lambda: True, "_macos_version": lambda: macos}
        utils, deps = coremltools.models.utils, coremltools._deps
        old |= {
            "_IS_MACOS": deps._IS_MACOS,
            "_is_macos": utils._is_macos,
            "_macos_version": utils._macos_version,
        }
    sys.modules[NATIVE] = coremltools.libcoremlpython = native
    _replace(old, new)

    def undo() -> None:
        # First, so that `native` is none of coremltools' modules and keeps its own names.
        if before is None:
            del sys.modules[NATIVE]
        else:
            sys.modules[NATIVE] = before
        if attribute is _ABSENT:
            del coremltools.libcoremlpython
        else:
            coremltools.libcoremlpython = attribute
        # By value: a module that was imported meanwhile took the new ones.
        _replace(new, old)

    return undo


def _replace(old: dict[str, Any], new: dict[str, Any]) -> None:
    modules = list(sys.modules.items())
    for module in (m for name, m in modules if name.split(".")[0] == "coremltools"):
        for name, value in new.items():
            if vars(module).get(name, _ABSENT) is old[name]:
                setattr(module, name, value)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Install before any conftest can import coremltools."""
    pytest_configure(early_config)


def pytest_configure(config: pytest.Config) -> None:
    """Install with the arithmetic of `--ane-arithmetic` or its ini twin; in workers too."""
    word = getattr(config.known_args_namespace, "ane_arithmetic", None)
    with suppress(ValueError):  # Without the plugin that the option is of.
        word = word or str(config.getini("ane_arithmetic") or "")
    if word and "," in word:
        raise pytest.UsageError(
            f"--ane-arithmetic={word}: MLModel.predict gives the numbers of one arithmetic; "
            "name 'typed' or 'ane'."
        )
    try:
        install(arithmetic=word or None)
    except ExecutionError as error:
        raise pytest.UsageError(f"--ane-arithmetic: {error}") from None


def pytest_report_header() -> str:
    """Say in the header which backend answers `MLModel.predict`."""
    if not installed():
        return "coremltools: predictions by Core ML"
    from pytest_ane.mac import _native

    return f"coremltools: {_native.settings}"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The same at the end of a run without a header (`-q`), and rules of the ANE that computed."""
    if terminalreporter.verbosity < 0:
        terminalreporter.write_line(pytest_report_header())
    if installed() and (shares := rule_shares()).operations:
        from pytest_ane.mlprogram.text import printable
        from pytest_ane.report.arithmetic import rules_lines

        for line in rules_lines(shares):
            terminalreporter.write_line(f"coremltools: {printable(line)}")
