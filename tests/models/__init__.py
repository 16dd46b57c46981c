"""Models: sources, families, chains."""
