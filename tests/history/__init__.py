"""Tests of the memory of many runs."""
