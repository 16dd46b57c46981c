"""Tests of `pytest_ane.sources`."""
