"""A run's page in a browser: its size, when it can be used, and what a keystroke and a click take.

    python -m benchmarks.report_page [run.json]

Without a file the run is that of the tests: 240 seeded tiny shards through five gates. It is held
against the same page with every shard's details in it as plain HTML, in `template` elements.
Times are medians of so many visits, each with a browser's empty cache, and end when the browser has
laid out and painted what changed.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from pytest_ane.report.formats import as_html
from pytest_ane.report.run import Run, read_run
from tests.report.html.conftest import browser_path
from tests.report.html.recipes import RECIPES, make

_PACKED = re.compile(r'(<script type="application/json" id="packed">)(.*?)(</script>)', re.DOTALL)
_OPENED = """async () => {
  const start = performance.now();
  const detail = document.getElementById("detail");
  const opened = new Promise((done) => {
    new MutationObserver(done).observe(detail, { childList: true });
  });
  document.querySelector("#shards tbody a").click();
  await opened;
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - start;
}"""
_TIMED = """async () => {
  const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const timed = async (act) => {
    const start = performance.now();
    act();
    await painted();
    return performance.now() - start;
  };
  const field = document.getElementById("filter");
  const type = (text) => () => { field.value = text; field.dispatchEvent(new Event("input")); };
  const head = document.querySelectorAll("#shards thead button")[1];
  return {
    "can be used": Number(document.documentElement.dataset.ready),
    "a keystroke in the filter": await timed(type("1")),
    "all rows again": await timed(type("")),
    "sorted by a gate": await timed(() => head.click()),
  };
}"""


def _plain(html: str) -> str:
    """The page with details as HTML; the script that unpacks them finds none packed."""
    found = _PACKED.search(html)
    assert found is not None
    templates = (
        f'<template data-of="{i}">{gzip.decompress(base64.b64decode(text)).decode()}</template>'
        for i, text in enumerate(json.loads(found[2]).values())
    )
    return _PACKED.sub(lambda m: f"{''.join(templates)}{m[1]}{{}}{m[3]}", html, count=1)


def _visited(browser: Browser, file: Path, visits: int, *, opens: bool) -> dict[str, float]:
    """Milliseconds by what took them."""
    rows: list[dict[str, float]] = []
    for _ in range(visits):
        context = browser.new_context(viewport={"width": 1300, "height": 1000})
        tab = context.new_page()
        tab.goto(file.as_uri())
        tab.locator(":root[data-ready]").wait_for(state="attached")
        row = tab.evaluate(_TIMED)
        if opens:
            row["a shard's details"] = tab.evaluate(_OPENED)
        rows.append(row)
        context.close()
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def _run(folder: Path) -> Run:
    """The run of many shards, made in a folder."""

    def ask(arguments: Sequence[str], cwd: Path) -> None:
        subprocess.run([sys.executable, "-m", "pytest", "-q", *arguments], cwd=cwd, check=False)

    recipe = next(recipe for recipe in RECIPES if recipe.name == "many")
    return read_run(make(recipe, folder / "reports" / recipe.name, ask))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", type=Path, help="JSON of --ane-report")
    parser.add_argument("--visits", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        html = as_html(read_run(options.run) if options.run else _run(folder))
        pages = {"packed": folder / "packed.html", "plain": folder / "plain.html"}
        pages["packed"].write_text(html)
        pages["plain"].write_text(_plain(html))
        browser = playwright.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        rows = {
            name: {"MB": file.stat().st_size / 1e6}
            | _visited(browser, file, options.visits, opens=name == "packed")
            for name, file in pages.items()
        }
        browser.close()
    print(f"{'':26}{'packed':>9}{'plain':>9}{'plain / packed':>16}")
    for what, value in rows["packed"].items():
        other = rows["plain"].get(what)
        unit = "" if what == "MB" else " ms"
        told = f"{other:9.2f}{other / value:16.2f}" if other is not None else ""
        print(f"{what + unit:26}{value:9.2f}{told}")


if __name__ == "__main__":
    main()
