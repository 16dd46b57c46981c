"""coremltools' own tests, run against our executor."""
