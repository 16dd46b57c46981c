"""Tests of `pytest_ane.tools`."""
