"""Fuzzing of what reads untrusted files: `python -m tests.fuzz TARGET`, or `make fuzz`."""
