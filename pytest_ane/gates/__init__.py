"""The gates: placement, compression, fidelity, behaviour, throughput; equals."""
