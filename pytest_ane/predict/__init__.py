"""`MLModel.predict` on any machine: coremltools' native module, served by the executor.

Three ways to use it, none of which changes code that predicts:

    pytest -p pytest_ane.predict tests/

    import pytest_ane.predict
    pytest_ane.predict.install()

    pytest-ane run model.mlpackage --input x=in.npy --out y.npy

With `--ane-arithmetic=ane`, `install(arithmetic="ane")` or `run --arithmetic ane`, models whose
compute units have the ANE in them compute as an M4's does, where that is known; those of
`CPU_ONLY` and `CPU_AND_GPU` compute as typed.

coremltools talks to Core ML through one native module, `coremltools.libcoremlpython`, which its
wheels have on macOS only. `install` puts one of our own in its place and makes coremltools believe
that it runs on macOS; its Python classes stay as they are. On macOS it does nothing unless forced,
or asked for the arithmetic `ane`, which Core ML has not.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pytest_ane.mlprogram.arithmetic import SIMULATED, Arithmetic, RuleShares, read_arithmetic
from pytest_ane.mlprogram.errors import ExecutionError

__all__ = ["install", "installed", "rule_shares"]

_arithmetic: Arithmetic = "typed"
_rules: dict[int, RuleShares] = {}


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
    from pytest_ane.predict.hook import activate

    activate()
    return True


def arithmetic_on(compute_units: str) -> Arithmetic:
    """How a model computes that may run on these: as typed where the ANE is not among them."""
    return _arithmetic if compute_units in ("ALL", "CPU_AND_NE") else "typed"


def count_rules(model: int, shares: RuleShares) -> None:
    """Note by which rules a model has computed so far."""
    _rules[model] = shares


def rule_shares() -> RuleShares:
    """By which rules of the ANE all predictions of this process have been computed so far."""
    return sum(_rules.values(), RuleShares())


def answer() -> str:
    """Who answers, and how: `predictions by pytest-ane's CPU executor (not Core ML)`."""
    simulated = f" as {SIMULATED}" if _arithmetic == "ane" else ""
    return f"predictions by pytest-ane's CPU executor{simulated} (not Core ML)"


def installed() -> bool:
    """Whether the executor answers `MLModel.predict` in this process."""
    return bool(getattr(sys.modules.get("coremltools.libcoremlpython"), "PYTEST_ANE", False))


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Install before any conftest can import coremltools."""
    _install(early_config)


def pytest_configure(config: pytest.Config) -> None:
    """Install in workers too, which load no initial conftests."""
    _install(config)


def _install(config: pytest.Config) -> None:
    """Install with the arithmetic of `--ane-arithmetic`, or of `ane_arithmetic` in an ini file.

    Raises:
        pytest.UsageError: it names none, or both.
    """
    word = getattr(config.known_args_namespace, "ane_arithmetic", None) or _ini(config)
    if word and "," in word:
        raise pytest.UsageError(
            f"--ane-arithmetic={word}: MLModel.predict gives the numbers of one arithmetic; "
            "name 'typed' or 'ane'."
        )
    try:
        install(arithmetic=word or None)
    except ExecutionError as error:
        raise pytest.UsageError(f"--ane-arithmetic: {error}") from None


def _ini(config: pytest.Config) -> str:
    """What an ini file names; empty without the plugin that the option is of."""
    try:
        return str(config.getini("ane_arithmetic") or "")
    except ValueError:
        return ""


def pytest_report_header() -> str:
    """Say in the header which backend answers `MLModel.predict`."""
    return _backend_line()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The same at the end of a run without a header (`-q`), and rules of the ANE that computed."""
    if terminalreporter.verbosity < 0:
        terminalreporter.write_line(_backend_line())
    if _rules:
        from pytest_ane.mlprogram.text import printable
        from pytest_ane.report.arithmetic import rules_lines

        for line in rules_lines(rule_shares()):
            terminalreporter.write_line(f"coremltools: {printable(line)}")


def _backend_line() -> str:
    return f"coremltools: {answer()}" if installed() else "coremltools: predictions by Core ML"
