"""`analytics.mil`, which Xcode's performance reports leave in Core ML's cache. Experimental.

It is the program with what each backend was estimated to need, in milliseconds:

    tensor<fp16, [1, 64]> y = conv(x = x)[SelectedBackend = string("ane"),
      EstimatedRuntime = dict<string, fp64>({{"ane", 7.23e-06}, {"bnns", 0.0012}})];

The grammar is put together from published readers; no file of Apple's was at hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_ane.core.errors import PlanError
from pytest_ane.gates.placement.plans import fields
from pytest_ane.gates.placement.plans.record import Device, Plan, PlannedFunction, PlannedOperation

_BACKENDS: dict[str, Device] = {
    "ane": "ANE",
    "classic_cpu": "CPU",
    "bnns": "CPU",
    "mps_graph": "GPU",
}
_STOP = re.compile(r'"(?:[^"\\]|\\.)*"|;|"')
_HEADER = re.compile(r"\bfunc\s+(\w+)")
_ENDS = re.compile(r"\s*(?:\}\s*(?:->\s*\([^()]*\)\s*)?)*")
_FIRST = re.compile(r"(?:>|\b(?:string|bool|u?int\d{1,2}|b?fp\d{2}))\s+([\w.]+)\s*[,=]")
_CALL = re.compile(r"(?:^|[\s=])([A-Za-z_][\w.]*)\(")
_SELECTED = re.compile(r'SelectedBackend\s*=\s*string\("([^"]*)"\)')
_NAME = re.compile(r'\bname\s*=\s*string\("([^"]*)"\)')
_DICT = r"\s*=\s*dict<[^<>]{0,100}>\(\{((?:\{[^{}]*\}|[\s,])*)\}\)"
_RUNTIME = re.compile("EstimatedRuntime" + _DICT)
_MESSAGES = re.compile("ValidationMessage" + _DICT)
_SUPPORT = re.compile(r"BackendSupport\s*=\s*list<[^<>]{0,100}>\(\[([^][]{0,1000})\]\)")
_PAIR = re.compile(r'\{\s*"([^"]*)"\s*,\s*(?:"([^"]*)"|([-+.\deE]{1,40}))\s*\}')
_QUOTED = re.compile(r'"([^"]*)"')


def recognises(text: str) -> bool:
    """Whether a text is in this format."""
    return "SelectedBackend" in text or "BackendSupport" in text


def read(text: str) -> Plan:
    """The plan of a text.

    Raises:
        PlanError: a statement is cut off or cannot be read, or a backend is unknown.
    """
    functions: dict[str, list[PlannedOperation]] = {}
    current = "main"
    for statement, line in _statements(text):
        if head := _HEADER.search(statement):
            current = head[1]
            statement = _body(statement, head.end(), line)
        statement = _ENDS.sub("", statement, count=1)
        if not statement.strip():
            continue
        functions.setdefault(current, []).append(_operation(statement, line))
    if _HEADER.search(text) and not text.rstrip().endswith("}"):
        raise PlanError("the text ends inside a function")
    return Plan(
        "analytics.mil",
        tuple(PlannedFunction(name, tuple(ops)) for name, ops in functions.items()),
    )


def _statements(text: str) -> Iterator[tuple[str, int]]:
    """What stands between semicolons outside strings, with the line it ends on."""
    begin, line, counted = 0, 1, 0
    for found in _STOP.finditer(text):
        if found[0] == ";":
            line += text.count("\n", counted, found.start())
            counted = found.start()
            yield text[begin : found.start()], line
            begin = found.end()
        elif found[0] == '"':
            raise PlanError(f"line {line} or later: a string does not end")
    # What closes the last block: `} -> (y);` or `}`.
    if text[begin:].strip(" \t\r\n}"):
        raise PlanError(f"the text ends inside a statement, after line {line}")


def _body(statement: str, begin: int, line: int) -> str:
    """The first statement of a function, behind the header's own braces and attributes."""
    opening = statement.rfind("{\n", begin)
    if opening < 0:
        raise PlanError(f"line {line}: function has no body")
    return statement[opening + 1 :]


def _operation(statement: str, line: int) -> PlannedOperation:
    head = statement.split("[SelectedBackend", 1)[0].split("[BackendSupport", 1)[0]
    name, op = _call(head.strip(), line)
    selected = _SELECTED.search(statement)
    backend = selected[1] if selected else None
    runtimes = _numbers(_RUNTIME.search(statement), line)
    support = _SUPPORT.search(statement)
    supported = [_device(one, line) for one in _QUOTED.findall(support[1])] if support else []
    given = _NAME.search(statement)
    messages = _MESSAGES.search(statement)
    texts = {key: text for key, text, _ in _PAIR.findall(messages[1])} if messages else {}
    return PlannedOperation(
        name or (given[1] if given else ""),
        fields.op_type(op),
        None if backend is None else _device(backend, line),
        tuple(dict.fromkeys(supported)),
        runtimes.get(backend) if backend else None,
        extra={
            "SelectedBackend": backend,
            "EstimatedRuntime": runtimes,
            "ValidationMessage": texts,
            "name": given[1] if given else None,
        },
    )


def _call(head: str, line: int) -> tuple[str, str]:
    found = _CALL.search(head)
    if found is None:
        raise PlanError(f"line {line}: the statement is no operation, `name = op(...)`")
    first = _FIRST.search(head, 0, found.start(1))
    return first[1] if first else "", found[1]


def _numbers(found: re.Match[str] | None, line: int) -> dict[str, float]:
    made: dict[str, float] = {}
    for key, _, digits in _PAIR.findall(found[1]) if found else ():
        try:
            made[key] = fields.number(float(digits), f"line {line}: EstimatedRuntime")
        except ValueError:
            raise PlanError(f"line {line}: {digits!r} is no number") from None
    return made


def _device(backend: str, line: int) -> Device:
    if backend not in _BACKENDS:
        raise PlanError(f"line {line}: {backend!r} is no backend that this version knows")
    return _BACKENDS[backend]
