"""Every script in `benchmarks/` runs to its end on its smallest real input."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.forked import Forge
from tests.gate_all import gate_all
from tests.plugin.projects import LLAMA, make_llama

ROOT = Path(__file__).parents[1]
TINY = "{tiny}/shards.toml"
CACHE = ("--cache", "{tiny}/cache")
SMALL: dict[str, tuple[str, ...]] = {
    "ane_arithmetic": (),
    "ane_kernel": ("--positions", "1"),
    "ane_speed": ("--only", "L01", "--repeats", "1"),
    "behaviour": (*CACHE, "--manifest", TINY),
    "blame": (*CACHE, TINY, "L01"),
    "decode": ("--manifest", TINY, "--tokens", "2", "--profile"),
    "device_process": ("--calls", "1", "--largest", "1"),
    "error_budget": (*CACHE, TINY, "--shards", "L00"),
    "evidence": ("--shards", "2", "--megabytes", "1"),
    "families": ("granite", "bert"),
    "fixture_overhead": ("--manifest", TINY),
    "gate_times": ("--manifest", TINY),
    "history": ("--runs", "8", "--shards", "12", "--times", "1"),
    "palette_decode": ("--matrices", "1"),
    "palettize": ("gemma", "--scale", "0.02"),
    "segmenter": (),
    "segmenter_speed": ("--operations", "200"),
}  # fmt: skip
WHOLE: dict[str, tuple[str, ...]] = {
    "ane_model": (),
    "ane_real_models": (),
    "behaviour_table": ("fp16",),
    "cache_check": ("--largest", "1000000"),
    "cluster": ("--shards", "2", "--workers", "1", "--echoed", "4"),
    "compression_search": ("fp16",),
    "drift": ("--spoil", "0"),
    "executor": ("--threads", "1"),
    "gemma3": (),
    "placement_maps": (),
    "real_packages": (),
    "recommend": ("--minutes", "1"),
    "report_page": ("build/gate-all.jsonl", "--visits", "1"),
    "scale_out": ("--shards", "2", "--alone", "1"),
    "zaya_gate": ("--ours",),
}
"""Of models at their real size, or of many processes: every night."""


def scripts() -> Iterator[str]:
    for file in sorted((ROOT / "benchmarks").glob("*.py")):
        if '__name__ == "__main__"' in file.read_text():
            yield file.stem


def cases() -> Iterator[ParameterSet]:
    for name, options in SMALL.items():
        yield pytest.param(name, options, id=name, marks=[pytest.mark.heavy, pytest.mark.drawn])
    for name, options in WHOLE.items():
        yield pytest.param(name, options, id=name, marks=pytest.mark.full)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two blocks, with states."""
    folder = tmp_path_factory.mktemp("tiny")
    text = LLAMA.format(source=make_llama(folder / "mini.gguf"))
    states = "max-tokens = 16\nstateful = true\ncontext = 64\n"
    (folder / "shards.toml").write_text(text.replace("max-tokens = 16\n", states, 1))
    return folder


@pytest.mark.parametrize(("name", "options"), [*cases()])
def test_it_runs(name: str, options: Sequence[str], tiny: Path, forge: Forge) -> None:
    arguments = [option.format(tiny=tiny) for option in options]
    if name == "report_page":
        gate_all(forge, ".json")
    done = forge.run([f"benchmarks.{name}", *arguments], ROOT)
    assert done.returncode == 0, done.stdout
    assert re.search(r"\d", done.stdout), "no figures"


def test_none_is_left_out() -> None:
    assert {*SMALL, *WHOLE, "placement_score"} == {*scripts()}
