"""Pairs of packages as users convert them, one right and one wrong, through the fidelity gate."""
