"""pinwheel: reproducible builds of pinned vLLM wheels."""

from __future__ import annotations

__all__ = ["__version__"]


def __getattr__(name: str) -> str:
    if name == "__version__":  # read lazily: importlib.metadata costs start-up time
        from importlib.metadata import version

        return version("vllm-pinwheel")
    raise AttributeError(name)
