"""Tests of the decoder core and of the families on it."""
