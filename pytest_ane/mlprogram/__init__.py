"""Errors, verdicts, digests, files: what every other package may use; standard library only."""
