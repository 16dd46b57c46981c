"""Sessions: what is read from a page, and which outputs count as the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.sessions import Command, Written, difference, steps

PAGE = """\
```toml title="a/b.toml"
x = 1
```

```console
$ pytest -m gate      # all of them
1 passed
$ pytest-ane doctor
```
"""


def test_steps_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert steps(page) == [
        Written("a/b.toml", "x = 1\n"),
        Command("pytest -m gate", ("1 passed",)),
        Command("pytest-ane doctor"),
    ]


@pytest.mark.parametrize(
    "now", ["cosine 0.9712 of 6", "cosine  0.9715 of 6", "cosine 0.9712 of 6 in 9.99s"]
)
def test_alike(now: str) -> None:
    page = "cosine 0.9712 of 6" + (" in 1.20s" if now.endswith("s") else "")
    assert difference([page], [now]) == ""


@pytest.mark.parametrize(
    "now", ["cosine 0.9512 of 6", "cosine 0.9712 of 7", "KL 0.9712 of 6", "cosine 0.9712 of 6 3"]
)
def test_different(now: str) -> None:
    assert "it is\n  " + now in difference(["cosine 0.9712 of 6"], [now])
