"""The version of this package; whoever builds a wheel writes ``_version.py``."""

try:
    from ._version import __version__, __version_tuple__
except ImportError:
    __version__ = "dev"
    __version_tuple__ = (0, 0, "dev")

__all__ = ["__version__", "__version_tuple__"]
