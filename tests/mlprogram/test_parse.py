"""The text of programs: every form the compiler writes, and one sentence for all else."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.parse import parse
from pytest_ane.mlprogram.records import (
    Blob,
    DictionaryType,
    DType,
    ListType,
    Named,
    Operation,
    Ref,
    StateType,
    TensorType,
    TupleType,
    Value,
)

FULL = """\
program(1.0)
[buildInfo = dict<tensor<string, []>, tensor<string, []>>({{"coremlc-version", "3500.32.1"}, {"a", "b"}})]
{
    func main<ios17>(tensor<int32, [1]> n, tensor<fp32, [1, ?]> x) [FlexibleShapeInformation = \
tuple<tuple<tensor<string, []>, dict<tensor<string, []>, tensor<int32, [?]>>>, \
tuple<tensor<string, []>, dict<tensor<string, []>, list<tensor<int32, [2]>, ?>>>>\
((("DefaultShapes", {{"x", [1, 1]}}), ("RangeDims", {{"x", [[1, 1], [1, 32000]]}})))] {
            tensor<int32, []> axis = const()[name = tensor<string, []>("axis"), \
val = tensor<int32, []>(-1)];
            tensor<bool, []> no = const()[name = tensor<string, []>("no"), \
val = tensor<bool, []>(false)];
            tensor<fp32, [2, 2]> m = const()[name = tensor<string, []>("m"), \
val = tensor<fp32, [2, 2]>([[-0x1.8p-4, inf], [nan, 0x0p+0]])];
            tensor<fp16, [4, 2]> w = const()[name = tensor<string, []>("w"), \
val = tensor<fp16, [4, 2]>(BLOBFILE(path = tensor<string, []>("@model_path/weights/weight.bin"), \
offset = tensor<uint64, []>(64)))];
            tensor<fp32, [1, ?]> y = concat(axis = axis, interleave = no, values = (x, x))\
[name = tensor<string, []>("y")];
            tensor<fp32, [1, ?]> a, tensor<fp32, [1, ?]> b = ios17.split(axis = axis, x = y)\
[name = tensor<string, []>("s")];
        } -> (a, b);
}
"""  # noqa: E501


def body(statements: str, *, opset: str = "ios18", outputs: str = "x") -> str:
    return (
        f"program(1.3)\n{{\n  func main<{opset}>(tensor<fp16, [2]> x) {{\n{statements}\n"
        f"  }} -> ({outputs});\n}}\n"
    )


def operations(statements: str) -> list[Operation]:
    return list(parse(body(statements)).walk())


def constant(kind: str, literal: str) -> Value:
    (op,) = operations(f"{kind} c = const()[val = {kind}({literal})];")
    return op.attributes["val"]


def complaint(text: str) -> str:
    with pytest.raises(ProgramError) as caught:
        parse(text, "m.mil")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("m.mil:")
    assert message.endswith(".")
    return message.removeprefix("m.mil:")


def test_a_whole_program() -> None:
    function = parse(FULL).main
    assert function.opset == "CoreML7"
    assert function.inputs == (
        Named("n", TensorType(DType.INT32, (1,))),
        Named("x", TensorType(DType.FP32, (1, None))),
    )
    assert function.block.outputs == ("a", "b")
    axis, no, m, w, concat, split = function.walk()
    assert axis.attributes["name"].data == "axis"
    assert axis.attributes["val"].data == -1
    assert no.attributes["val"].data.tolist() is False
    np.testing.assert_array_equal(m.attributes["val"].data, [[-0.09375, math.inf], [math.nan, 0]])
    assert w.attributes["val"].data == Blob("@model_path/weights/weight.bin", 64)
    assert concat.inputs["values"] == (Ref("x"), Ref("x"))
    assert split.op == "split"
    assert [o.name for o in split.outputs] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "record"),
    [("ios15", "CoreML5"), ("ios16", "CoreML6"), ("ios18", "CoreML8"), ("ios26", "CoreML9"),
     ("CoreML8", "CoreML8"), ("ios99", "ios99")],
)  # fmt: skip
def test_opsets(text: str, record: str) -> None:
    assert parse(body("", opset=text)).main.opset == record


@pytest.mark.parametrize(
    ("kind", "literal", "value"),
    [
        ("fp16", "0x1.8p+1", 3.0),
        ("tensor<fp16, []>", "-inf", -math.inf),
        ("fp32", "0x1p-149", 2.0**-149),
        ("fp32", "-0.5", -0.5),
        ("fp64", "1e-3", 1e-3),
        ("bf16", "0x1.8p+1", 3.0),
        ("int32", "-7", -7),
        ("uint64", "18446744073709551615", 2**64 - 1),
        ("bool", "true", True),
        ("string", r'"a\"b\\c\n\x41\101\u00e9é"', 'a"b\\c\nAAéé'),
        ("tensor<int32, [3]>", "[1, 2,\n 3]", [1, 2, 3]),
        ("tensor<int4, [2]>", "[-8, 7]", [-8, 7]),
        ("tensor<uint8, [2, 0]>", "[[], []]", [[], []]),
        ("tensor<uint8, [2, 0]>", "[]", [[], []]),
        ("tensor<fp32, [2, 1, 2]>", "[[[1, 2]], [[3, 0x1p+2]]]", [[[1, 2]], [[3, 4]]]),
        ("tensor<string, [2]>", '["a", "b"]', ("a", "b")),
        ("tensor<string, [0]>", "[]", ()),
        ("list<tensor<int32, [2]>, ?>", "[[1, 1], [2, 4000]]", ([1, 1], [2, 4000])),
        ("list<int32, 2>", "[1, 2]", (1, 2)),
        ("list<string, ?>", "[]", ()),
        ("tuple<string, int32>", '("a", 1)', ("a", 1)),
        ("tuple<>", "()", ()),
        ("dict<string, fp32>", '{{"a", 1.5}, {"b", -2}}', (("a", 1.5), ("b", -2))),
    ],
)
def test_values(kind: str, literal: str, value: object) -> None:
    assert plain(constant(kind, literal).data) == value


def plain(data: object) -> object:
    if isinstance(data, np.ndarray):
        return data.tolist()
    return tuple(map(plain, data)) if isinstance(data, tuple) else data


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("fp16", TensorType(DType.FP16)),
        ("tensor< bf16 ,[1,?] >", TensorType(DType.BF16, (1, None))),
        ("list<string, 3>", ListType(TensorType(DType.STRING), 3)),
        ("tuple<bool, int8>", TupleType((TensorType(DType.BOOL), TensorType(DType.INT8)))),
        ("dict<string, fp64>", DictionaryType(TensorType(DType.STRING), TensorType(DType.FP64))),
        ("state<tensor<fp16, [1, 8]>>", StateType(TensorType(DType.FP16, (1, 8)))),
    ],
)
def test_types(text: str, kind: object) -> None:
    (op,) = operations(f"{text} y = make(x = x);")
    assert op.outputs == (Named("y", kind),)  # type: ignore[arg-type]


def test_an_operation_without_results() -> None:
    statements = """
        state<tensor<fp16, [2]>> s = make();
        write_state(data = x, input=s)[name = string("w")]; // the older form has no result
        tensor<fp16, [2]> r = read_state(input = s)[name = string("r")];
        tensor<fp16, [2]> u = coreml_update_state(state = s, value = r);
    """
    _, write, read, update = operations(statements)
    assert (write.op, write.outputs) == ("write_state", ())
    assert write.name == "write_state"
    assert read.inputs == {"input": (Ref("s"),)}
    assert update.inputs == {"state": (Ref("s"),), "value": (Ref("r"),)}


def test_values_as_arguments() -> None:
    (op,) = operations("fp16 y = f(a = fp16(0x1p+0), b = (x, int32(2)), c = (x), d = ());")
    assert isinstance(op.inputs["a"][0], Value)
    assert op.inputs["b"][0] == Ref("x")
    assert isinstance(op.inputs["b"][1], Value)
    assert op.inputs["c"] == (Ref("x"),)
    assert op.inputs["d"] == ()


@pytest.mark.parametrize("name", ["string", "tensor", "state", "list", "func", "program", "fp16"])
def test_values_named_as_words_of_the_language(name: str) -> None:
    statements = f"""
        tensor<fp16, [2]> {name} = relu(x = x);
        tensor<fp16, [2]> z = add(x = {name}, y = {name});
        tensor<fp16, [2]> c = concat(values = ({name}, x));
    """
    assert list(parse(body(statements, outputs=name)).walk())[1].inputs["y"] == (Ref(name),)


def test_nested_blocks() -> None:
    statements = """
        tensor<fp16, [2]> l = while_loop(loop_vars = (x))[name = string("l")]
            loop_cond(tensor<fp16, [2]> i) { bool t = test(x = i); } -> (t),
            (tensor<fp16, [2]> j) { tensor<fp16, [2]> k = relu(x = j); } -> (k);
        tensor<fp16, [2]> c = cond(pred = l) () { } -> (x) () { } -> (l);
    """
    loop, test, relu, cond = operations(statements)
    assert [b.inputs[0].name for b in loop.blocks] == ["i", "j"]
    assert (test.op, relu.op) == ("test", "relu")
    assert [b.outputs for b in cond.blocks] == [("x",), ("l",)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1: the text ends too early; the file is cut short."),
        ("program(1.0) {\n", "2: the text ends too early; the file is cut short."),
        ("program(1.0) {\n}", "1:9: the program has no function."),
        ("version https", "1:1: 'version' has no place here."),
        (body("tensor<fp16, [2]> y relu(x = x);"), "4:21: 'relu' has no place here."),
        (body('string y = const()[val = string("a)];'),
         "4:33: a text that does not end, or of more than 65,535 escapes."),
        (body(r'string y = const()[val = string("\q")];'), r"4:33: '\\q' is no escape."),
        (body(r'string y = const()[val = string("\ud800")];'), r"4:33: '\\ud800' is no character."),
        (body("float y = f();"), "4:7: 'y' has no place here."),
        (body("tensor<fp17, [2]> y = f();"), "4:1: 'tensor<fp17, [2]>' is no type."),
        (body("tensor<fp16, [1_0]> y = f();"), "4:1: 'tensor<fp16, [1_0]>' is no type."),
        (body("tensor<fp16, [2,,]> y = f();"), "4:1: 'tensor<fp16, [2,,]>' is no type."),
        *((body(f"tensor<fp16, [{shape}]> y = f();"),
           f"4:1: shape {said} has more elements than fit anywhere.") for shape, said in (
               ("1099511627776, 1099511627776", "(1099511627776, 1099511627776)"),
               ("9223372036854775808", "(9223372036854775808,)"))),
        (body(f"tensor<fp16, [{', '.join(['1'] * 33)}]> y = f();"),
         "4:1: a shape has 33 dimensions, more than any tensor."),
        (body("state<string> y = f(); state<list<string, 2>> z = f();"),
         "4:24: a state holds a tensor, nothing else."),
        (body("fp16 a, fp16 b = const()[val = fp16(1)];"),
         "4:18: function 'main', const 'a': a constant has 2 results."),
        (body("fp16 y = f(a = x, a = x);"), "4:19: 'a' is defined twice."),
        (body("fp16 y = f()[n = int32(1), n = int32(1)];"), "4:28: 'n' is defined twice."),
        (body("fp16 x = relu(x = x);"), "4:10: function 'main', relu 'x': 'x' is defined twice."),
        (body("fp16 y = relu(x = z);"),
         "4:10: function 'main', relu 'y': its input 'z' is not defined before it."),
        (body("", outputs="y"), "3:8: function 'main': its output 'y' is not defined."),
        (body("fp16 y = cond() (fp16 a, fp16 a) { } -> (a);"),
         "3:8: function 'main': 'a' is defined twice."),
        ("program(1.0) { func a<ios15>() { } -> (); func a<ios15>() { } -> (); }",
         "1:48: 'a' is defined twice."),
    ],
)  # fmt: skip
def test_what_is_wrong_and_where(text: str, message: str) -> None:
    assert complaint(text) == message


@pytest.mark.parametrize(
    ("kind", "literal"),
    [
        ("int32", "1.5"), ("int32", "[1]"), ("int8", "128"), ("uint4", "16"), ("int32", "1_0"),
        ("int32", '"a"'), ("fp16", "0x1p+16"), ("fp32", "zero"), ("fp32", "0x1p+9999"),
        ("fp64", "1e999"), ("fp64", "-" + "9" * 400),
        ("bool", "1"), ("string", "a"), ("tensor<int32, [2]>", "[1]"),
        ("tensor<int32, [2]>", "[1,,2]"), ("tensor<int32, [2, 2]>", "[1, 2, 3, 4]"),
        ("tensor<int32, [2, 2]>", "[[1, 2], [3]]"), ("tensor<int32, [2]>", "[[1], [2]]"),
        ("tensor<int32, [2]>", "1"), ("tensor<int32, [?]>", "[1]"),
        ("tensor<int32, [2]>", "(1, 2)"),
        ("tensor<int32, [0]>", "[1]"), ("tensor<fp16, [1099511627776, 0]>", "[[]]"),
        ("tensor<string, [2]>", '["a"]'), ("tensor<string, []>", '["a"]'),
        ("list<int32, 3>", "[1, 2]"), ("list<int32, ?>", "1"), ("tuple<int32>", "(1, 2)"),
        ("tuple<int32>", "[1]"), ("dict<string, int32>", '{{"a", "b"}}'),
        ("dict<string, int32>", '("a", 1)'), ("state<fp16>", "1"), ("int32", "9" * 5000),
        ("list<int32, ?>", 'BLOBFILE(path = string("a"), offset = uint64(1))'),
        ("list<fp16, ?>", '[BLOBFILE(path = string("a"), offset = uint64(1))]'),
        ("tuple<fp16>", '(BLOBFILE(path = string("a"), offset = uint64(1)))'),
        ("fp16", 'BLOBFILE(path = string("a"))'),
        ("fp16", "BLOBFILE(path = string(1), a = int8(1))"),
        ("fp16", 'BLOBFILE(path = string("a"), offset = string("b"))'),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_their_type(kind: str, literal: str) -> None:
    message = complaint(body(f"{kind} c = const()[val = {kind}({literal})];"))
    assert message.startswith("4:")


def nested_blocks(depth: int) -> str:
    return "".join(f"fp16 v{i} = cond() () {{" for i in range(depth)) + "} -> (x);" * depth


def literal(brackets: str) -> str:
    return f"fp16 c = const()[val = fp16({brackets}"


@pytest.mark.parametrize(
    ("statement", "end"),
    [
        (nested_blocks(33), "nest deeper than 32."),
        ("list<" * 40 + "fp16" + ", 1>" * 40 + " y = f();", "nest deeper than 32."),
        ("tuple<" * 60 + "fp16" + ">" * 60 + " y = f();", "nest deeper than 32."),
        *((literal(a * 300 + b * 300 + ")];"), "") for a, b in ("[]", "()", "{}")),
        *((literal(a * 50_000), "") for a in "[({"),
        # What nests without end is not read to its end.
        (nested_blocks(20_000), ": brackets nest too deep."),
        (literal("(" * 20_000), ": brackets nest too deep."),
        ("list<" * 20_000, ": brackets nest too deep."),
    ],
)
def test_nesting_too_deep(statement: str, end: str) -> None:
    assert complaint(body(statement)).endswith(end)


def test_as_much_as_a_text_may_have() -> None:
    assert constant("string", '"' + r"\n" * 65_535 + '"').data == "\n" * 65_535
    message = complaint(body('string c = const()[val = string("' + r"\n" * 65_536 + '")];'))
    assert message == "4:33: a text that does not end, or of more than 65,535 escapes."
    assert len(operations(nested_blocks(32))) == 32
    lines = [
        f'tensor<int32, [4]> c{i} = const()[name = string("c{i}"), '
        f"val = tensor<int32, [4]>([0, 0, 0, {i}])];"
        for i in range(2000)
    ]
    assert len(operations("\n".join(lines))) == 2000
    numbers = np.arange(200_000, dtype=np.int32)
    literal = f"[{', '.join(map(str, numbers.tolist()))}]"
    data = constant("tensor<int32, [200000]>", literal).data
    np.testing.assert_array_equal(data, numbers)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_a_damaged_text_gives_a_program_or_one_sentence(seed: int, edits: int) -> None:
    generator = random.Random(seed)
    text = FULL
    for _ in range(edits):
        at, other = generator.randrange(len(text)), generator.randrange(len(text))
        snippet = text[other : other + generator.randrange(12)]
        text = text[:at] + snippet + text[at + generator.randrange(12) :]
    judged(text)


@settings(max_examples=150, deadline=None)
@given(
    st.binary(max_size=200).map(lambda data: data.decode("latin-1"))
    | st.text('[]{}()<>,;="\\ x01?.-', max_size=60)
)
def test_random_bytes_and_marks(text: str) -> None:
    for whole in (text, body(text), body(f"fp16 c = const()[val = {text}")):
        judged(whole)


def judged(text: str) -> None:
    try:
        message = f"m.mil:{parse(text, 'm.mil').main.name}"
    except ProgramError as error:
        message = str(error)
    assert message.startswith("m.mil:")
