"""Projects whose runs the browser's tests open: each gate red once, hostile names, many shards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pytest_ane.make.coremltools_quiet import converter_notes
from tests.mlprogram.packages import Program
from tests.plugin.projects import LLAMA, make_llama, save

ROOT = Path(__file__).parents[3]
Ask = Callable[[Sequence[str], Path], None]
"""Run pytest with arguments in a folder."""
Make = Callable[[Path, Ask], None]
_HALF = 65552
"""`MLMultiArrayDataType.float16`."""
_BOTH = '[models.own]\narithmetic = ["typed", "ane"]\n'
_QUICK = ("--benchmark-min-rounds=1", "--benchmark-max-time=0.001", "--benchmark-warmup=off")


@dataclass(frozen=True)
class Recipe:
    """A run.

    Attributes:
        name: of its report.
        make: lays a project out in a folder.
        options: of the run, besides those of its report.
        cache: of what is built; empty for the user's, which has whole models.
    """

    name: str
    make: Make
    options: tuple[str, ...] = ("--ane-shards=all", "-m", "gate")
    cache: str = "--ane-cache=../../workshop-cache"


def own(*entries: str, **shards: tuple[str, str]) -> str:
    """A manifest of own packages; each shard has a package and its reference."""
    tables = [
        f'[models.own.shard.{name}]\nartifact = "{package}"\nreference = "{reference}"\n'
        for name, (package, reference) in shards.items()
    ]
    return "\n".join([*tables, *entries])


def _package(folder: Path, *, seed: int = 0, scale: float = 1, then: str = "") -> str:
    """`y = x w`, and an operation after it; without a seed that operation alone."""
    program = Program()
    program.input("x", (1, 8, 1, 4), "FLOAT16", kind=_HALF)
    last = "x"
    if seed:
        weight = np.random.default_rng(seed).standard_normal((1, 8, 1, 4)) * scale
        program.blob("w", "FLOAT16", weight.shape, weight.astype(np.float16).tobytes())
        program.op("mul", "scaled", "FLOAT16", weight.shape, x="x", y="w")
        last = "scaled"
    if then:
        program.op(then, "y", "FLOAT16", (1, 8, 1, 4), x=last)
    program.output("y" if then else last, _HALF)
    return str(program.save(folder))


def _scaled(weight: float, after: float) -> Callable[[Any], Any]:
    """The identity times 70; its sums pass the accumulator's limit unless it is scaled before."""

    def build(x: Any) -> Any:
        from coremltools.converters.mil import Builder as mb

        eye = np.eye(8, dtype=np.float16).reshape(8, 8, 1, 1) * np.float16(weight)
        return mb.mul(x=mb.relu(x=mb.conv(x=x, weight=eye)), y=np.float16(after), name="y")

    return build


def packages(folder: Path, ask: Ask) -> None:
    """Red of placement, compression and fidelity, an error, unproven and passed."""
    right, other = (_package(folder / name, seed=i) for i, name in enumerate(("a", "b"), 1))
    close = _package(folder / "close", seed=1, scale=1.01)
    tangent = _package(folder / "tangent", seed=1, then="tan")
    tangents = _package(folder / "tangents", seed=1, scale=1.001, then="tan")
    bare = _package(folder / "bare", then="relu")
    limit = "[models.own.shard.tangent.policy.compression]\nmax-bytes = 100\n"
    shards = {
        "right": (right, close), "wrong": (right, other), "tangent": (tangent, tangents),
        "bare": (bare, "none"), "absent": ("absent.mlpackage", "none"),
    }  # fmt: skip
    (folder / "shards.toml").write_text(own(limit, **shards))


def spoilt(folder: Path, ask: Ask) -> None:
    """A tiny Llama, of which one projection of each block has two bits."""
    source = make_llama(folder / "mini.gguf")
    (folder / "shards.toml").write_text(
        LLAMA.format(source=source)
        + '[models.mini.compression]\nmethod = "palettize"\nnbits = 8\n'
        + 'granularity = "per_tensor"\nweight_threshold = 100\n'
        + '[[models.mini.shard."L00".compression.overrides]]\n'
        + 'weights = "v_proj*"\nnbits = 2\n'
    )


def hazards(folder: Path, ask: Ask) -> None:
    """A package whose sums pass the accumulator's limit, and one that computes the same."""
    with converter_notes():
        save(folder / "late.mlpackage", _scaled(18_000, 2.0**-8))
        save(folder / "early.mlpackage", _scaled(18_000 * 2.0**-8, 1))
    shards = {"late": ("late.mlpackage", "early.mlpackage"),
              "early": ("early.mlpackage", "late.mlpackage")}  # fmt: skip
    (folder / "shards.toml").write_text(
        own('[models.own]\narithmetic = ["typed", "ane"]\n', **shards)
    )


