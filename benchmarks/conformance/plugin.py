"""A pytest plugin that records what coremltools' tests compare, beside whether they pass.

coremltools' tests allow fp16 programs an absolute error of 0.5, so a pass says little; for each
item this notes whether every array compared after a prediction is within 2e-3 absolute + 2e-3
relative. Environment: `ANE_CONFORMANCE_OUT` names the folder for records, `ANE_CONFORMANCE_FACTOR`
(`1.05` or `0`) multiplies every predicted number (the controls), `ANE_CONFORMANCE_EVERY` runs every
n-th item, `ANE_CONFORMANCE_ONLY` those whose id holds a text.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

TOLERANCE = 2e-3
_FREEZE_EVERY = 50


class Recorder:
    """One item's predictions and comparisons, and a file of all items."""

    def __init__(self, folder: Path) -> None:
        self.factor = float(os.environ.get("ANE_CONFORMANCE_FACTOR") or 1)
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"{os.getpid()}.jsonl").open("a", encoding="utf-8")
        self._count = 0
        self.start()

    def start(self) -> None:
        """A new item."""
        self.predicted, self.half = False, False
        self.compared: list[bool] = []
        self.ops: set[str] = set()
        self.opset = ""
        self._count += 1
        if self._count % _FREEZE_EVERY == 0:
            # A conversion ends in gc.collect(), which walks all objects there are.
            gc.collect()
            gc.freeze()

    def ran(self, model: Any) -> None:
        """Note a prediction: what its program consists of."""
        self.predicted = True
        for part in getattr(model, "parts", (model,)):
            operations = list(part.main.walk())
            self.opset = part.main.opset
            self.ops |= {op.op for op in operations if op.op != "const"}
            self.half |= any("fp16" in str(out.type) for op in operations for out in op.outputs)

    def compare(self, actual: Any, expected: Any) -> None:
        """Note whether two arrays are close."""
        try:
            a, b = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
            close = np.isclose(a, b, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
            self.compared.append(bool(np.all(close)))
        except (TypeError, ValueError):
            self.compared.append(False)

    def finish(self, item: str, outcome: str, why: str) -> None:
        """Write an item's record."""
        record = {
            "item": item,
            "outcome": outcome,
            "predicted": self.predicted,
            "compared": len(self.compared),
            "close": bool(self.compared) and all(self.compared),
            "half": self.half,
            "opset": self.opset,
            "ops": sorted(self.ops),
            "why": why,
        }
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()


_RECORDER = pytest.StashKey[Recorder]()
_RECORDERS: list[Recorder] = []
"""The same for hooks that are given no configuration."""


def pytest_configure(config: pytest.Config) -> None:
    """Wrap numpy's comparisons and our native module's predictions, where items are run."""
    if getattr(config.option, "numprocesses", None):
        return
    recorder = config.stash[_RECORDER] = Recorder(Path(os.environ["ANE_CONFORMANCE_OUT"]))
    _RECORDERS.append(recorder)
    if find_spec("torchvision") is None:
        # Files that need it in a few items only would be lost as a whole.
        sys.modules["torchvision"] = ModuleType("torchvision")
    for name in ("assert_allclose", "assert_array_equal", "assert_almost_equal"):
        setattr(np.testing, name, _watched(getattr(np.testing, name), recorder))
    _watch_predictions(recorder)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the part of the items that the environment asks for."""
    only = os.environ.get("ANE_CONFORMANCE_ONLY", "")
    step = int(os.environ.get("ANE_CONFORMANCE_EVERY") or 1)
    items[:] = [item for item in items if only in item.nodeid][::step]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Record a file that could not be collected as one failed item."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0"
    if report.failed and worker and _RECORDERS:
        _RECORDERS[0].start()
        lines = [line for line in str(report.longrepr).splitlines() if line.startswith("E ")]
        _RECORDERS[0].finish(report.nodeid, "failed", " ".join(" ".join(lines).split())[:300])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin an item's record."""
    if _RECORDER in item.config.stash:
        item.config.stash[_RECORDER].start()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the suite's few asynchronous tests; they need no more than a loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """End an item's record when its call, or its skipping, is reported."""
    outcome = yield
    report = outcome.get_result()
    if _RECORDER not in item.config.stash:
        return
    if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
        why = " ".join(str(call.excinfo.value).split())[:300] if call.excinfo else ""
        item.config.stash[_RECORDER].finish(item.nodeid, report.outcome, why)


def _watched(original: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    def wrapper(actual: Any, desired: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.predicted:
            recorder.compare(actual, desired)
        return original(actual, desired, *args, **kwargs)

    return wrapper


def _watch_predictions(recorder: Recorder) -> None:
    from pytest_ane.mac import _native as native

    original = native._MLModelProxy.predict

    def predict(self: Any, *args: Any) -> Any:
        outputs = original(self, *args)
        recorder.ran(self._session.model)
        if recorder.factor != 1:
            return {name: _scaled(value, recorder.factor) for name, value in outputs.items()}
        return outputs

    native._MLModelProxy.predict = predict  # type: ignore[assignment,method-assign]


def _scaled(value: Any, factor: float) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiu":
        return (value * factor).astype(value.dtype)
    return value
