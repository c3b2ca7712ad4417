"""Finding locked index inputs by project and file name."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from pinwheel.http import UnreachableError
from pinwheel.recipe.lock import Input
from pinwheel.simple_api import Pages, stated_sha256

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage


def find(pages: Pages, index: str, item: Input) -> DistributionPackage:
    """The file of an index input on one index.

    Raises:
        UnreachableError: no page, no such file on it, or one the page itself says is another.
    """
    files = [f for f in pages.files(index, item.name) if unquote(f.filename) == item.path]
    if not files:
        raise UnreachableError(index, f"has no file {item.path} of {item.name}", status=404)
    file = next((f for f in files if stated_sha256(f) == item.sha256), files[0])
    stated = stated_sha256(file)
    if stated and stated != item.sha256:
        raise UnreachableError(
            index,
            f"offers other bytes under the name {item.path} (sha256 {stated})",
            status=409,
        )
    if file.url.startswith("file:") and not index.startswith("file:"):
        # A page from elsewhere has no say in which local files are read.
        raise UnreachableError(index, f"links {item.path} to a file of this machine")
    return file
