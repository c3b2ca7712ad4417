"""The build root: a Debian file system unpacked from locked .deb files, no script of theirs run.

What packages would do in their maintainer scripts and a compiler needs (the merged ``/usr``,
``/etc/passwd``, the ``awk`` and ``cc`` alternatives) is data in ``data/buildroot``. So the root
is a pure function of its .deb files, needs no root user, and is the same on every host.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from pinwheel.buildroot.lastuse import lock_of, mark_used
from pinwheel.console import Console
from pinwheel.errors import UnpackError
from pinwheel.files import file_lock, make_directory, remove_tree, writing
from pinwheel.inputs.deb import MERGED, unpack_deb
from pinwheel.recipe.data import RootLayout, root_data
from pinwheel.recipe.lock import Input, Role
from pinwheel.toolkit.kept import is_whole, keep

# Raise when the unpacking itself changes what a root holds: old roots are then unpacked anew.
REVISION = 1

# Where the sandbox mounts things; the root is read-only, so the directories must be there.
MOUNT_POINTS = ("build", "cache", "dev", "logs", "opt", "out", "proc", "tmp")


def root_digest(inputs: Sequence[Input], layout: RootLayout) -> str:
    """Name of the root that these .deb files and this layout make, 64 hexadecimal digits."""
    lines = [f"revision {REVISION}", layout.model_dump_json()]
    lines += [f"{i.sha256} {i.path}" for i in inputs]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def unpack_root(
    inputs: Sequence[Input], paths: Mapping[str, Path], cache: Path, console: Console
) -> Path:
    """The unpacked root for these .deb files, made now or found unchanged in the cache.

    Args:
        inputs: the lock's inputs with role ``root``.
        paths: their files in the store, by sha256.
        cache: directory that holds roots.
        console: where progress goes.

    Raises:
        UnpackError: a damaged archive, or packages that do not make a root.
        DiskFullError, NotWritableError: from the file system.
    """
    layout = root_data().layout
    debs = sorted((i for i in inputs if Role.ROOT in i.roles), key=lambda i: (i.name, i.version))
    root = cache / root_digest(debs, layout)[:32]
    with file_lock(lock_of(root)):
        mark_used(root)
        if is_whole(root, "build root", console):
            return root
        partial = cache / f"{root.name}.partial"
        remove_tree(partial)  # left by a process that was killed
        make_directory(partial)
        with console.progress(len(debs), "packages", "unpacking the build root") as progress:
            with writing(partial):
                _directory(partial)
                _directory(partial / "usr")
                for name in sorted(MERGED):
                    _directory(partial / "usr" / name)
                    (partial / name).symlink_to(f"usr/{name}")
            for item in debs:
                progress.describe(item.name)
                unpack_deb(paths[item.sha256], partial, usr_merge=True)
                progress.advance(1)
        with writing(partial):
            _complete(partial, layout)
        keep(partial, root)
    return root


def _complete(root: Path, layout: RootLayout) -> None:
    """Do what maintainer scripts would have done and a build needs."""
    for name in MOUNT_POINTS:
        if not (root / name).is_dir():
            _directory(root / name)
    for link, target in layout.links.items():
        path = root / link
        if not (path.parent / target).exists():
            raise _lacking(target, link, "links")
        if not path.is_symlink():
            path.symlink_to(target)
    for copy, source in layout.copies.items():
        if not (root / source).is_file():
            raise _lacking(source, copy, "copies")
        _file(root / copy, (root / source).read_bytes())
    for name, text in layout.files.items():
        _file(root / name, text.encode())


def _lacking(source: str, made: str, table: str) -> UnpackError:
    return UnpackError(
        f"The build root has no {source} to make /{made} of: a package is missing.",
        evidence=[f"data/buildroot, [layout.{table}]: {made} = {source}"],
        next_step="Write the lock anew (pinwheel lock), or correct the data file.",
    )


# Modes are said, so that the umask of whoever unpacks is no part of the root.
def _directory(path: Path) -> None:
    path.mkdir(exist_ok=True)
    path.chmod(0o755)


def _file(path: Path, data: bytes) -> None:
    if not path.parent.is_dir():
        _directory(path.parent)
    path.write_bytes(data)
    path.chmod(0o644)
