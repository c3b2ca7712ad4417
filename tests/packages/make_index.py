"""Packs the test package as an sdist and lays out a package index (simple API) that serves it.

    python tests/packages/make_index.py DIRECTORY

The same source gives the same bytes (with one zlib): order, owners, modes and times are fixed.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HERE = Path(__file__).parent
NAME, VERSION = "pinprobe", "0.1.0"
MTIME = 1_767_225_600  # seconds since 1970: 2026-01-01T00:00:00Z

#: Core metadata every sdist carries (PEP 643).
PKG_INFO = f"""\
Metadata-Version: 2.1
Name: {NAME}
Version: {VERSION}
Summary: A small CUDA extension package that pinwheel builds to test itself.
License: Apache-2.0
Requires-Python: >=3.11
Requires-Dist: torch==2.11.0
Requires-Dist: typing_extensions>=4
"""
#: What compiling or importing leaves behind in a working tree.
LEFTOVERS = {"__pycache__", "build", "dist", f"{NAME}.egg-info"}


def source_files(root: Path) -> Iterator[Path]:
    """The files of the package's source, sorted by path."""
    for path in sorted(root.rglob("*")):
        if path.is_file() and not LEFTOVERS & set(path.relative_to(root).parts):
            yield path


def sdist_bytes(root: Path = HERE / f"{NAME}-{VERSION}") -> bytes:
    """The sdist as bytes."""
    members = {"PKG-INFO": PKG_INFO.encode()}
    members |= {p.relative_to(root).as_posix(): p.read_bytes() for p in source_files(root)}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in sorted(members.items()):
            member = tarfile.TarInfo(f"{NAME}-{VERSION}/{name}")
            member.size, member.mtime, member.mode = len(data), MTIME, 0o644
            archive.addfile(member, io.BytesIO(data))
    return gzip.compress(packed.getvalue(), compresslevel=9, mtime=0)


def make_index(directory: Path) -> Path:
    """Write ``directory/simple/pinprobe/`` with its page and the sdist; return ``simple``."""
    simple = directory / "simple"
    project = simple / NAME
    project.mkdir(parents=True, exist_ok=True)
    file = f"{NAME}-{VERSION}.tar.gz"
    data = sdist_bytes()
    (project / file).write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    page = '<!DOCTYPE html>\n<html><head><meta name="pypi:repository-version" content="1.0">'
    page += "<title>{}</title></head><body>\n{}\n</body></html>\n"
    link = f'<a href="{file}#sha256={digest}" data-requires-python="&gt;=3.11">{file}</a>'
    (project / "index.html").write_text(page.format(f"Links for {NAME}", link))
    (simple / "index.html").write_text(page.format("Index", f'<a href="{NAME}/">{NAME}</a>'))
    return simple


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a test's output is not a server log."""


@contextmanager
def serve(directory: Path) -> Iterator[str]:
    """Serve ``directory`` on a free port of 127.0.0.1; gives the base URL."""
    handler = partial(_Quiet, directory=str(directory))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make_index.py DIRECTORY")
    print(make_index(Path(sys.argv[1])))
