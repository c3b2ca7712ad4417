"""pinprobe: a few CUDA operators, built to see a build system work."""

from .version import __version__, __version_tuple__

__all__ = ["__version__", "__version_tuple__"]
