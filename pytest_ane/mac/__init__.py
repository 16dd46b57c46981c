"""Core ML away from a Mac, and what only a Mac can tell: predictions, replays, the first run."""
