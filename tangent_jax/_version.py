"""The version, in one place."""

__version__ = "0.4.0"
"""The version of this library."""
