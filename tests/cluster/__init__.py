"""Tests of `pytest_ane.cluster`."""
