"""`docs/reference/conformance.md`, from what the runs recorded."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from benchmarks.conformance.reasons import loose, reason
from benchmarks.conformance.records import Item, Score

_OPSETS = {"CoreML5": "iOS 15", "CoreML6": "iOS 16", "CoreML7": "iOS 17", "CoreML8": "iOS 18",
           "CoreML9": "iOS 26"}  # fmt: skip
_CARRIERS = {"cast", "identity"}
"""Operations that conversion adds at the boundary of nearly every program."""

HEAD = """\
# Conformance

coremltools ships the tests of its operations with the wheel. Off macOS they convert and compare
nothing; here they run with `pytest_ane.mac.predict`, so that every number is compared with numpy's
or torch's. Written by `make conformance`, with coremltools 9.0; not edited by hand.

The suite's tolerance for fp16 programs (0.5 absolute, 5 %) hardly sees an error of 5 %, so the
score is *close*: every array of an item within 2e-3 absolute + 2e-3 relative. The controls show
what the scores are worth: the same items with every output multiplied by 1.05, or by 0.

What is shown is that operations mean what MIL says, not bit equality with the ANE. How the ANE
computes is known in part, from recorded outputs: [its arithmetic](ane-arithmetic.md) is a mode of
its own.
"""


def page(runs: Mapping[str, Sequence[Item]], controls: Mapping[str, Sequence[Item]]) -> str:
    """The whole page."""
    parts = [HEAD, *_summary(runs), *_controls(controls)]
    operations = runs["operations, fp16"]
    parts += _by_opset(operations)
    for name, items in runs.items():
        parts += _failures(name, items)
    parts += _by_operation(operations)
    return "\n".join(parts) + "\n"


def applicable(items: Iterable[Item]) -> list[Item]:
    """Items that ask for what the executor is for."""
    return [i for i in items if i.outcome != "failed" or (r := reason(i)) is None or r.applicable]


def unexplained(items: Iterable[Item]) -> list[Item]:
    """What fails or is not close and nobody has explained."""
    return [i for i in items if (i.outcome == "failed" or loose(i)) and reason(i) is None]


def _summary(runs: Mapping[str, Sequence[Item]]) -> Iterator[str]:
    yield "## Scores\n"
    yield "| tests | items | predict | compare numbers | passed | close | functions passed whole |"
    yield "|---|---|---|---|---|---|---|"
    for name, items in runs.items():
        kept = applicable(items)
        score = Score.of(kept)
        predicted = sum(i.predicted for i in kept)
        yield (
            f"| {name} | {len(items):,} | {predicted:,} | {score.compared:,} "
            f"| {_share(score.passed, score.compared)} | {_share(score.close, score.compared)} "
            f"| {_share(score.whole, score.functions)} |"
        )
    yield ""


def _controls(controls: Mapping[str, Sequence[Item]]) -> Iterator[str]:
    yield "## Controls\n"
    yield "| outputs | compare numbers | still pass | still close |\n|---|---|---|---|"
    for name, items in controls.items():
        score = Score.of(items)
        yield (
            f"| {name} | {score.compared:,} | {_share(score.passed, score.compared)} "
            f"| {_share(score.close, score.compared)} |"
        )
    yield ""


def _by_opset(items: Sequence[Item]) -> Iterator[str]:
    yield "## By opset\n"
    yield "| opset | items | passed | close | functions passed whole |\n|---|---|---|---|---|"
    groups = defaultdict(list)
    for item in applicable(items):
        groups[item.opset].append(item)
    for opset in sorted(groups):
        score = Score.of(groups[opset])
        if score.compared:
            yield (
                f"| {_OPSETS.get(opset, opset)} | {score.compared:,} "
                f"| {_share(score.passed, score.compared)} | {_share(score.close, score.compared)} "
                f"| {_share(score.whole, score.functions)} |"
            )
    yield ""


def _failures(name: str, items: Sequence[Item]) -> Iterator[str]:
    """Every failure with its reason; not applicable ones counted."""
    counted = Counter(_kind(i) for i in items if i.outcome == "failed" or loose(i))
    if not counted:
        return
    yield f"## What fails or is not close: {name}\n"
    yield "| items | | reason |\n|---|---|---|"
    for (kind, text), count in sorted(counted.items(), key=lambda pair: (pair[0][0], -pair[1])):
        yield f"| {count} | {kind} | {text.replace('|', '/')} |"
    yield ""


def _kind(item: Item) -> tuple[str, str]:
    """What is to be said of an item that fails or is not close."""
    word = "not close" if loose(item) else "failed"
    found = reason(item)
    if found is None:
        return f"{word}, unexplained", f"`{item.function}`: {item.why[:120]}"
    return (f"{word}, explained" if found.applicable else "not applicable"), found.text


def _by_operation(items: Sequence[Item]) -> Iterator[str]:
    """Items by the operations their programs run: `close / compared`, by opset."""
    table: dict[str, dict[str, list[Item]]] = defaultdict(lambda: defaultdict(list))
    for item in applicable(items):
        if item.compared:
            for op in set(item.ops) - _CARRIERS or set(item.ops):
                table[op][item.opset].append(item)
    opsets = sorted({opset for row in table.values() for opset in row})
    yield "## By operation\n"
    yield "Items whose program runs the operation: close of compared; test functions all passed.\n"
    yield "| operation | " + " | ".join(_OPSETS.get(o, o) for o in opsets) + " | functions |"
    yield "|---|" + "---|" * (len(opsets) + 1)
    for op in sorted(table):
        cells = []
        for opset in opsets:
            score = Score.of(table[op][opset])
            cells.append(f"{score.close}/{score.compared}" if score.compared else "-")
        total = Score.of([i for row in table[op].values() for i in row])
        yield f"| `{op}` | {' | '.join(cells)} | {total.whole}/{total.functions} |"
    yield ""


def _share(part: int, whole: int) -> str:
    """`99.93 % (8,062)`, never rounded up to a hundred."""
    if not whole:
        return "-"
    percent = 100 * part / whole
    return f"{min(percent, 99.99) if part < whole else percent:.2f} % ({part:,})"
