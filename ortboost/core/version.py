"""The version of this package; the build reads it from here."""

__all__ = ["__version__"]

__version__ = "0.2.0.dev0"
