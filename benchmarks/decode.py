"""What a token costs on the executor, compared with eager torch float32 and memory bandwidth.

    python -m benchmarks.decode [--threads 2] [--tokens 64] [--manifest FILE] [--profile]

The default model with states, from the cache of built shards, one token a call: all blocks, the
head, the host's side. In the same process, by turns with every token: the same model in eager torch
with a key-value cache (see eager_llama.py), and a read of 256 MiB, whose rate is the memory's
bandwidth. The limit is the time that the weights' bytes, as each side holds them, take at it. The
ratio of medians is what to compare between runs: both sides suffer alike from other processes.
`--profile` prints the functions that take longest, and the time by operation.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--tokens", type=int, default=64)
parser.add_argument("--manifest", type=Path, default=ROOT / "shards.toml")
parser.add_argument("--profile", action="store_true")
OPTIONS = parser.parse_args()
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(OPTIONS.threads)
# A thread that waits would take the processor from the other side's.
os.environ["GOMP_SPINCOUNT"] = "0"

import numpy as np  # noqa: E402 - after the threads are chosen
import torch  # noqa: E402

from benchmarks.eager_llama import EagerLlama  # noqa: E402
from pytest_ane.backends.cpu import CpuBackend, CpuRunner  # noqa: E402
from pytest_ane.mlprogram.executor import Session  # noqa: E402
from pytest_ane.mlprogram.executor._steps import Compute  # noqa: E402
from pytest_ane.models.chain import Decoder  # noqa: E402
from pytest_ane.project.choose import choose_model  # noqa: E402
from pytest_ane.project.models import OpenModel  # noqa: E402
from pytest_ane.project.project import read_project  # noqa: E402
from pytest_ane.project.stack import Stack  # noqa: E402

READ = 256 << 20
"""Bytes of one read: many times what the caches hold."""


class Decoding:
    """One side: tokens one by one, and what each took."""

    def __init__(self, logits: Callable[[int], Any], prompt: list[int]) -> None:
        self._logits = logits
        self.seconds: list[float] = []
        self.processor: list[float] = []
        self.tokens: list[int] = []
        for token in prompt:
            self._next = int(logits(token).argmax())

    def step(self) -> None:
        """One more token, timed from the last one's id to the next one's."""
        self.tokens.append(self._next)
        start, processor = time.perf_counter(), time.process_time()
        self._next = int(self._logits(self._next).argmax())
        self.processor.append(time.process_time() - processor)
        self.seconds.append(time.perf_counter() - start)


def reading() -> Callable[[], tuple[float, float]]:
    """A function that reads `READ` bytes in several ways, and returns the fastest way's seconds.

    Wall time, and processor time.
    """
    matrix = torch.ones(READ // 4 // 4096, 4096)
    vector = torch.ones(4096)
    flat = matrix.numpy().reshape(-1)
    ways = (lambda: torch.mv(matrix, vector), lambda: np.dot(flat, flat), matrix.sum, flat.max)

    def read() -> tuple[float, float]:
        times = []
        for way in ways:
            start, processor = time.perf_counter(), time.process_time()
            way()
            times.append((time.perf_counter() - start, time.process_time() - processor))
        return min(wall for wall, _ in times), min(processor for _, processor in times)

    return read


class RecordingBackend(CpuBackend):
    """The `cpu` backend, which remembers the sessions that it prepared."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions: list[Session] = []

    def load(self, artifact: Path, function: str | None = None) -> CpuRunner:
        """Prepare a package, and remember its session."""
        runner = super().load(artifact, function)
        assert isinstance(runner.session, Session)  # No shard here is a pipeline.
        self.sessions.append(runner.session)
        return runner


def report(
    sides: tuple[Decoding, Decoding], held: tuple[int, int], reads: list[tuple[float, float]]
) -> None:
    """Times of a token, their ratios, and what share of the limit each side reaches.

    Medians of wall and processor time, and the least wall time: where other processes use the
    machine too, the latter two tell more.
    """
    walls, processors = (list(times) for times in zip(*reads, strict=True))
    print(f"{len(reads)} tokens, {OPTIONS.threads} thread(s)")
    print("| | side | weights, MB | memory, GB/s | limit, ms | a token, ms | share of the limit |")
    print("|---|---|---|---|---|---|---|")
    for what, choose, which in (
        ("wall, median", median, 0), ("processor, median", median, 1), ("wall, least", min, 0)
    ):  # fmt: skip
        read = choose((walls, processors)[which])
        tokens = [choose((side.seconds, side.processor)[which]) for side in sides]
        for name, size, token in zip(("executor", "torch"), held, tokens, strict=True):
            limit = size / READ * read
            print(f"| {what} | {name} | {size / 1e6:.0f} | {READ / read / 1e9:.1f} "
                  f"| {limit * 1e3:.1f} | {token * 1e3:.1f} | {limit / token:.2f} |")  # fmt: skip
        print(f"| {what} | torch / executor | | | | {tokens[1] / tokens[0]:.2f} | |")
    differs = [a != b for a, b in zip(sides[0].tokens, sides[1].tokens, strict=True)]
    alike = differs.index(True) if any(differs) else len(differs)
    print(f"The first {alike} tokens are the same: the executor's weights are compressed.")


def profile(step: Callable[[], None]) -> None:
    """Functions by their own time, then operations by theirs, over 20 tokens."""
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(20):
        step()
    profiler.disable()
    pstats.Stats(profiler, stream=sys.stdout).sort_stats("tottime").print_stats(25)
    spent: defaultdict[str, float] = defaultdict(float)
    run = Compute.run

    def timed(self: Compute, *arguments: Any) -> None:
        start = time.process_time()
        run(self, *arguments)
        name = self.what.split(": ", 1)[1].split(" ", 1)[0]
        spent[name] += time.process_time() - start

    setattr(Compute, "run", timed)  # noqa: B010 - a timer around the method
    for _ in range(20):
        step()
    print("| operation | ms of the processor a token |\n|---|---|")
    for name, seconds in sorted(spent.items(), key=lambda item: -item[1]):
        print(f"| {name} | {seconds / 20 * 1e3:.2f} |")


def main() -> None:
    torch.set_num_threads(OPTIONS.threads)
    project = read_project(OPTIONS.manifest, None)
    chosen = choose_model(project.manifest, None, stacks=True)
    opened = project.model(chosen.name)
    assert isinstance(opened, OpenModel)
    model: Any = opened.language_model
    artifacts = [(shard, project.artifact(shard)) for shard in chosen.shards]
    stack = Stack(opened, artifacts, backend := RecordingBackend())
    chain = stack.chain
    sequence = Decoder(chain, [])

    def ours(token: int) -> Any:
        sequence.ids.append(token)
        return sequence.logits()[0]

    eager = EagerLlama(model, model.positions)
    prompt = list(opened.prompts[0].ids)
    with torch.inference_mode():
        sides = Decoding(ours, prompt), Decoding(eager.step, prompt)
        read, reads = reading(), []
        for i in range(OPTIONS.tokens):
            for side in sides if i % 2 else sides[::-1]:
                side.step()
            reads.append(read())
    report(sides, (sum(s.weight_bytes for s in backend.sessions), eager.weight_bytes), reads)
    if OPTIONS.profile:
        profile(sides[0].step)


if __name__ == "__main__":
    main()
