"""Tests of `pytest_ane.build.palettize`."""