def bench(folder: Path, ask: Ask) -> None:
    """A tiny Llama that reaches no floor."""
    source = make_llama(folder / "mini.gguf")
    floor = "[models.mini.policy.throughput]\nmin-tok-s = 1e9\n"
    (folder / "shards.toml").write_text(LLAMA.format(source=source) + floor)


NAMES = (
    "<script>alert(1)</script>",
    "n" * 10_000,
    "\u202egnp.sdrahs\u2066 ::error::x\n\x1b[2J",
    """"'></td></template><img src=x onerror="alert(1)">""",
)
IDS = ("<script>alert(1)</script>", "%", "%zz", "__proto__", "a%26b&c=d#e?f", "\"'`", "</template>")
"""Of tests that break down: they are subjects of their own, opened by `#of=`."""


def hostile(folder: Path, ask: Ask) -> None:
    """Packages whose every name is hostile, and tests with hostile ids."""
    from tests.tools.test_hostile import hostile_package

    sound = hostile_package(folder / "sound", "sound")
    shards = {}
    for i, name in enumerate(NAMES):
        shards[f"h{i}"] = (str(hostile_package(folder / f"h{i}", name)), str(sound))
    policy = "[models.own.policy.compression]\nmax-bytes = 1\n"
    (folder / "shards.toml").write_text(own(policy, **shards))
    (folder / "test_mine.py").write_text(
        "import pytest\npytestmark = pytest.mark.gate\n"
        f"@pytest.mark.parametrize('x', {IDS!r}, ids={IDS!r})\n"
        "def test_x(x, ane_gate):\n    raise RuntimeError(x)\n"
    )


def many(folder: Path, ask: Ask) -> None:
    """240 shards of four blocks: six bits are held against none, every 24th against a neighbour."""
    source = make_llama(folder / "mini.gguf", blocks=4)
    plain = LLAMA.format(source=source).replace("L00-L01, head.0-head.1", "L00-L03, head.0")
    plain = plain.replace("max-tokens = 16", "max-tokens = 8")
    palettes = (
        '[models.small.compression]\nmethod = "palettize"\nnbits = 6\n'
        'granularity = "per_grouped_channel"\ngroup_size = 8\nweight_threshold = 300\n'
    )
    (folder / "build.toml").write_text(plain + plain.replace("mini", "small", 1).replace(
        "models.mini", "models.small") + palettes)  # fmt: skip
    ask(
        ("--ane-manifest=build.toml", "--ane-shards=mini:L*,small:L*", "-m", "gate",
         "-k", "compression", "--ane-cache=cache"),
        folder,
    )  # fmt: skip
    built = dict(_built(folder / "cache"))
    shards = {
        f"L{i:03}": (built[f"small:L{i % 4:02}"], built[f"mini:L{(i + (i % 24 == 23)) % 4:02}"])
        for i in range(240)
    }
    probes = "[models.own.probes]\ncount = 1\n"
    (folder / "shards.toml").write_text(own(_BOTH, probes, **shards))


def _built(cache: Path) -> Iterator[tuple[str, str]]:
    for file in cache.glob("artifacts/*/build.json"):
        yield json.loads(file.read_text())["shard"], str(file.parent / "shard.mlpackage")


def nothing(folder: Path, ask: Ask) -> None:
    """The manifest is one of this repository's."""


def _of(manifest: str, shards: str) -> tuple[str, ...]:
    return (f"--ane-manifest={ROOT / manifest}", f"--ane-shards={shards}", "-m", "gate")


RECIPES = (
    Recipe("packages", packages),
    Recipe("hostile", hostile),
    Recipe("spoilt", spoilt),
    Recipe("hazards", hazards),
    Recipe("bench", bench, ("--ane-shards=all", "-m", "bench", *_QUICK)),
    Recipe("many", many, ("--ane-shards=all", "-m", "gate or bench", *_QUICK, "-k", "not Tmax")),
    Recipe("zaya", nothing, _of("examples/zaya1-8b.toml", "L01"), cache=""),
)


def make(recipe: Recipe, folder: Path, ask: Ask) -> Path:
    """Run a recipe in a folder; `report.jsonl` there, and `report.html` beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe.make(folder, ask)
    files = ("--ane-report=report.html", "--ane-report=report.jsonl")
    cache = (recipe.cache,) if recipe.cache else ()
    ask((f"--rootdir={folder}", *cache, *files, *recipe.options), folder)
    return folder / "report.jsonl"
