"""Speculative decoding of texts that repeat themselves: measured, and predicted by the break-even.

    python -m benchmarks.speculative [--width 2 4 8] [--tokens 64] [--rounds 3] [--wall]

For every text and width: seconds of a plain step and of a call, the share of drafts that pays, the
share accepted, the speed against plain decoding, and how far the prediction is off: by processor
time of one thread, which other processes hardly disturb, or with `--wall` by wall time. Builds what
is missing first.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pytest_ane.project import process as threads

if TYPE_CHECKING:
    from pytest_ane.models.chain import Chain, Timer

ROOT = Path(__file__).resolve().parents[1]
TEXTS = {
    "list": "1. apple\n2. banana\n3. apple\n4. banana\n5. apple\n6. banana\n7. apple\n8.",
    "table": "| day | sun | rain |\n|---|---|---|\n| Mon | 5 | 0 |\n| Tue | 5 | 0 |\n| Wed | 5 |",
    "code": "".join(
        f"    def get_{x}(self):\n        return self.{x}\n\n"
        f"    def set_{x}(self, {x}):\n        self.{x} = {x}\n\n"
        for x in ("x", "y")
    ),
    "numbers": "one, two, three, one, two, three, one, two, three, one, two,",
    "prose": "Once upon a time, there was a little girl named Lily who loved to play outside with",
}
_PROMPT = '[[models.smollm2.prompts]]\nname = "bench-{name}"\ntext = {text}\ngreedy = 1\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many is shown")
    parser.add_argument("--wall", action="store_true", help="time on the wall, others' included")
    parser.add_argument("--ane-manifest", type=Path, default=ROOT / "shards.toml")
    parser.add_argument("--ane-cache", type=Path)
    options = parser.parse_args()
    threads.choose()
    timer = time.perf_counter if options.wall else time.process_time
    from pytest_ane.tools._stack import open_stack

    print(
        f"{'text':<8} w  step ms  call ms  needed  accepted  speedup  predicted   off worst  same"
    )
    with (
        manifest(options.ane_manifest) as path,
        open_stack(path, "smollm2", options.ane_cache) as stack,
    ):
        ids = {prompt.name: prompt.ids for prompt in stack.prompts}
        for name in TEXTS:
            for width in options.width:
                text, rounds = ids[f"bench-{name}"], options.rounds
                print(f"{name:<8}", row(stack.chain, text, options.tokens, width, rounds, timer))


def row(
    chain: Chain, ids: Sequence[int], tokens: int, width: int, rounds: int, timer: Timer
) -> str:
    """One text at one width; `off` and `worst` are the prediction's relative errors."""
    from pytest_ane.tools._speculate import run_trial

    trials = [run_trial(chain, ids, tokens, width, timer=timer) for _ in range(rounds)]
    shown = sorted(trials, key=lambda trial: trial.speedup)[rounds // 2]
    counted = shown.speculated
    needed, accepted = shown.cost.share_needed, counted.acceptance
    off = [abs(t.predicted / t.tok_s - 1) for t in trials]
    same = all(trial.differs is None for trial in trials)
    return (
        f"{width}  {1000 * shown.cost.t1:7.1f}  {1000 * shown.cost.tv:7.1f}  "
        f"{'never' if needed is None else f'{needed:.0%}':>6}  "
        f"{'-' if accepted is None else f'{accepted:.0%}':>8}  {shown.speedup:6.2f}x  "
        f"{statistics.median(t.predicted * t.cost.t1 for t in trials):8.2f}x  "
        f"{statistics.median(off):4.1%} {max(off):5.1%}  "
        f"{'yes' if same else 'NO'}  calls {len(counted.calls)}, "
        f"fallbacks {len(counted.steps)}, replayed {len(counted.replays)}"
    )


@contextmanager
def manifest(base: Path) -> Iterator[Path]:
    """The manifest with the texts as further prompts."""
    import json

    prompts = "".join(
        _PROMPT.format(name=name, text=json.dumps(text)) for name, text in TEXTS.items()
    )
    with TemporaryDirectory() as folder:
        path = Path(folder, "shards.toml")
        path.write_text(base.read_text() + "\n" + prompts)
        yield path


if __name__ == "__main__":
    main()
