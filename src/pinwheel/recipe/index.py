"""Looks up single files on the package index while a lock is resolved."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from packaging.version import InvalidVersion, Version
from pypi_simple import DistributionPackage

from pinwheel.errors import ResolveError
from pinwheel.http import Client, UnreachableError
from pinwheel.simple_api import NoProjectPageError, read_page


def project_files(client: Client, indexes: Iterable[str], name: str) -> list[DistributionPackage]:
    """All files of a project, from the first index that has the project.

    The first index wins whole: mixing several would let whoever may upload to one of them decide
    about names of another (dependency confusion). For the same reason an index that cannot be
    asked is an error, not a reason to ask the next.

    Raises:
        ResolveError: no index has it, or its page cannot be read.
        FetchError: an index could not be asked.
    """
    for base in indexes:
        try:
            return list(read_page(client, base, name))
        except NoProjectPageError as error:
            raise ResolveError(
                f"the index page of {name} cannot be read",
                evidence=[error.what],
                next_step="Check that the configured index is a simple API (PEP 503 or 691).",
            ) from error
        except UnreachableError as error:
            if not error.absent:
                raise
    raise ResolveError(
        f"no configured index has a project {name}",
        next_step="Check the spelling in the recipe, or add an index that has it.",
    )


def choose_file(
    files: Iterable[DistributionPackage],
    name: str,
    version: str,
    fits: Callable[[DistributionPackage], bool],
    wanted: str,
) -> DistributionPackage:
    """The file of ``version`` that ``fits``; yanked files count, since the version is pinned.

    Args:
        files: the files of the project.
        name: project, for the error.
        version: exact version, compared as PEP 440 does.
        fits: which kind of file is wanted.
        wanted: the same in words.

    Raises:
        ResolveError: none, or more than one.
    """
    target = Version(version)
    found = [f for f in files if _version(f) == target and fits(f)]
    if len(found) != 1:
        raise ResolveError(
            f"the index has {len(found) or 'no'} files that are {wanted} of {name} {version}",
            evidence=sorted(f.filename for f in found),
            next_step="Correct the version in the recipe, or use an index that has it.",
        )
    return found[0]


def _version(file: DistributionPackage) -> Version | None:
    try:
        return Version(file.version or "")
    except InvalidVersion:
        return None
