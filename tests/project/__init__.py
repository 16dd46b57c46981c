"""Opened models, packages, stacks."""
