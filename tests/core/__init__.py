"""Tests of `pytest_ane.core`."""
