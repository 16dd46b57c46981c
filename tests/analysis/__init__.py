"""Tests of `pytest_ane.analysis`."""
