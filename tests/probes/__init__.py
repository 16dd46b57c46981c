"""Tests of `pytest_ane.probes`."""
