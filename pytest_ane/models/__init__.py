"""Models: where weights come from, how architectures are cut, run in float32 and converted."""
