"""The version of this package, on its own so that the build can read it."""

__version__ = "0.1.0"
