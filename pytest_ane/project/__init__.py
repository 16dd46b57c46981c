"""The project layer: opened models, stacks, preflight. Knows nothing of pytest."""
