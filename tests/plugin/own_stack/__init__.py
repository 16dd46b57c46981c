"""The example of a stack of one's own packages, and faults in it."""
