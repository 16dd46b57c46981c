"""`python -m tests.fuzz TARGET [libFuzzer's options] [CORPUS]`: runs atheris on one target.

New inputs go to the first folder named; the committed corpus is read as well.
"""

from __future__ import annotations

import resource
import sys
import tempfile
from pathlib import Path
from random import Random

import atheris  # type: ignore[import-not-found]

with atheris.instrument_imports(include=["pytest_ane", "lark", "json"]):
    import json  # noqa: F401

    import lark  # noqa: F401

    from pytest_ane.mlprogram.proto import definitions
    from tests.fuzz.limits import MEMORY_FACTOR, MEMORY_FLOOR
    from tests.fuzz.mutate import mutate
    from tests.fuzz.programs import MEMORY
    from tests.fuzz.targets import TARGETS, target

_HERE = Path(__file__).parent


def main() -> None:
    name = sys.argv.pop(1)
    if name not in TARGETS:
        sys.exit(f"no target {name!r}; there are {', '.join(TARGETS)}")
    run = target(name, Path(tempfile.mkdtemp(prefix="fuzz-")))

    def one(data: bytes) -> None:
        before = _peak()
        run(data)
        grown = _peak() - before
        allowed = MEMORY if name == "run" else MEMORY_FLOOR + MEMORY_FACTOR * len(data)
        assert grown <= allowed, f"{len(data)} bytes took {grown:,} bytes of memory"

    mutator = {"custom_mutator": _mutated} if name in ("package", "run") else {}
    words = _HERE / f"{name}.dict"
    options = [f"-dict={words}"] if words.exists() else []
    atheris.Setup(
        [sys.argv[0], *options, *sys.argv[1:], str(_HERE / "corpus" / name)], one, **mutator
    )
    atheris.Fuzz()


def _mutated(data: bytes, most: int, seed: int) -> bytes:
    random = Random(seed)
    if random.random() < 0.8:
        message = definitions().Model()
        try:
            message.ParseFromString(data)
            mutate(message, random)
            changed: bytes = message.SerializeToString()
        except Exception:  # protobuf's own errors have no base that its types name
            changed = b""
        if 0 < len(changed) <= most:
            return changed
    mutated: bytes = atheris.Mutate(data, len(data) or 1)
    return mutated


def _peak() -> int:
    """The most memory this process has taken so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
