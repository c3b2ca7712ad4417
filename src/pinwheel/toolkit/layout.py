"""Shapes an unpacked CUDA_HOME: moves files into place, adds links, normalises, fingerprints."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from pinwheel.errors import ToolkitError
from pinwheel.files import sha256_file, tree_files, writing
from pinwheel.toolkit.spec import ToolkitSpec

# Every file's time: the zip format's first day, so that nothing built is ever older.
EPOCH = 315532800  # seconds since 1970
_VERSIONED = re.compile(r"(lib.+?\.so)((?:\.[0-9]+)+)")
_NVCC_VERSION = re.compile(rb"Cuda compilation tools, release [0-9.]+, V([0-9]+\.[0-9]+\.[0-9]+)")


def place_part(spec: ToolkitSpec, part: str, raw: Path, names: Iterable[str], tree: Path) -> int:
    """Move a part's unpacked files to where the layout puts them; returns how many.

    Raises:
        ToolkitError: two parts bring the same path with different bytes.
    """
    count = 0
    for name in names:
        target = spec.place(name)
        if not target:
            continue
        source, path = raw / name, tree / target
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if os.path.lexists(path) and not _same(source, path):
                raise ToolkitError(
                    f"Toolkit {spec.name}: two parts bring {target} with different contents.",
                    evidence=[f"second: {name} of {part}"],
                    next_step="Drop one of the two in the provider's layout.",
                )
            source.replace(path)
        count += 1
    return count


def _same(one: Path, other: Path) -> bool:
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and one.readlink() == other.readlink()
    return sha256_file(one) == sha256_file(other)


def add_library_links(directory: Path) -> list[str]:
    """Give each ``libX.so.N`` the unversioned link the linker asks for; returns new names.

    Where there are several (``libX.so.12`` and ``libX.so.12.4.5.8``) the shortest is the SONAME's.
    """
    best: dict[str, str] = {}
    for entry in sorted(p.name for p in directory.iterdir()):
        match = _VERSIONED.fullmatch(entry)
        if match is None:
            continue
        known = best.get(match[1])
        if known is None or (entry.count("."), entry) < (known.count("."), known):
            best[match[1]] = entry
    added = []
    for link, target in sorted(best.items()):
        if not os.path.lexists(directory / link):
            with writing(directory / link):
                (directory / link).symlink_to(target)
            added.append(link)
    return added


def drop_dangling_links(tree: Path) -> list[str]:
    """Remove links to libraries of parts the toolkit does not have; returns their paths.

    Raises:
        ToolkitError: a link is absolute, so the tree could not be moved.
    """
    dropped = []
    for path in list(tree_files(tree)):
        if not path.is_symlink():
            continue
        target = os.readlink(path)  # noqa: PTH115 - the text, not a Path
        inside = os.path.normpath(path.parent / target)
        if target.startswith("/") or not Path(inside).is_relative_to(tree):
            raise ToolkitError(
                f"{path.relative_to(tree)} is a link out of the toolkit.",
                evidence=[f"target: {target}"],
                next_step="Drop it in the provider's layout.",
            )
        if not path.exists():
            path.unlink()
            dropped.append(path.relative_to(tree).as_posix())
    return dropped


def nvcc_profile(spec: ToolkitSpec) -> str:
    """Text of ``bin/nvcc.profile``; every path hangs on nvcc's own, so the tree may be moved.

    TOP, LIBRARIES and INCLUDES are what ``nvcc -v`` prints and CMake's FindCUDAToolkit reads.
    """
    system = "".join(f'"-isystem" "$(TOP)/{path}" ' for path in spec.system_includes)
    return f"""\
TOP              = $(_HERE_)/..
CICC_PATH        = $(TOP)/nvvm/bin
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice

LD_LIBRARY_PATH += $(TOP)/lib64:
PATH            += $(CICC_PATH):$(_HERE_):

INCLUDES        += "-I$(TOP)/include" $(_SPACE_)
SYSTEM_INCLUDES += {system}$(_SPACE_)

LIBRARIES       =+ $(_SPACE_) "-L$(TOP)/lib64/stubs" "-L$(TOP)/lib64"

CUDAFE_FLAGS    +=
PTXAS_FLAGS     +=
"""


def read_nvcc_version(nvcc: Path) -> str:
    """The version nvcc's binary states, read and not run; empty when it states none."""
    found = _NVCC_VERSION.findall(nvcc.read_bytes())
    return found[0].decode() if found else ""


def normalise(tree: Path) -> None:
    """Fixed times and modes everywhere; programs are executable, nothing else is."""
    with writing(tree):
        for path in tree_files(tree):
            if not path.is_symlink():
                path.chmod(0o755 if path.parent.name == "bin" and _is_elf(path) else 0o644)
            os.utime(path, (EPOCH, EPOCH), follow_symlinks=False)
        for directory, _, _ in os.walk(tree, topdown=False):
            Path(directory).chmod(0o755)
            os.utime(directory, (EPOCH, EPOCH))


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def tree_digest(tree: Path) -> str:
    """Fingerprint of a directory: sha256 over sorted paths, kinds, modes and contents.

    Times and owners do not count, so a copied tree keeps its digest.
    """
    digest = hashlib.sha256()
    for path in tree_files(tree):
        name = path.relative_to(tree).as_posix()
        if path.is_symlink():
            line = f"link {name}\0{os.readlink(path)}"  # noqa: PTH115 - the text, not a Path
        else:
            mode = stat.S_IMODE(path.stat().st_mode)
            line = f"file {mode:o} {name}\0{sha256_file(path)}"
        digest.update(line.encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()
