"""Reads the TOML files that people write: plain files only, of bounded size, one kind of fault."""

from __future__ import annotations

import errno
import os
import stat
import tomllib
from pathlib import Path
from typing import Any

#: Largest file read, in bytes; a lock of 300 inputs has 75 kB.
LARGEST = 4 * 1024 * 1024


def read_text(path: Path, largest: int = LARGEST) -> str:
    """The text of a small file. A pipe or a device is refused: reading one may never end.

    Raises:
        OSError: it cannot be read, is no plain file, or has more than ``largest`` bytes.
        UnicodeDecodeError: it is not UTF-8.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a plain file", str(path))
        with os.fdopen(os.dup(descriptor), "rb") as file:
            data = file.read(largest + 1)
    finally:
        os.close(descriptor)
    if len(data) > largest:
        raise OSError(errno.EFBIG, f"larger than {largest} bytes", str(path))
    return data.decode("utf-8")


def loads(text: str) -> dict[str, Any]:
    """``text`` as TOML.

    Raises:
        tomllib.TOMLDecodeError: whatever is wrong with it, also where tomllib raises others: for
            values nested too deeply, numbers too long, and dates that do not exist.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError as error:
        raise tomllib.TOMLDecodeError("Values are nested too deeply") from error
    except ValueError as error:
        raise tomllib.TOMLDecodeError(str(error)) from error
