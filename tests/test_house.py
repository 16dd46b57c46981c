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
