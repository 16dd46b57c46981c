"""Records of measurements: runs, evidence, history, ledgers."""
