"""What a graph knows of a program's values."""

from __future__ import annotations

from pytest_ane.gates.placement._graph import Depends, Graph, Origin, Site
from pytest_ane.mlprogram.records import Operation, Ref
from tests.gates.placement.programs import const, function, half, ints, op, value

IN = {"x": half(1, 8, 1, None), "n": ints(1)}


def graph(*operations: Operation) -> tuple[Graph, dict[str, Site]]:
    made = Graph(function(*operations, inputs=IN))
    return made, {site.operation.name: site for site in made.sites()}


def test_origins_of_a_slice_bounded_by_a_shape_and_by_a_value() -> None:
    made, _ = graph(
        const("c", [1, 2]),
        op("shape", "s", ints(4), x="x"),
        op("slice_by_index", "a", half(1, 8, 1, None), x="x", begin="c", end="s"),
        op("slice_by_index", "b", half(1, 8, 1, None), x="x", begin="c", end="n"),
    )
    assert made.origin(Ref("c")) == Origin()
    assert made.origin(Ref("s")) == Origin(Depends.SHAPES)
    assert made.origin(Ref("a")) == Origin(Depends.VALUES, Depends.SHAPES)
    assert made.origin(Ref("b")) == Origin(Depends.VALUES, Depends.VALUES)
    made = Graph(function(op("shape", "s", ints(2), x="x"), inputs={"x": half(1, 8)}))
    list(made.sites())
    assert made.origin(Ref("s")) == Origin()


def test_a_cycle_in_a_hostile_program_ends() -> None:
    _, sites = graph(
        op("constexpr_lut_to_dense", "a", half(4), indices="b", lut="b"),
        op("constexpr_lut_to_dense", "b", half(4), indices="a", lut="a"),
        op("constexpr_lut_to_dense", "a", half(4), indices="b", lut="b"),
    )
    assert len(list(sites["a"].compressed_by(Ref("a")))) <= 3


def test_the_scale_of_an_image_is_at_the_boundary_and_another_product_is_not() -> None:
    made = Graph(
        function(
            op("mul", "x__scaled__", half(1), x="x", y=value(0.5)),
            op("add", "x__biased__", half(1), x="x__scaled__", y=value(0.5)),
            op("cast", "in", half(1), x="x__biased__"),
            op("mul", "mine", half(1), x="x", y=value(0.5)),
            op("mul", "in__scaled__", half(1), x="in", y=value(0.5)),
            op("add", "n__biased__", half(1), x="x", y=value(0.5)),
            op("cast", "p", half(1), x="mine"),
            op("classify", "label", half(1), probabilities="p"),
            inputs=IN,
        )
    )
    assert {site.operation.name: site.no_compute for site in made.sites()} == {
        **{"x__scaled__": "image scaling", "x__biased__": "image scaling"},
        **{"in": "boundary cast", "mine": "", "in__scaled__": "", "n__biased__": ""},
        **{"p": "boundary cast", "label": "classify"},
    }
