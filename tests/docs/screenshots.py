"""The pictures in the docs: `make gate-all docs`, then `python -m tests.docs.screenshots`.

Terminals at 60, 80 and 120 columns of a green and a red run; the page at 1,400 and 420 pixels,
light and dark, of `make gate-all` and of the red run; the documentation's home and a how-to.
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Browser, sync_playwright
from rich.console import Console
from rich.text import Text

from pytest_ane.report.formats import as_html
from pytest_ane.report.run import read_run
from tests.docs.pages import ROOT

ASSETS, SITE = ROOT / "docs" / "assets", ROOT / "build" / "docs"
ALL = ROOT / "build" / "gate-all.jsonl"
RUNS = {"green": "L01-L02", "red": "L11-L14"}
COLUMNS, PIXELS, SCHEMES = (60, 80, 120), (1400, 420), ("light", "dark")
_SVG = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">
<style>text {{ font: {char_height}px/1 'DejaVu Sans Mono', monospace; white-space: pre }}
.{unique_id}-title {{ font-size: 15px; text-anchor: middle }} {styles}</style>
<defs>{lines}</defs>{chrome}
<g transform="translate({terminal_x}, {terminal_y})">{backgrounds}<g>{matrix}</g></g></svg>"""
"""As rich's own, without its fonts, which are on another host."""


def printed(command: list[str], folder: Path, columns: int) -> str:
    """What a command prints to a terminal of so many columns, with its colours."""
    ours, theirs = pty.openpty()
    known = {"COLUMNS": str(columns), "TERM": "xterm-256color"}
    done = subprocess.Popen(
        command, cwd=folder, env=os.environ | known, stdout=theirs, stderr=subprocess.DEVNULL
    )
    os.close(theirs)
    parts = []
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux says so that nobody writes any more.
            break
        parts.append(part)
    done.wait()
    return b"".join(parts).decode().replace("\r\n", "\n")


def terminal(text: str, columns: int, title: str) -> str:
    """A page with a picture of it."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=columns, file=nowhere)
        console.print(Text.from_ansi(text.strip()), soft_wrap=True)
    drawn = console.export_svg(title=title, code_format=_SVG)
    return f"<!DOCTYPE html><body style='margin: 0'>{drawn}"


def take(browser: Browser, address: str, name: str, *, width: int, height: int = 0,
         scheme: str = "light") -> None:  # fmt: skip
    """A picture of a page, whole where no height is given."""
    size = {"width": width, "height": height or 100}
    page = browser.new_page(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(address)
    page.wait_for_timeout(1500)
    page.screenshot(path=ASSETS / f"{name}.png", full_page=not height)
    page.close()


def main() -> None:
    """Take all of them with Debian's Chromium."""
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        place = Path(folder)
        subprocess.run([sys.executable, "-m", "pytest_ane.cli", "init", "--no-gates"], cwd=place,
                       check=True, stdout=subprocess.DEVNULL)  # fmt: skip
        for name, shards in RUNS.items():
            if name == "red":  # In three bits a block is no longer itself.
                manifest = place / "shards.toml"
                manifest.write_text(manifest.read_text().replace("nbits = 8", "nbits = 3"))
            shown = f"pytest --ane-shards={shards} -m gate"
            words = [*shown.split()[1:], "-q", "--tb=no", "-rN", f"--ane-report={name}.html"]
            for columns in COLUMNS:
                text = printed([sys.executable, "-m", "pytest", *words], place, columns)
                picture = place / "terminal.html"
                picture.write_text(terminal(text, columns, shown), encoding="utf-8")
                width = round(12.2 * columns) + 40
                take(browser, picture.as_uri(), f"terminal-{name}-{columns}", width=width)
        (place / "green.html").write_text(as_html(read_run(ALL)), encoding="utf-8")
        for name, width, scheme in product(RUNS, PIXELS, SCHEMES):
            take(browser, (place / f"{name}.html").as_uri(), f"page-{name}-{width}-{scheme}",
                 width=width, height=900, scheme=scheme)  # fmt: skip
        stack = f"{(place / 'green.html').as_uri()}#stack-1"
        take(browser, stack, "page-stack", width=1400, height=900, scheme="dark")
        for name, path in {"home": "index.html", "how-to": "how-to/try.html"}.items():
            take(browser, (SITE / path).as_uri(), f"docs-{name}", width=1400, height=900)
        browser.close()


if __name__ == "__main__":
    main()
