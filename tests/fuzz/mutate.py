"""Mutation of protobuf messages by their fields, so that what is mutated still parses.

Bytes flipped at random break the length in front of a message long before they reach what is in
it. Here a message is read, some of its fields are changed, and it is written again.
"""

from __future__ import annotations

from random import Random
from typing import Any

_INTEGERS = (0, 1, 2, 3, 7, 8, 31, 32, 33, 64, 127, 128, 255, 256, 65535, 65552, 131104,
             2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**48, 2**62, 2**63 - 1, 2**63,
             2**64 - 1)  # fmt: skip
_FLOATS = (0.0, -0.0, 1.0, -1.5, 65504.0, 65520.0, 1e39, -1e300, float("inf"), float("nan"))
_TEXTS = ("", "x", "y", "main", "const", "val", "name", "CoreML8", "cond", "while_loop", "\n",
          "\x1b[2J", "@model_path/weights/weight.bin", "@model_path/weights/../x", "a" * 300,
          "\U0001f600", "ios17.add", "\ufeff")  # fmt: skip
_MOST_MESSAGES = 3000


def mutate(message: Any, random: Random) -> None:
    """Changes a few fields, in place."""
    for _ in range(random.randint(1, 4)):
        found = _messages(message)
        chosen = random.choice(found)
        fields = chosen.DESCRIPTOR.fields
        if not fields:
            continue
        present = [field for field, _ in chosen.ListFields()]
        field = random.choice(present if present and random.random() < 0.7 else list(fields))
        _change(chosen, field, found, random)


def _messages(message: Any) -> list[Any]:
    """The message and all within it, outermost first."""
    found = [message]
    for one in found:
        if len(found) > _MOST_MESSAGES:
            break
        for field, value in one.ListFields():
            found += _children(field, value)
    return found


def _children(field: Any, value: Any) -> list[Any]:
    if _is_map(field):
        inner = field.message_type.fields_by_name["value"]
        return list(value.values()) if inner.message_type else []
    if not field.message_type:
        return []
    return list(value) if field.is_repeated else [value]


def _change(message: Any, field: Any, found: list[Any], random: Random) -> None:
    if random.random() < 0.1:
        message.ClearField(field.name)
    elif _is_map(field):
        _change_map(getattr(message, field.name), field, found, random)
    elif field.is_repeated:
        _change_list(getattr(message, field.name), field, found, random)
    elif field.message_type:
        _change_message(getattr(message, field.name), found, random)
    else:
        setattr(message, field.name, _scalar(field, found, random))


def _change_message(message: Any, found: list[Any], random: Random) -> None:
    """Another message of its kind in its place, or its mere presence."""
    others = [m for m in found if m.DESCRIPTOR is message.DESCRIPTOR]
    if others and random.random() < 0.8:
        copy = type(message)()
        copy.CopyFrom(random.choice(others))
        message.CopyFrom(copy)
    else:
        message.SetInParent()


def _change_list(values: Any, field: Any, found: list[Any], random: Random) -> None:
    what = random.random()
    if len(values) and what < 0.3:
        del values[random.randrange(len(values))]
    elif field.message_type:
        _change_message(values.add(), found, random)
    elif len(values) and what < 0.7:
        values[random.randrange(len(values))] = _scalar(field, found, random)
    else:
        values.extend([_scalar(field, found, random)] * random.choice((1, 1, 2, 40)))


def _change_map(values: Any, field: Any, found: list[Any], random: Random) -> None:
    entry = field.message_type.fields_by_name
    keys = list(values)
    if keys and random.random() < 0.3:
        del values[random.choice(keys)]
        return
    key = _scalar(entry["key"], found, random)
    if random.random() < 0.5 and keys:
        key = random.choice(keys)
    if entry["value"].message_type:
        _change_message(values[key], found, random)
    else:
        values[key] = _scalar(entry["value"], found, random)


def _scalar(field: Any, found: list[Any], random: Random) -> Any:
    kind = field.cpp_type
    if kind in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return random.choice(_FLOATS)
    if kind == field.CPPTYPE_BOOL:
        return random.random() < 0.5
    if kind == field.CPPTYPE_STRING:
        text = _text(found, random)
        return text.encode() if field.type == field.TYPE_BYTES else text
    unsigned = kind in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64)
    bits = 32 if kind in (field.CPPTYPE_UINT32, field.CPPTYPE_INT32, field.CPPTYPE_ENUM) else 64
    value = random.choice(_INTEGERS) if random.random() < 0.6 else random.randrange(-3, 70)
    value &= (1 << bits) - 1
    return value if unsigned or value < 1 << (bits - 1) else value - (1 << bits)


def _text(found: list[Any], random: Random) -> str:
    """A text of the message itself, mostly: names that exist reach further."""
    if random.random() < 0.7:
        for _ in range(8):
            fields = random.choice(found).ListFields()
            texts = [v for _, v in fields if isinstance(v, str)]
            if texts:
                return random.choice(texts)
    return random.choice(_TEXTS)


def _is_map(field: Any) -> bool:
    return bool(field.message_type and field.message_type.GetOptions().map_entry)
