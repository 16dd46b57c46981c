"""A protobuf MIL program to records, every name checked."""

from __future__ import annotations

from typing import Any

from pytest_ane.mil.faults import Fault, at, quote
from pytest_ane.mil.records import (
    Argument,
    Block,
    Function,
    Named,
    Operation,
    Program,
    Ref,
)
from pytest_ane.mil.types import value_type
from pytest_ane.mil.values import value


def program(message: Any, default: str) -> Program:
    """The record of a `Program` message whose default function has the given name."""
    if not message.functions:
        raise Fault("the program has no function")
    functions = {}
    for name, function in message.functions.items():
        with at(f"function {quote(name)}"):
            functions[name] = _function(name, function)
    return Program(functions, default if default in functions else next(iter(functions)))


def _function(name: str, message: Any) -> Function:
    if message.opset not in message.block_specializations:
        raise Fault(f"there is no block for its opset {quote(message.opset)}")
    inputs = _names(message.inputs)
    block = _block(message.block_specializations[message.opset], {n.name for n in inputs})
    return Function(name, message.opset, inputs, block)


def _block(message: Any, outer: set[str]) -> Block:
    """A block in whose scope the names of `outer` are known; a nested block may shadow them."""
    inputs = _names(message.inputs)
    scope, own = outer | {n.name for n in inputs}, {n.name for n in inputs}
    operations = []
    for spec in message.operations:
        name = spec.outputs[0].name if spec.outputs else spec.type
        with at(f"operation {quote(name)} ({spec.type})"):
            operation = _operation(spec, scope)
            for output in operation.outputs:
                if output.name in own:
                    raise Fault(f"the name {quote(output.name)} is defined a second time")
                own.add(output.name)
        scope.update(output.name for output in operation.outputs)
        operations.append(operation)
    for name in message.outputs:
        if name not in scope:
            raise Fault(f"the block's output {quote(name)} is not defined")
    return Block(inputs, tuple(operations), tuple(message.outputs))


def _operation(message: Any, scope: set[str]) -> Operation:
    inputs = {}
    for parameter, argument in message.inputs.items():
        with at(f"input {quote(parameter)}"):
            inputs[parameter] = tuple(_argument(b, scope) for b in argument.arguments)
    attributes = {}
    for parameter, spec in message.attributes.items():
        with at(f"attribute {quote(parameter)}"):
            attributes[parameter] = value(spec)
    blocks = tuple(_block(block, scope) for block in message.blocks)
    return Operation(message.type, inputs, _names(message.outputs), attributes, blocks)


def _argument(message: Any, scope: set[str]) -> Argument:
    kind = message.WhichOneof("binding")
    if kind == "value":
        return value(message.value)
    if kind != "name":
        raise Fault("an argument is empty")
    if message.name not in scope:
        raise Fault(f"{quote(message.name)} is used before it is defined")
    return Ref(message.name)


def _names(messages: Any) -> tuple[Named, ...]:
    names: dict[str, Named] = {}
    for message in messages:
        if message.name in names or not message.name:
            raise Fault(f"the name {quote(message.name)} is empty or given twice")
        with at(quote(message.name)):
            names[message.name] = Named(message.name, value_type(message.type))
    return tuple(names.values())
