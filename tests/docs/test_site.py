"""The site has every page, and every link leads somewhere, on GitHub too.

`zensical build --strict` checks links and anchors between the site's pages. It does not look at its
navigation, at pictures, or at links into the repository: these are checked here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, SITE, text_of, tokens, tomllib

NAMED = re.compile(r"`((?:\w+/)+\w+\.py)`")
OTHERS = {"conversion/gemma.py"}
"""Files of other projects, which a page cites."""
REPOSITORY = re.compile(r"https://github\.com/pytest-ane/pytest-ane/(?:blob|tree)/main/")


def listed(entry: object) -> Iterator[str]:
    """Paths of pages in a navigation entry: a path, a table `{title = entry}`, or a list."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        yield from (path for value in entry.values() for path in listed(value))
    elif isinstance(entry, list):
        yield from (path for value in entry for path in listed(value))


def targets(page: Path) -> Iterator[tuple[str, Path, str]]:
    """`(link, file, anchor)` of every link and picture that points into the repository."""
    for token in tokens(page):
        for child in token.children or ():
            link = str(child.attrGet("href") or child.attrGet("src") or "")
            inside, count = REPOSITORY.subn("", link)
            if not link or (":" in inside and not count):
                continue
            path, _, anchor = inside.partition("#")
            yield link, (ROOT if count else page.parent) / path if path else page, anchor


def anchors(page: Path) -> set[str]:
    """Anchors that GitHub gives a page's headings."""
    found, inline = set(), False
    for token in tokens(page):
        if inline:
            words = re.sub(r"[^\w\- ]", "", text_of(token).lower())
            found.add(words.replace(" ", "-"))
        inline = token.type == "heading_open"
    return found


def test_navigation_has_every_page_once() -> None:
    config = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    pages = list(listed(config["project"]["nav"]))
    assert sorted(pages) == sorted(page.relative_to(ROOT / "docs").as_posix() for page in SITE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link, file, anchor in targets(page):
        assert file.exists(), f"{page}: {link}: no such file"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{page}: {link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_modules_exist(page: Path) -> None:
    named = set(NAMED.findall(page.read_text(encoding="utf-8"))) - OTHERS
    roots = (ROOT, ROOT / "pytest_ane")
    assert [name for name in named if not any((root / name).is_file() for root in roots)] == []
