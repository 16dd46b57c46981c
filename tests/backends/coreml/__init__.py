"""Tests of programs and packages."""
