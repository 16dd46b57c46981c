"""Tests of throughput."""
