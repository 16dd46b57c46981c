"""The house keeps its measure: rooms with doors, and no more of them."""

from __future__ import annotations

from tests.house import Import, imports, modules, past_a_door, table


def test_no_import_goes_past_a_door() -> None:
    assert past_a_door() == []


def test_there_are_sixteen_rooms_at_most() -> None:
    assert len({name.partition(".")[0] for name in modules()} - {""}) <= 16
    assert any("imports past a door" in line for line in table())


def test_inner_modules_and_private_names_are_found() -> None:
    assert "mlprogram.errors" in modules()
    assert Import("cli.output", "mlprogram.errors") in imports()
    assert Import("gates.base", "make._kmeans").rooms == ("gates", "make")


SHARED = {
    "mlprogram.arrays", "mlprogram.errors", "models.sources", "models.sources.base",
    "models.sources.files",
}  # fmt: skip
"""What references and converted forms may both import: numbers, errors, and the bytes of files."""


def test_two_authors_share_no_code() -> None:
    def used_by(folder: str) -> set[str]:
        found = {it.used for it in imports() if it.user.startswith(f"models.{folder}")}
        return {name for name in found if not name.startswith(f"models.{folder}")}

    families = {name for name in used_by("families") if not name.startswith("models.reference")}
    assert used_by("reference") & families <= SHARED
