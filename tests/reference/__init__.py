"""Tests of the executor."""
