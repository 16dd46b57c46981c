"""The last operation of classifiers."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.reference.registry import register


@register("classify", moves=True)
def classify(probabilities: Any, classes: Any) -> Any:
    """The class of the highest probability (the first of several), and probabilities by class.

    Returns:
        A text or an integer; a dict from classes, of one of these types, to floats.
    """
    labels = [c if isinstance(c, str) else int(c) for c in classes]
    values = np.ravel(probabilities)
    if len(labels) != values.size or not labels:
        raise ValueError(f"{values.size} probabilities for {len(labels)} classes")
    by_class = dict(zip(labels, values.tolist(), strict=True))
    return labels[int(np.argmax(values))], by_class
