"""Programs as hypothesis draws them: every type, every kind of value, blocks within blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from pytest_ane.mlprogram.records import (
    Argument,
    Blob,
    Block,
    DictionaryType,
    DType,
    Function,
    ListType,
    Named,
    Operation,
    Program,
    Ref,
    StateType,
    TensorType,
    TupleType,
    Value,
    ValueType,
)

# Words of the language among them, which are names where a name stands.
WORDS = st.sampled_from(
    ["tensor", "string", "state", "func", "fp16", "list", "nan", "true", "program", "BLOBFILE",
     "A", "_", "z9", "a@b", "x_0", "x_1", "x_2", "input_1", "Q", "val", "name", "e", "x0"]
)  # fmt: skip
# The text is UTF-8, which has no lone surrogates.
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
RANGES = {DType.INT4: (-8, 7), DType.UINT1: (0, 1), DType.UINT2: (0, 3), DType.UINT3: (0, 7),
          DType.UINT4: (0, 15), DType.UINT6: (0, 63)}  # fmt: skip
CARRIED = {DType.INT4: np.int8, DType.UINT1: np.uint8, DType.UINT2: np.uint8,
           DType.UINT3: np.uint8, DType.UINT4: np.uint8, DType.UINT6: np.uint8}  # fmt: skip
FLOATS = {DType.FP16: np.float16, DType.FP32: np.float32, DType.FP64: np.float64}

SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
TENSORS = st.builds(TensorType, st.sampled_from(list(DType)), SHAPES)
OPEN = st.builds(
    TensorType,
    st.sampled_from(list(DType)),
    st.lists(st.none() | st.integers(0, 9), max_size=4).map(tuple),
)
CONSTANT_TYPES: st.SearchStrategy[ValueType] = st.recursive(
    TENSORS,
    lambda inner: (
        st.builds(ListType, inner)
        | st.builds(TupleType, st.lists(inner, max_size=3).map(tuple))
        | st.builds(DictionaryType, inner, inner)
    ),
    max_leaves=3,
)
TYPES = CONSTANT_TYPES | OPEN | st.builds(StateType, OPEN)


@st.composite
def data(draw: Any, kind: ValueType) -> Any:
    """What a `Value` of a type holds."""
    if isinstance(kind, ListType):
        return tuple(draw(data(kind.element)) for _ in range(draw(st.integers(0, 2))))
    if isinstance(kind, TupleType):
        return tuple(draw(data(k)) for k in kind.elements)
    if isinstance(kind, DictionaryType):
        count = range(draw(st.integers(0, 2)))
        return tuple((draw(data(kind.key)), draw(data(kind.value))) for _ in count)
    assert isinstance(kind, TensorType)
    size = int(np.prod([d or 0 for d in kind.shape], dtype=int))
    if kind.dtype is DType.STRING:
        texts = draw(st.lists(TEXTS, min_size=size, max_size=size))
        return tuple(texts) if kind.shape else texts[0]
    return draw(numbers(kind.dtype, size)).reshape(kind.shape)


def numbers(dtype: DType, size: int) -> st.SearchStrategy[Any]:
    if dtype is DType.BF16:
        words = st.lists(st.integers(0, 2**16 - 1), min_size=size, max_size=size)
        return words.map(lambda w: (np.array(w, np.uint32) << 16).view(np.float32))
    if dtype in FLOATS:
        of = FLOATS[dtype]
        width = np.dtype(of).itemsize * 8
        items: Any = st.floats(width=width)  # type: ignore[call-overload]
    elif dtype is DType.BOOL:
        of, items = np.bool_, st.booleans()  # type: ignore[assignment]
    else:
        of = CARRIED.get(dtype) or np.dtype(str(dtype)).type  # type: ignore[assignment]
        low, high = RANGES.get(dtype) or (np.iinfo(of).min, np.iinfo(of).max)  # type: ignore[type-var]
        items = st.integers(int(low), int(high))
    return st.lists(items, min_size=size, max_size=size).map(lambda v: np.array(v, of))


@st.composite
def values(draw: Any) -> Value:
    if draw(st.booleans()):
        return Value(draw(TENSORS), Blob(draw(TEXTS), draw(st.integers(0, 2**64 - 1))))
    kind = draw(CONSTANT_TYPES)
    return Value(kind, draw(data(kind)))


@st.composite
def blocks(draw: Any, scope: frozenset[str], depth: int) -> Block:
    names = set(scope)

    def fresh() -> str:
        name: str = draw(WORDS)
        while name in names:
            name += "_"
        names.add(name)
        return name

    inputs = tuple(Named(fresh(), draw(TYPES)) for _ in range(draw(st.integers(0, depth and 2))))
    operations = []
    for _ in range(draw(st.integers(0, 3))):
        known = st.sampled_from(sorted(names)).map(Ref) if names else values()
        arguments: st.SearchStrategy[tuple[Argument, ...]] = st.lists(
            known | values(), max_size=3
        ).map(tuple)
        nested = range(draw(st.integers(0, 1))) if depth < 2 else ()
        op = draw(WORDS)
        inputs_of = draw(st.dictionaries(WORDS, arguments, max_size=2))
        attributes = draw(st.dictionaries(WORDS, values(), max_size=2))
        inner = tuple(draw(blocks(frozenset(names), depth + 1)) for _ in nested)
        outputs = tuple(Named(fresh(), draw(TYPES)) for _ in range(draw(st.integers(0, 2))))
        operations.append(Operation(op, inputs_of, outputs, attributes, inner))
    chosen = draw(st.lists(st.sampled_from(sorted(names)), max_size=2)) if names else []
    return Block(inputs, tuple(operations), tuple(chosen))


@st.composite
def functions(draw: Any) -> Function:
    names = draw(st.lists(WORDS, max_size=2, unique=True))
    inputs = tuple(Named(name, draw(TYPES)) for name in names)
    opset = draw(st.sampled_from(["CoreML5", "CoreML6", "CoreML7", "CoreML8", "CoreML9"]))
    return Function(draw(WORDS), opset, inputs, draw(blocks(frozenset(names), 0)))


PROGRAMS = st.lists(functions(), min_size=1, max_size=2, unique_by=lambda f: f.name).map(
    lambda listed: Program({f.name: f for f in sorted(listed, key=lambda f: f.name)})
)
