"""The menu: where it comes from, and what is wrong with it in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ane.manifest import Linear, Palettize
from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.tools._recommend_builds import DEFAULT, menu_of

FILE = """
["6-bit"]
method = "palettize"
nbits = 6

[int8]
method = "linear"
"""


def test_the_default_unless_something_else_is_said(tmp_path: Path) -> None:
    assert menu_of(None) is DEFAULT
    (tmp_path / "menu.toml").write_text(FILE)
    assert menu_of(tmp_path / "menu.toml") == {"6-bit": Palettize(nbits=6), "int8": Linear()}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a menu needs at least two settings to choose from"),
        ("[a]\nmethod = 'none'\n", "a menu needs at least two settings"),
        ("a = ", "not valid TOML"),
        ("a = 1\nb = 2", "'a': "),
        ("[a]\nmethod = 'palettize'\nnbits = 7\n[b]\nmethod = 'none'\n", "'a': palettize.nbits: "),
        ("[a]\nmethod = 'zip'\n[b]\nmethod = 'none'\n", "'a': .*'zip'"),
        (
            "[a]\nmethod = 'none'\nkeep = ['r*']\n[b]\nmethod = 'linear'\n",
            "'a' has keep or overrides; .* so leave them out",
        ),
    ],
)
def test_what_is_wrong_with_a_file(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "menu.toml").write_text(text)
    with pytest.raises(ManifestError, match=says) as caught:
        menu_of(tmp_path / "menu.toml")
    assert "menu.toml" in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="cannot be read: No such file"):
        menu_of(tmp_path / "menu.toml")
