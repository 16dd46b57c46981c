"""What the executor costs, as ratios against eager torch and coremltools in one run.

    python -m benchmarks.executor [--threads 2]

A full-size ZAYA1-8B shard (see zaya_shard.py): read, prepared, run on 8 positions with all weights
held and with none. SmolLM2's thirty blocks on 32 positions, from the cache of built shards.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--threads", type=int, default=2)
OPTIONS = parser.parse_args()
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(OPTIONS.threads)

import numpy as np  # noqa: E402 - after the threads are chosen

from benchmarks.zaya_shard import WIDTH, Shard  # noqa: E402
from pytest_ane.mlprogram.executor import Session  # noqa: E402
from pytest_ane.mlprogram.model import read_model  # noqa: E402

POSITIONS = 8


def least(work: Callable[[], Any], repeats: int = 5) -> float:
    """The least of some times, in seconds, as others use the machine too."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def resident() -> float:
    """Memory in use, MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def main() -> None:
    print("| what | measured | against | ratio |\n|---|---|---|---|")
    overhead()
    with tempfile.TemporaryDirectory() as folder:
        shard = Shard()
        path = shard.save(Path(folder), POSITIONS)
        reading(path)
        running(path, shard)
    smollm2()


def overhead() -> None:
    """The cost of an operation on a tensor of one element, in a chain of 1000."""
    from tests.mlprogram.packages import Program

    program = Program()
    program.input("x", (1,))
    name = "x"
    for i in range(1000):
        program.op("relu", f"y{i}", shape=(1,), x=name)
        name = f"y{i}"
    program.output(name)
    with tempfile.TemporaryDirectory() as folder:
        session = Session(read_model(program.save(Path(folder))))
    x = {"x": np.ones(1, np.float32)}
    ours = least(lambda: session.predict(x), 20) / 1000
    bare = least(lambda: [eval_relu() for _ in range(1000)], 20) / 1000
    print(f"| one tiny operation | {ours * 1e6:.1f} us | numpy alone {bare * 1e6:.1f} us "
          f"| {ours / bare:.1f} |")  # fmt: skip


def eval_relu(x: Any = np.ones(1, np.float32)) -> Any:  # noqa: B008 - one array for all calls
    """Numpy's own call."""
    return np.maximum(x, 0)


def reading(path: Path) -> None:
    """Structure and mapped weights of the 101 MB package."""
    read_model(path)
    before = resident()
    model = read_model(path)
    extra = resident() - before
    size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file()) / 1e6
    took = least(lambda: read_model(path))
    print(f"| read {size:.1f} MB | {took * 1e3:.1f} ms, {extra:.1f} MiB | - | - |")
    del model


def running(path: Path, shard: Shard) -> None:
    """Eight positions at once: held, streamed, and eager torch on the dense weights."""
    import torch

    torch.set_num_threads(OPTIONS.threads)
    model = read_model(path)
    x = np.random.default_rng(1).standard_normal((1, WIDTH, POSITIONS, 1)).astype(np.float32)
    start = time.perf_counter()
    held = Session(model)
    prepared = time.perf_counter() - start
    dense = {n: torch.from_numpy(np.asarray(held.predict({"x": x}, outputs=[f"{n}_w"])[f"{n}_w"]))
             for n in shard.dense}  # fmt: skip

    def eager() -> Any:
        return torch_shard(torch.from_numpy(x), dense)

    with torch.inference_mode():
        expected = eager().numpy()
        theirs = least(eager)
    print(f"| prepare it, 201 M weights decoded | {prepared:.2f} s | - | - |")
    for name, session in (
        ("all weights held", held),
        ("weights streamed", Session(model, memory_budget=0)),
        ("weights held, float32", Session(model, "float32")),
    ):
        (y,) = session.predict({"x": x}).values()
        error = float(np.linalg.norm(y - expected) / np.linalg.norm(expected))
        ours = least(partial(session.predict, {"x": x}))
        print(f"| run it on 8 positions, {name} | {ours * 1e3:.0f} ms (relative error {error:.1e}) "
              f"| eager torch float32 {theirs * 1e3:.0f} ms | {ours / theirs:.2f} |")  # fmt: skip


def torch_shard(x: Any, weights: dict[str, Any]) -> Any:
    """The shard in eager torch."""
    from torch.nn import functional as F

    h = F.conv2d(x, weights["down"])
    for i in range(2):
        h = F.conv2d(F.silu(h), weights[f"router_{i}"])
    shares = F.conv2d(F.silu(h), weights["router"]).softmax(1)
    total = x
    for e in range(16):
        gate, up = F.conv2d(x, weights[f"fc1_{e}"]).chunk(2, 1)
        total = total + F.conv2d(F.silu(gate) * up, weights[f"fc2_{e}"]) * shares[:, e : e + 1]
    return total


def smollm2() -> None:
    """Thirty blocks of the default model on 32 positions, built shards against float32 torch."""
    import torch

    from pytest_ane.project.models import OpenModel
    from pytest_ane.project.project import read_project

    project = read_project(Path(__file__).parents[1] / "shards.toml", None)
    opened = project.model("smollm2")
    assert isinstance(opened, OpenModel)
    family = opened.language_model
    shards = [s for s in project.shards if s.id.startswith("L")]
    artifacts = [project.artifact(shard) for shard in shards]
    hidden = np.random.default_rng(2).standard_normal((32, 576)).astype(np.float32)
    inputs = family.layout("L00").inputs(hidden)
    sessions = [Session(read_model(artifact.path)) for artifact in artifacts]
    references = [family.reference(s.id) for s in shards]
    with torch.inference_mode():
        theirs = least(lambda: [run([hidden]) for run in references])
    states = [s.make_state() for s in sessions]
    ours = least(lambda: [s.predict(inputs, t) for s, t in zip(sessions, states, strict=True)])
    print(f"| SmolLM2's 30 blocks on 32 positions | {ours * 1e3:.0f} ms | eager torch float32 "
          f"{theirs * 1e3:.0f} ms | {ours / theirs:.2f} |")  # fmt: skip


if __name__ == "__main__":
    main()
