"""The version, in one place."""

__version__ = "0.5.0"
"""The version of this library."""
