"""The version, in one place."""

__version__ = "0.6.0"
"""The version of this library."""
