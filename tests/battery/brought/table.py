"""The page of the packages that people bring: red, unproven and green by form, class and kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.battery.brought.run import FORMS, KINDS, Said, flaw_of
from tests.battery.table import _short, _table

_HEAD = ("faults", "red", "unproven", "green", "caught", "right cause of the red")
_FORMS = {
    "few": "golden tensors of one length or four calls",
    "golden": "golden tensors of all lengths or the whole state",
    "package": "the right fp16 package as `reference`",
    "uncompressed": "that package as `reference` and `uncompressed`",
    "own": "golden tensors, and the program that was compressed as `uncompressed`",
    "both": "golden tensors, and the right fp16 package as `uncompressed`",
}


def page(said: Sequence[Said]) -> str:
    """The tables as Markdown."""
    wrong = [s for s in said if s.flaw]
    right = [s for s in said if not s.flaw]
    parts = {}
    for title, group in (
        ("All faults", wrong),
        ("Faults of stateful packages", [s for s in wrong if KINDS[s.kind].stateful]),
        ("Faults of states and sequences", [s for s in wrong if _class(s) in _OF_STATES]),
        ("Faults of bytes", [s for s in wrong if _class(s) == "bytes"]),
        ("Faults of the function alone", [s for s in wrong if _class(s) != "bytes"]),
    ):
        forms = _groups(group, lambda s: s.form)
        parts[title] = _table(
            ("references", *_HEAD), [(_FORMS[f], *_row(forms[f])) for f in FORMS if f in forms]
        )
    parts["Caught by kind"] = _crossed(wrong, lambda s: s.kind)
    parts["Caught by class"] = _crossed(wrong, _class)
    parts["Right packages"] = _table(
        ("references", "packages", "green", "unproven", "red"),
        [
            (_FORMS[f], len(g), *(_count(g, s) for s in ("passed", "unproven", "failed")))
            for f, g in _groups(right, lambda s: s.form).items()
        ],
    )
    alarms = [s for s in right if s.status != "passed"]
    parts["Right packages that are not green"] = _table(
        ("kind", "form", "seed", "verdict", "first sentence"),
        [(s.kind, s.form, s.seed, s.status, _short(s.sentence)) for s in alarms],
    )
    names = _groups([s for s in wrong if s.status == "passed"], lambda s: f"{s.kind} | {s.flaw}")
    parts["Green though wrong"] = _table(
        ("kind", "fault", "green in"),
        [(*n.split(" | "), ", ".join(s.form for s in g)) for n, g in sorted(names.items())],
    )
    return "\n".join(f"## {title}\n\n{text}" for title, text in parts.items())


def _groups(said: Sequence[Said], of: Callable[[Said], str]) -> dict[str, list[Said]]:
    groups: dict[str, list[Said]] = {}
    for each in said:
        groups.setdefault(of(each), []).append(each)
    return groups


_OF_STATES = ("states", "sequences")


def _class(said: Said) -> str:
    return flaw_of(said.kind, said.flaw).kind


def _count(group: Sequence[Said], status: str) -> int:
    return sum(s.status == status for s in group)


def _row(group: Sequence[Said]) -> tuple[object, ...]:
    red = [s for s in group if s.status == "failed"]
    green = _count(group, "passed")
    share = f"{1 - green / len(group):.1%}"
    named = f"{sum(s.named for s in red)} of {len(red)}"
    return len(group), len(red), _count(group, "unproven"), green, share, named


def _crossed(said: Sequence[Said], key: Callable[[Said], str]) -> str:
    """Red or unproven of all, by a key and the form."""
    table = []
    for name, group in sorted(_groups(said, key).items()):
        forms = _groups(group, lambda s: s.form)
        cells = [forms.get(form, []) for form in FORMS]
        caught = [f"{len(c) - _count(c, 'passed')} of {len(c)}" if c else "" for c in cells]
        table.append((name, *caught))
    return _table(("", *FORMS), table)
