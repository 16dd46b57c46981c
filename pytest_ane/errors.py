"""The errors a person may see: one sentence that says what is wrong, where, and what to do."""

from __future__ import annotations


class AneError(Exception):
    """Base of every error this package raises on bad input or a bad environment.

    `str(error)` is written for the person at the terminal; the plugin and the command line
    print it without a traceback.
    """


class ManifestError(AneError):
    """`shards.toml`, an option or a selection is wrong."""


class SourceError(AneError):
    """A weight source (GGUF, safetensors) is missing, broken or lacks a tensor."""


class ProgramError(AneError):
    """A Core ML package cannot be read: missing, truncated, hostile or of an unsupported kind."""


class ExecutionError(AneError):
    """A program cannot be run on the given inputs: wrong name, dtype, shape, or unknown op."""


class BuildError(AneError):
    """A shard could not be converted, compressed or stored."""


class CacheError(AneError):
    """The cache folder cannot be read or written."""
