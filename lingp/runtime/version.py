"""The version of lingp."""

__version__ = "0.1.0"
