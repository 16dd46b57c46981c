"""The generated parts of the reference pages: manifest, command line, pytest options, rules.

A page holds `<!-- generated: NAME -->` and `<!-- end -->`; what stands between them is written by
`python -m tests.docs.reference`, and tests/docs/test_reference.py fails where it is out of date.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any

from benchmarks import ane_arithmetic
from pytest_ane.cli import parser
from pytest_ane.gates.placement.rules import ALL_RULES, OpRule, Rule
from pytest_ane.mac._experiments import EXPERIMENTS
from pytest_ane.mac.first_contact import PARTS
from pytest_ane.manifest.tables import json_schema
from pytest_ane.mlprogram.executor.ane import Grade
from pytest_ane.mlprogram.executor.ane.simulation import rules as rules_of_ane
from tests.docs.pages import ROOT, SITE, tomllib

BLOCK = re.compile(r"(<!-- generated: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def rewrite(page: str) -> str:
    """A page with all of its generated blocks brought up to date.

    Raises:
        KeyError: a block has a name that nothing generates.
    """
    return BLOCK.sub(lambda block: f"{block[1]}{GENERATORS[block[2]]()}\n{block[3]}", page)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; bars and line breaks in cells are escaped."""
    head = tuple(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


# The manifest: every table of the JSON Schema, under the name it has in shards.toml.


def manifest() -> str:
    """A section for each table of `shards.toml`; a key that several tables share stands once."""
    schema = json_schema()
    sections: dict[str, str] = {}
    described: set[tuple[str, str]] = set()
    for name, path in _tables(schema, "", schema):
        record = schema["$defs"][name]
        properties = record["properties"].items()
        rows = [
            (f"`{key}`", _values(value), _default(value), value["description"])
            for key, value in properties
            if key == "method" or (key, value["description"]) not in described
        ]
        described |= {(key, value["description"]) for key, value in properties}
        if rows and name not in sections:
            method = record["properties"].get("method", {}).get("const")
            title = f"### `{path}`" + (f' with `method = "{method}"`' if method else "")
            keys = table(("key", "values", "default", "meaning"), rows)
            sections[name] = f"{title}\n\n{record['description']}\n\n{keys}"
    return "\n\n".join(sections.values())


def _tables(schema: dict[str, Any], path: str, record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """`(definition, path)` of the tables below a record, such as `[models.NAME.source]`."""
    # Models first: what most people write.
    for key, value in sorted(record["properties"].items(), key=lambda item: item[0] != "models"):
        if key == "joint":  # Methods again.
            continue
        for name, brackets, middle in _references(value):
            inner = f"{path}.{key}{middle}".lstrip(".")
            if name == "JsonValue":
                continue
            yield name, f"[[{inner}]]" if brackets else f"[{inner}]"
            yield from _tables(schema, inner, schema["$defs"][name])


def _references(value: dict[str, Any]) -> Iterator[tuple[str, bool, str]]:
    """`(definition, whether an array of tables, what stands after the key)` of a property."""
    if "$ref" in value:
        yield value["$ref"].rpartition("/")[2], False, ""
    for branch in value.get("anyOf", ()):
        yield from _references(branch)
    for pattern in value.get("patternProperties", {}).values():
        yield from ((name, array, f".NAME{rest}") for name, array, rest in _references(pattern))
    if "items" in value and isinstance(value["items"], dict):
        yield from ((name, True, rest) for name, _, rest in _references(value["items"]))


def _values(value: dict[str, Any]) -> str:
    if "enum" in value:
        return ", ".join(f"`{choice}`" for choice in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    if "anyOf" in value and not any("$ref" in branch for branch in value["anyOf"]):
        return " or ".join(dict.fromkeys(map(_values, value["anyOf"])))
    if value.get("type") == "array":
        items = value.get("items")
        return f"list of {_values(items)}" if items else "list"
    kinds = {"string": "text", "boolean": "`true`, `false`", "object": "table"}
    kind = value.get("type", "table")
    ends = {"exclusiveMinimum": ", above", "minimum": ", from", "exclusiveMaximum": " below",
            "maximum": " to"}  # fmt: skip
    within = (f"{word} {value[key]}" for key, word in ends.items() if key in value)
    return kinds.get(kind, kind) + "".join(within)


def _default(value: dict[str, Any]) -> str:
    if "const" in value or "default" not in value:
        return ""
    default = value["default"]
    return f"`{str(default).lower() if isinstance(default, bool) else _toml(default)}`"


def _toml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


# The command line, from its parser; pytest's options, from the plugin's hook.


def commands() -> str:
    """A section for each command of `pytest-ane`."""
    choices: Any = next(a.choices for a in parser()._actions if a.dest == "command")
    aliases: dict[argparse.ArgumentParser, list[str]] = {}
    for name, command in choices.items():
        aliases.setdefault(command, []).append(name)
    parts = (part for one, (_, *more) in aliases.items() for part in _section(one, more))
    return "\n\n".join(parts)


def _section(command: argparse.ArgumentParser, aliases: list[str]) -> Iterator[str]:
    """Heading, sentence, usage, example, and the table of arguments."""
    actions = [a for a in command._actions if not isinstance(a, argparse._HelpAction)]
    usage = " ".join([command.prog, *map(_usage, actions)])
    also = "".join(f" Also `pytest-ane {alias}`." for alias in aliases)
    yield f"## `{command.prog}`"
    yield f"{command.description}{also}"
    yield f"```text\n{usage}\n```"
    yield f"For example:\n\n```text\n{(command.epilog or '').partition(':')[2].strip()}\n```"
    rows = ((f"`{_spelling(action)}`", _meaning(action)) for action in actions)
    yield table(("argument", "meaning"), rows)


def _meaning(action: argparse.Action) -> str:
    """The help text, and the default where the text does not say it."""
    words, default = action.help or "", action.default
    if default in (None, argparse.SUPPRESS, [], "") or isinstance(default, bool):
        return words
    return words if "default" in words else f"{words} (default: {default})".strip()


def _metavar(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    if action.metavar is None and action.choices is not None:
        return "|".join(map(str, action.choices))
    return action.metavar or (action.dest.upper() if action.option_strings else action.dest)


def _spelling(action: argparse.Action) -> str:
    return " ".join(filter(None, [", ".join(action.option_strings), _metavar(action)]))


def _usage(action: argparse.Action) -> str:
    words = " ".join(filter(None, [*action.option_strings[:1], _metavar(action)]))
    optional = action.nargs in ("?", "*") or (action.option_strings and not action.required)
    return f"[{words}]" if optional else words


class _Options:
    """Takes the options that a plugin's `pytest_addoption` adds, in place of pytest's parser."""

    def __init__(self) -> None:
        self.options = argparse.ArgumentParser(prog="pytest", add_help=False)
        self.ini: list[tuple[str, str]] = []

    def getgroup(self, *_: object, **__: object) -> _Options:
        return self

    def addoption(self, *names: str, **keywords: Any) -> None:
        self.options.add_argument(*names, **keywords)

    def addini(self, name: str, help: str, **_: object) -> None:
        self.ini.append((name, help))


def options(module: str = "pytest_ane.plugin") -> str:
    """A plugin's command-line options as a table."""
    taken = _taken(module)
    rows = ((f"`{_spelling(a)}`", a.help or "") for a in taken.options._actions)
    return table(("option", "meaning"), rows)


def settings() -> str:
    """The plugin's ini settings as a table."""
    rows = ((f"`{name}`", words) for name, words in _taken("pytest_ane.plugin").ini)
    return table(("setting", "meaning"), rows)


def _taken(module: str) -> _Options:
    taken = _Options()
    import_module(module).pytest_addoption(taken)
    return taken


def fixtures(folder: str = "plugin") -> str:
    """Every fixture that the modules of a package define, with the first sentence about it."""
    rows = []
    for file in sorted((ROOT / "pytest_ane" / folder).glob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and any(map(_is_fixture, node.decorator_list)):
                gives = ast.unparse(node.returns) if node.returns else ""
                words = (ast.get_docstring(node) or "").partition("\n\n")[0]
                rows.append((f"`{node.name}`", f"`{gives}`", words))
    return table(("fixture", "gives", "meaning"), rows)


def _is_fixture(decorator: ast.expr) -> bool:
    return "pytest.fixture" in ast.unparse(decorator)


# The architecture: packages in the order of their imports, and the placement rules.


def packages() -> str:
    """The rooms of pytest_ane with the first sentence about each, the lowest layer first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    names = [name.strip() for layer in reversed(layers) for name in layer.split("|")]
    rows = ((f"`{name.partition('.')[2]}`", _summary(name)) for name in names)
    return table(("room", "what it holds"), rows)


def _summary(package: str) -> str:
    source = ROOT.joinpath(*package.split("."), "__init__.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")[0]


def rules() -> str:
    """All placement rules as a table."""
    head = ("rule", "outcome", "what", "matches", "seen", "where", "what to do", "source")
    return table(head, map(_rule, ALL_RULES))


def _rule(rule: Rule) -> tuple[str, ...]:
    matches = rule.matches
    if isinstance(rule, OpRule) and not matches:
        matches = ", ".join(f"`{op}`" for op in sorted(rule.ops))
    source = f"{rule.source} (grade {rule.grade})"
    what = (rule.title, matches, rule.consequence, rule.scope, rule.fix, source)
    return (rule.id, rule.outcome, *what)


# The ANE's arithmetic: rules by grade, recorded rows against them, what may be recorded.


def grades() -> str:
    """Operations with a rule, by the rule's grade."""
    rules = sorted(rules_of_ane().items())
    by_grade = {grade: [op for op, rule in rules if rule.grade is grade] for grade in Grade}
    rows = ((grade.value, ", ".join(f"`{op}`" for op in by_grade[grade])) for grade in Grade)
    return table(("grade", "operations of MIL"), (row for row in rows if row[1]))


def recorded() -> str:
    """Every row of tests/mlprogram/executor/ane/recorded.csv, by operation."""
    results, reasons = ane_arithmetic.scored(ane_arithmetic.read(ane_arithmetic.ROWS))
    lines = [
        (op, str(rows), str(reproduced), "" if rows == reproduced else "not all are reproduced")
        for op, rows, reproduced in ane_arithmetic.by_operation(results)
    ]
    lines += [
        (op, str(count), "not scored", reason) for (op, reason), count in sorted(reasons.items())
    ]
    total = sum(result.is_reproduced for result in results)
    words = f"{total} of {len(results)} scored rows reproduced, {reasons.total()} not scored."
    head = ("operation", "rows", "reproduced", "remark")
    return f"{words}\n\n{table(head, ((f'`{op}`', *rest) for op, *rest in lines))}"


def experiments() -> str:
    """What `pytest-ane first-contact -k arithmetic` runs."""
    made = [make() for make in EXPERIMENTS.values()]
    rows = ((f"`{e.name}`", e.question, str(len(e.samples))) for e in made)
    return table(("experiment", "settles", "rows"), rows)


def assumptions() -> str:
    """What the Core ML backend assumes, and the test that checks it."""
    modules = [import_module(f"pytest_ane.mac.first_contact.test_{part}") for part in PARTS]
    tests = [test for module in modules for test in vars(module).items()]
    rows = (
        (" ".join((inspect.getdoc(test) or "").split()), f"`{name.removeprefix('test_')}`")
        for name, test in tests
        if name.startswith("test_")
    )
    return table(("assumed", "test"), rows)


GENERATORS: dict[str, Callable[[], str]] = {
    "manifest": manifest,
    "commands": commands,
    "options": options,
    "settings": settings,
    "fixtures": fixtures,
    "options for tests": lambda: options("pytest_ane.mac.testing"),
    "fixtures for tests": lambda: fixtures("mac"),
    "packages": packages,
    "rules": rules,
    "grades": grades,
    "recorded rows": recorded,
    "experiments": experiments,
    "assumptions": assumptions,
}


def main() -> None:
    """Bring every page of the site up to date, in place."""
    for page in SITE:
        text = page.read_text(encoding="utf-8")
        if (current := rewrite(text)) != text:
            page.write_text(current, encoding="utf-8")
            print(f"wrote {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
