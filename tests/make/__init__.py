"""Tests of `pytest_ane.make`."""
