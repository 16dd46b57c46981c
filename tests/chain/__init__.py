"""Tests of `pytest_ane.project`."""
