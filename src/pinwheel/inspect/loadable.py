"""Whether a file that is called a library is one that a loader would take.

A wheel's libraries are found by what they hold, whatever their names. The other way round a file
may be called one and hold nothing, or the text that git LFS leaves in the place of a large file:
it would be looked at by no rule, and ``import`` would end in an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from pinwheel.errors import ArtifactError
from pinwheel.inspect.elf import Elf, is_elf
from pinwheel.inspect.region import printable

# What ld.so and CPython's import on Linux take: libx.so, libx.so.12.1, _C.abi3.so.
_LIBRARY = re.compile(r".*\.so(?:\.[0-9]+)*", re.DOTALL)
_LFS = b"version https://git-lfs"
HEAD = 512  # bytes that tell what a file is
_SHOWN = 80  # bytes of a text that are quoted

# First bytes of what else ends up under such a name (Mach-O of either order and width, PE, ar).
_OTHERS = {
    b"\xcf\xfa\xed\xfe": "a library of macOS",
    b"\xce\xfa\xed\xfe": "a library of macOS",
    b"\xca\xfe\xba\xbe": "a library of macOS",
    b"MZ": "a library of Windows",
    b"!<arch>\n": "an archive of object files (ar)",
    b"PK": "a zip",
    b"\x1f\x8b": "something packed by gzip",
}


def named_library(path: str) -> bool:
    """Whether a path within a wheel is called what Linux calls a library."""
    return _LIBRARY.fullmatch(path) is not None


def from_its_start(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, the first piece long enough to tell what a file is.

    A deflate stream may begin with a megabyte of blocks that hold nothing.
    """
    head = b""
    enough = False
    for chunk in chunks:
        head += chunk
        enough = enough or len(head) >= HEAD
        if enough:
            yield head
            head = b""
    if head:
        yield head


def check_start(wheel: str, path: str, start: bytes) -> None:
    """Refuse a file that is called a library and is no ELF file.

    Args:
        wheel: file name of the wheel, for messages.
        path: within the wheel.
        start: the file's first bytes, as many as there are up to :data:`HEAD`.

    Raises:
        ArtifactError: it is one.
    """
    if named_library(path) and not is_elf(start):
        raise _refused(
            f"{printable(wheel)} cannot be read: {printable(path)} is called a library and is "
            "no ELF file",
            f"it holds {_held(start)}",
            lfs=start.startswith(_LFS),
        )


def check_library(elf: Elf) -> None:
    """Refuse an ELF file that is called a library and that no loader takes for one.

    Raises:
        ArtifactError: it is an object file, a program, device code, or has no dynamic segment.
    """
    if not named_library(elf.name):
        return
    why = ""
    if elf.machine == "EM_CUDA":
        why = "device code (EM_CUDA)"
    elif elf.type != "ET_DYN":
        why = f"an ELF file of the type {elf.type}"
    elif not elf.dynamic:
        why = "an ELF file without dynamic segment"
    if why:
        raise _refused(
            f"{printable(elf.name)} cannot be read: it is called a library and cannot be loaded",
            f"it is {why}; a shared library is ET_DYN, with a dynamic segment",
        )


def other_machine(elf: Elf, machine: str) -> str:
    """What a library is for, where that is not ``machine`` with 64 bits, little-endian; or empty.

    A process loads libraries of its own machine alone, whatever their symbols are.
    """
    if (elf.machine, elf.bits, elf.little_endian) == (machine, 64, True):
        return ""
    return f"{elf.machine}, {elf.bits} bits, {'little' if elf.little_endian else 'big'}-endian"


def _refused(what: str, evidence: str, *, lfs: bool = False) -> ArtifactError:
    how = "Fetch the large files (`git lfs pull`) and build the wheel again" if lfs else ""
    return ArtifactError(
        what,
        evidence=[evidence],
        next_step=f"{how or 'Get the wheel again from where it came and compare its sha256'}; "
        "installed as it is, importing it fails.",
    )


def _held(start: bytes) -> str:
    if not start:
        return "nothing: it is empty"
    if start.startswith(_LFS):
        return "a pointer of git LFS, which stands for a file that was never fetched"
    for magic, what in _OTHERS.items():
        if start.startswith(magic):
            return what
    text = start[:_SHOWN]
    if not text.strip(b"\0"):
        return "zeros"
    if all(32 <= byte < 127 or byte in b"\t\r\n" for byte in text):
        return f"text: {printable(text.decode('ascii'))}"
    return f"the bytes {start[:8].hex(' ')}"
