"""A change of each kind touches few files; the table is printed in every run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.changes import Change, changes, named, table

KINDS = {change.what: change for change in changes()}


@pytest.mark.parametrize("what", KINDS)
def test_a_change_touches_few_files(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print("\n" + "\n".join(table([KINDS[what]])))
    change = KINDS[what]
    assert len(change.written) + len(change.edited) <= change.most


def test_a_list_of_all_gates_is_found() -> None:
    assert "pytest_ane/gates/registry.py" in KINDS["a kind of gate"].edited


def test_files_that_no_member_has_are_refused() -> None:
    with pytest.raises(LookupError, match="no file pytest_ane/none/"):
        _ = Change("a thing", {"x": ("x",)}, ("pytest_ane/none/{}.py",), 1).written


def test_words_of_code_and_not_of_docstrings(tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    file.write_text('"""fidelity"""\nfrom a.placement import b\nx.policy["min-cosine"]\n')
    assert {"placement", "b", "policy", "min-cosine", "min_cosine"} <= named(file)
    assert "fidelity" not in named(file)
