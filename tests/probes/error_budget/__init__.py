"""Tests of error budgets."""
