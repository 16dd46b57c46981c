"""A project's opened models, packages and stacks, for pytest's plugin, command line and searches.

It knows nothing of pytest.
"""
