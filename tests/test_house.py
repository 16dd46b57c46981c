"""The house keeps its measure: rooms with doors, and no more of them."""

from __future__ import annotations

import grimp

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
}  # fmt: skip
"""What references and converted forms may both import: numbers, errors, and the bytes of files."""


def test_two_authors_share_no_code() -> None:
    graph = grimp.build_graph("pytest_ane")

    def used_by(room: str) -> set[str]:
        inside = {room, *graph.find_descendants(room)}
        used = {it for each in inside for it in graph.find_modules_directly_imported_by(each)}
        return {it.removeprefix("pytest_ane.") for it in used - inside}

    references, families = map(
        used_by, ("pytest_ane.models.reference", "pytest_ane.models.families")
    )
    assert {"models.sources", "mlprogram.arrays"} <= references & families <= SHARED
