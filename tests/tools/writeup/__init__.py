"""Tests of write-ups' pages."""
