"""The one place of the version."""

__version__ = "0.3.0"
"""The version of this library."""
