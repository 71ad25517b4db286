"""The one place of the version."""

__version__ = "0.4.0"
"""The version of this library."""
