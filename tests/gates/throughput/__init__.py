"""Tests of `pytest_ane.gates.throughput`."""
