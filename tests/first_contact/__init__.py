"""The kit for the first run on a Mac."""
