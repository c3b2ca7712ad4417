"""Whether an environment's files are those of the locked wheels.

uv links an environment's files to its own cache, where it keeps wheels unpacked and does not look
at them again: a file cut short in one environment is cut short in every one made afterwards. The
wheels in the store were compared with the lock, so they are what files are compared with.
"""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pinwheel.files import CHUNK

# Installers write these themselves (recorded installs specification), or change their first line.
_OWN = re.compile(
    r"[^/]+\.dist-info/(?:RECORD(?:\..+)?|INSTALLER|REQUESTED|direct_url\.json)"
    r"|[^/]+\.data/(?:scripts|headers)/.*"
)
_DATA = re.compile(r"[^/]+\.data/(?P<scheme>purelib|platlib|data)/(?P<rest>.+)")


def damaged_files(environment: Path, site: str, wheels: Iterable[Path]) -> list[str]:
    """Files that are missing, or have another size or CRC-32 than in their wheel.

    Args:
        environment: the directory a virtual environment is in.
        site: its site-packages, relative to it.
        wheels: all that was installed. Where several bring a file, it may be anyone's.

    Returns:
        Their paths within the environment, sorted.

    Raises:
        OSError, zipfile.BadZipFile: a wheel cannot be read.
    """
    expected: dict[str, set[tuple[int, int]]] = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                for path in _installed_as(entry.filename, site):
                    expected.setdefault(path, set()).add((entry.file_size, entry.CRC))
    # Reading and CRC-32 run outside the interpreter's lock.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        good = pool.map(lambda path: _is_one_of(environment / path, expected[path]), expected)
        return sorted(path for path, is_good in zip(expected, good, strict=True) if not is_good)


def _installed_as(name: str, site: str) -> Iterator[str]:
    """Where a wheel's file goes (binary distribution format, *Installing a wheel*)."""
    if name.endswith("/") or _OWN.fullmatch(name):
        return
    if data := _DATA.fullmatch(name):
        yield data["rest"] if data["scheme"] == "data" else f"{site}/{data['rest']}"
    else:
        yield f"{site}/{name}"


def _is_one_of(path: Path, facts: set[tuple[int, int]]) -> bool:
    try:
        size = path.stat().st_size
        return size in {s for s, _ in facts} and (size, _crc(path)) in facts
    except OSError:
        return False


def _crc(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            value = zlib.crc32(block, value)
    return value
