"""Tests of `pytest_ane.metrics`."""
