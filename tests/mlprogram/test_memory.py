"""Memory of the machine and of its container, and sizes as texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ane.mlprogram.memory import available_memory, bytes_text, free_memory


def test_a_container_s_limit_counts(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    machine = available_memory(tmp_path)
    assert machine > 0
    limit.write_text("max\n")
    assert available_memory(tmp_path) == machine
    limit.write_text("1000000\n")
    assert available_memory(tmp_path) == 1_000_000


def test_what_is_taken_is_not_free(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  2000 kB\nMemAvailable:     900 kB\n")
    (tmp_path / "memory.max").write_text("1000000\n")
    assert free_memory(tmp_path, meminfo) == 900 * 1024
    (tmp_path / "memory.stat").write_text("file 5\nanon 400000\n")
    assert free_memory(tmp_path, meminfo) == 600_000
    (tmp_path / "memory.stat").write_text("anon 4000000\n")
    assert free_memory(tmp_path, meminfo) == 0


def test_where_the_system_does_not_tell_all_is_free(tmp_path: Path) -> None:
    assert free_memory(tmp_path, tmp_path / "none") == available_memory(tmp_path)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1_500_000, "1.5 MB"), (8 * 10**9, "8 GB"),
     (107_374_182_400, "107 GB"), (324 * 10**12, "324,000 GB"), (10**400, "inf GB")],
)  # fmt: skip
def test_bytes_have_three_digits(size: int, text: str) -> None:
    assert bytes_text(size) == text
