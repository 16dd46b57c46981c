"""How many files a change touches, by its kind, counted from the code: `python -m tests.changes`.

A change adds one more of something there are several of already: a gate, a metric, an operation.
A file has to be edited for it if it names most of those there are, as a registry does; a file that
names some of them uses them, and is left alone. The other files are written for it. Names are read
from the product's syntax trees: imports, attributes, strings, and names of functions and fields.
So a list of gates that somebody writes anywhere shows here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("pytest_ane", "gates")
MOST = 0.6
"""Share of the existing ones above which a file that names them has to know the next one, too."""


@dataclass(frozen=True)
class Change:
    """One kind of change.

    Attributes:
        what: what is added.
        members: those that exist: the name of each, with the words that code uses for it.
        own: files that are written for one more, as patterns with `{}` for its name; the first
            member that has each of them shows that they exist.
        most: how many files it may touch at most.
        optional: files that may name the new one, and need not.
    """

    what: str
    members: Mapping[str, tuple[str, ...]]
    own: tuple[str, ...]
    most: int
    optional: tuple[str, ...] = ()

    @property
    def written(self) -> list[str]:
        """The patterns of its own files.

        Raises:
            LookupError: there is no such file of any member, so the pattern is outdated.
        """
        for pattern in self.own:
            if not any(any(ROOT.glob(pattern.format(name))) for name in self.members):
                raise LookupError(f"{self.what}: there is no file {pattern}")
        return [pattern.format("NEW") for pattern in self.own]

    @property
    def edited(self) -> list[str]:
        """Files of the product that name most members."""
        own = {path for name in self.members for path in self._files(name)}
        edited = []
        for path in sources():
            words = named(path)
            count = sum(bool(words.intersection(known)) for known in self.members.values())
            name = path.relative_to(ROOT).as_posix()
            if path not in own and name not in self.optional and count > MOST * len(self.members):
                edited.append(name)
        return edited

    def _files(self, name: str) -> Iterator[Path]:
        for pattern in self.own:
            for path in ROOT.glob(pattern.format(name)):
                yield from path.parent.rglob("*.py") if path.name == "__init__.py" else (path,)


def changes() -> list[Change]:
    """The kinds of change, with what exists of each today."""
    from pytest_ane.gates.placement.rules import ALL_RULES
    from pytest_ane.gates.registry import GATES
    from pytest_ane.manifest.policy import CompressionPolicy

    keys = [name for name in CompressionPolicy.model_fields if name != "evidence"]
    rules = sorted({rule.id for rule in ALL_RULES})
    return [
        Change(
            "a kind of gate",
            {name: (name, f"{name.capitalize()}Policy") for name in GATES},
            ("pytest_ane/gates/{}/__init__.py", "gates/test_{}.py"),
            4,
            # Other words for `-k` and `-m`, which no gate needs.
            optional=("pytest_ane/gates/words.py",),
        ),
        Change(
            "a metric",
            {
                "contribution": ("contributions", "min_contribution"),
                "relative_l2": ("relative", "relative_l2", "max_relative_l2"),
            },
            (),
            5,
        ),
        Change(
            "a report format",
            {"github": ("summary", ".md"), "html": ("page", ".html")},
            ("pytest_ane/report/{}.py",),
            2,
        ),
        Change("a manifest key", {key: (key, key.replace("_", "-")) for key in keys}, (), 2),
        Change(
            "a placement rule",
            {rule: (rule,) for rule in rules},
            (
                "pytest_ane/gates/placement/rules/_products.py",
                "tests/gates/placement/rules/test_products.py",
            ),
            2,
        ),
        Change(
            "a tool",
            {name: (name,) for name in ("bisect", "diff", "drift", "golden", "recommend")},
            ("pytest_ane/tools/{}.py", "tests/tools/test_{}.py"),
            2,
        ),
        Change(
            "an operation",
            {name: (name,) for name in ("gelu", "cumsum", "topk", "conv", "lstm", "softmax")},
            ("pytest_ane/mlprogram/executor/ops/{}.py", "tests/mlprogram/executor/ops/test_{}.py"),
            2,
        ),
    ]


@cache
def sources() -> list[Path]:
    """The product's modules."""
    return sorted(path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py"))


@cache
def named(path: Path) -> frozenset[str]:
    """Words that a module's code uses: docstrings and comments do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(_words(tree))


def _words(tree: ast.AST) -> Iterator[str]:
    docstrings = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in docstrings and isinstance(node, ast.Constant):
            continue
        match node:
            case ast.ImportFrom(module=module, names=names):
                yield from (module or "").split(".")
                yield from (alias.name for alias in names)
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.Constant(value=str(text)) if re.fullmatch(r"[\w.-]+", text):
                yield from (text, text.replace("-", "_"))


def table(kinds: Iterable[Change]) -> Iterator[str]:
    """A line a kind of change, then the files that it touches."""
    for change in kinds:
        files = [*change.written, *change.edited]
        yield f"{change.what:<18} {len(files)} of at most {change.most} files"
        yield from (f"    write {name}" for name in change.written)
        yield from (f"    edit  {name}" for name in change.edited)


if __name__ == "__main__":
    for line in table(changes()):
        print(line)
