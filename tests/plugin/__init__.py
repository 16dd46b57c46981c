"""Tests of the pytest plugin, run in projects of their own."""
