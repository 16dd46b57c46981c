"""Tests of `pytest_ane.throughput`."""
