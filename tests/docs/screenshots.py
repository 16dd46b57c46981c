"""The pictures of the report in the docs: `python -m tests.docs.screenshots RED.jsonl ALL.jsonl`.

RED.jsonl is of `pytest --ane-shards=L11 -m gate --ane-min-cosine=0.9989`, ALL.jsonl of
`pytest --ane-shards=all -m gate`, both with `--ane-report`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Page, sync_playwright

from pytest_ane.report.formats import as_html
from pytest_ane.report.run import read_run
from tests.docs.pages import ROOT

ASSETS = ROOT / "docs" / "assets"


def main(red: Path, everything: Path) -> None:
    """Take them with Debian's Chromium."""
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        size = {"width": 1400, "height": 900}
        for name, run, fragment, scheme in (
            ("red", red, "#of=smollm2%3AL11", "light"),
            ("stack", everything, "#stack-1", "dark"),
        ):
            file = Path(folder) / f"{name}.html"
            file.write_text(as_html(read_run(run)), encoding="utf-8")
            page: Page = browser.new_page(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
            page.goto(file.as_uri() + fragment)
            page.wait_for_timeout(3000)
            page.screenshot(path=ASSETS / f"report-{name}.png")
        browser.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
