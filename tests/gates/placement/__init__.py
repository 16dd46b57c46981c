"""Tests of the placement forecast."""
