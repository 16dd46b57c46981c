"""Tools: a command each, with what it works out and the words it says."""
