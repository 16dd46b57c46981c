"""Progress of builds: the line, and when it is shown and erased."""

from __future__ import annotations

import pytest

from pytest_ane.project.progress import Progress, words


@pytest.mark.parametrize(
    ("done", "size", "seconds", "text"),
    [
        (0, 0, 0.0, "m:L00 (1 of 34)"),
        (0, 0, 99.0, "m:L00 (1 of 34)"),
        (1, 3_200_000, 0.5, "m:L00 (2 of 34, 3.2 MB done)"),
        (2, 6_400_000, 5.0, "m:L00 (3 of 34, 6.4 MB done, about 80 s left)"),
        (33, 0, 33.0, "m:L00 (34 of 34, about 1 s left)"),
        (34, 0, 33.0, "m:L00 (34 of 34)"),
    ],
)
def test_words(done: int, size: int, seconds: float, text: str) -> None:
    assert words("m:L00", done=done, total=34, size=size, seconds=seconds) == text


def test_a_line_is_shown_while_a_shard_is_built_and_then_erased() -> None:
    shown: list[str] = []
    progress = Progress(2, shown.append)
    with progress.building("m:L00") as built:
        built(2_000_000)
    with pytest.raises(OSError, match="full"), progress.building("m:L01"):
        raise OSError("full")
    with progress.showing("waiting"):
        pass
    assert shown == ["m:L00 (1 of 2)", "", "m:L01 (2 of 2, 2.0 MB done)", "", "waiting", ""]
