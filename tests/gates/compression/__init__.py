"""Tests of `pytest_ane.gates.compression`."""
