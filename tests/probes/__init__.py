"""Probes and references."""
