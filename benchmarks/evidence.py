"""What verifying the evidence of 240 unchanged shards costs, beside hashing them all.

    python benchmarks/evidence.py --megabytes 100

The packages are sparse files: their bytes are read and hashed, but take no space.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from pytest_ane.gates.fidelity import Comparison, Fidelity
from pytest_ane.mlprogram.digests import remembered, tree_files
from pytest_ane.records.record import Record
from pytest_ane.records.store import Store

_WEIGHTS = "Data/com.apple.CoreML/weights/weight.bin"
_POSITIONS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=240)
    parser.add_argument("--megabytes", type=int, default=10, help="of one shard's weights")
    asked = parser.parse_args()
    with TemporaryDirectory() as name:
        root = Path(name)
        packages = [_package(root / f"L{i:03}", asked.megabytes) for i in range(asked.shards)]
        time.sleep(2.1)  # What has just been written is not remembered.
        plain, hashed = _timed(lambda: [tree_files(one) for one in packages])
        first, _ = _timed(partial(_remembering, root / "cache", packages))
        again, known = _timed(partial(_remembering, root / "cache", packages))
        if known != hashed:
            raise SystemExit("The remembered digests are others.")
        store = Store(root / "evidence")
        subjects = [f"m:{one.name}" for one in packages]
        size = [
            len(store.write(_record(*both)).read_bytes())
            for both in zip(subjects, known, strict=True)
        ]
        read, _ = _timed(lambda: [_read(store, subject) for subject in subjects])
    total = asked.shards * asked.megabytes
    print(f"{asked.shards} packages of {asked.megabytes} MB, {total / 1000:.1f} GB in all")
    for label, seconds in [
        ("SHA-256 of everything", plain),
        ("the same, and remembered", first),
        ("digests remembered", again),
        (f"records of {size[0] / 1000:.1f} kB read and checked", read),
        ("digests and records", again + read),
    ]:
        print(f"{label:<45} {seconds:8.3f} s {seconds / plain:9.5f} of hashing")


def _timed(work: Callable[[], list[dict[str, str]]]) -> tuple[float, list[dict[str, str]]]:
    start = time.perf_counter()
    found = work()
    return time.perf_counter() - start, found


def _remembering(cache: Path, packages: list[Path]) -> list[dict[str, str]]:
    with remembered(cache):
        return [tree_files(one) for one in packages]


def _package(folder: Path, megabytes: int) -> Path:
    weights = folder / _WEIGHTS
    weights.parent.mkdir(parents=True)
    with weights.open("wb") as file:
        file.truncate(megabytes * 10**6)
    (weights.parent.parent / "model.mlmodel").write_bytes(folder.name.encode() * 10_000)
    (folder / "Manifest.json").write_bytes(b"{}")
    return folder


def _record(subject: str, files: dict[str, str]) -> Record:
    """As large as that of a SmolLM2 block: 14 comparisons, some of 64 positions."""
    comparisons = tuple(
        Comparison("gaussian", f"gaussian T={count} #{i}", "y", count, 4.25,
                   tuple(0.9 + p / 1999 for p in range(count)), tuple(range(count)), (), (),
                   1.0, 1 / 3, relative=tuple(p / 1999 for p in range(count)))
        for count in (1, _POSITIONS)
        for i in range(7)
    )  # fmt: skip
    shard = subject.partition(":")[2]
    return Record(
        gate="fidelity",
        subject=subject,
        files={f"{shard}/{name}": digest for name, digest in files.items()},
        environment={"backend": "coreml", "chip": "Apple M4 Max", "os": "macOS 26.1"},
        asked={"reference": "float32"},
        time=datetime.now(timezone.utc),
        measurement=Fidelity(comparisons, True, {}),
    )


def _read(store: Store, subject: str) -> dict[str, str]:
    data = store.read("fidelity", subject)
    assert data is not None
    return dict(Record.from_json(data).files)


if __name__ == "__main__":
    main()
