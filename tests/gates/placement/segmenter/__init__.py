"""Core ML's segmenter: support, costs, path, and the score on public plans."""
