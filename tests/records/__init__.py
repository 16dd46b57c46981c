"""Tests of `pytest_ane.records`."""
