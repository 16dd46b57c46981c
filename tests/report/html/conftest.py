"""Reports of real runs, opened from disk in a real browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock

from pytest_ane.report.run import Run, read_run
from tests.forked import Forge
from tests.gate_all import gate_all
from tests.report.html.recipes import RECIPES, Recipe, make

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_WHOLE = "smollm2"
_MISSING = "no browser is on PATH; install one, on Debian with `apt-get install chromium`."


_DRAWN = ("many", "zaya", _WHOLE, "bench", "hazards", "spoilt")
"""A change opens one or two of these, each with all its tests, and always the others."""


def _marks(name: str) -> list[pytest.MarkDecorator]:
    drawn = [pytest.mark.drawn(_DRAWN.index(name))] if name in _DRAWN else []
    return [pytest.mark.heavy, *drawn]


@dataclass(frozen=True)
class Report:
    """A run's page, and the run."""

    name: str
    html: Path
    run: Run


def browser_path() -> str | None:
    """The first browser on PATH."""
    return next(filter(None, map(shutil.which, _BROWSERS)), None)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium; its driver leaves an event loop in the thread, so it ends with this folder."""
    from playwright.sync_api import sync_playwright

    path = browser_path()
    if path is None:
        (pytest.fail if os.environ.get("PYTEST_ANE_TESTS_CI") else pytest.skip)(_MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(
    scope="package",
    params=[
        *(pytest.param(recipe, id=recipe.name, marks=_marks(recipe.name)) for recipe in RECIPES),
        pytest.param(None, id=_WHOLE, marks=_marks(_WHOLE)),
    ],
)
def report(request: pytest.FixtureRequest, forge: Forge, shared_path: Path) -> Report:
    """The report of each recipe, and of the whole default model; made once."""
    if request.param is None:
        return Report(_WHOLE, gate_all(forge, ".html"), read_run(gate_all(forge, ".jsonl")))
    return made(request.param, forge, shared_path)


def made(recipe: Recipe, forge: Forge, shared: Path) -> Report:
    """A recipe's report; one worker makes it, and others wait."""
    folder = shared / "reports" / recipe.name
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "report.jsonl"

    def ask(arguments: Sequence[str], cwd: Path) -> None:
        result = forge.run(["pytest", "-p", "no:cacheprovider", *arguments], cwd)
        assert result.returncode in (0, 1), result.stdout

    with FileLock(folder / "lock"):
        if not file.exists():
            make(recipe, folder, ask)
    return Report(recipe.name, folder / "report.html", read_run(file))


@pytest.fixture
def tab(browser: Browser) -> Iterator[Page]:
    """A page of its own, that asks for its file alone and has nothing to complain of."""
    context = browser.new_context(viewport={"width": 1300, "height": 1000}, color_scheme="light")
    page = context.new_page()
    page.set_default_timeout(10_000)
    heard: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        heard.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("request", lambda request: heard.append(request.url))
    page.on("console", lambda said: heard.append(f"{said.type}: {said.text}"))
    page.on("dialog", dismiss)
    page.on("pageerror", lambda error: heard.append(f"error: {error}"))
    yield page
    opened = page.url.partition("#")[0]
    context.close()
    complaints = [h for h in heard if h != opened and not h.startswith(("log: ", "info: "))]
    assert not complaints
