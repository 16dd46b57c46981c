"""What a model declares, its program has."""

from __future__ import annotations

from pathlib import Path

from pytest_ane.core.errors import ProgramError
from pytest_ane.mil.records import Model, StateType


def check_boundary(model: Model, file: Path) -> None:
    """Check that the program has what the model declares: what it lacked could not be bound.

    Raises:
        ProgramError: a function it does not have, or an input, state or output that the function
            does not.
    """
    if model.function and model.function not in model.program.functions:
        raise ProgramError(
            f"{file}: the model declares the function {model.function!r}, which its program does "
            "not have."
        )
    function = model.main
    states = {i.name for i in function.inputs if isinstance(i.type, StateType)}
    for word, features, names in (
        ("input", model.inputs, {i.name for i in function.inputs} - states),
        ("state", model.states, states),
        ("output", model.outputs, set(function.block.outputs)),
    ):
        for feature in features:
            if feature.name not in names:
                raise ProgramError(
                    f"{file}: the model declares the {word} {feature.name!r}, "
                    "which its program does not have."
                )
