"""A real HTTP server standing in for an index, a mirror and a snapshot archive."""

from __future__ import annotations

import hashlib
import json
import random
import re
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pinwheel.recipe.lock import Input, Role, SourceKind
from pinwheel.settings import Settings


@dataclass
class Site:
    """What the server offers, how it misbehaves, and what it was asked."""

    files: dict[str, bytes] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    #: path -> answers to give before behaving: a status, or ("cut", bytes) to hang up early
    faults: dict[str, list[int | tuple[str, int]]] = field(default_factory=dict)
    ranges: bool = True
    lengths: bool = True
    delay: float = 0.0  # seconds per piece
    piece: int = 1 << 16  # bytes
    password: str = ""
    log: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""

    def project(
        self,
        name: str,
        files: dict[str, bytes],
        base: str = "/simple",
        hashes: dict[str, str] | None = None,
    ) -> None:
        """Put a project's JSON page and its files up."""
        entries = []
        for filename, data in files.items():
            self.files[f"/files/{filename}"] = data
            digest = (hashes or {}).get(filename, hashlib.sha256(data).hexdigest())
            entries.append(
                {
                    "filename": filename,
                    "url": f"/files/{filename}",
                    "hashes": {"sha256": digest},
                    "size": len(data),
                    "upload-time": "2024-10-14T12:00:00.000000Z",
                }
            )
        page = {"meta": {"api-version": "1.1"}, "name": name, "files": entries, "versions": []}
        self.files[f"{base}/{name}/"] = json.dumps(page).encode()
        self.types[f"{base}/{name}/"] = "application/vnd.pypi.simple.v1+json"

    def asked(self, path: str) -> list[str]:
        """The Range headers of all requests for ``path``, ``""`` for none."""
        return [header for asked, header in self.log if asked == path]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        return

    def do_GET(self) -> None:
        site, path = self.site, unquote(self.path)
        site.log.append((path, self.headers.get("Range", "")))
        if site.password and site.password not in self.headers.get("Authorization", ""):
            return self._status(401)
        fault = site.faults[path].pop(0) if site.faults.get(path) else None
        if isinstance(fault, int):
            return self._status(fault)
        data = site.files.get(path)
        if data is None:
            return self._status(404)
        start = 0
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if match and site.ranges:
            start = int(match.group(1))
            if start >= len(data):
                return self._status(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        body = data[start:]
        if site.lengths:
            self.send_header("Content-Length", str(len(body)))
        else:
            self.close_connection = True
        self.send_header("Content-Type", site.types.get(path, "application/octet-stream"))
        self.end_headers()
        if fault:
            body, self.close_connection = body[: fault[1]], True
        try:
            for at in range(0, len(body), site.piece):
                self.wfile.write(body[at : at + site.piece])
                if site.delay:
                    time.sleep(site.delay)
        except OSError:
            self.close_connection = True
        return None

    def _status(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


def settings_for(
    tmp_path: Path,
    *,
    index: tuple[str, ...] = (),
    debian: tuple[str, ...] = (),
    snapshot: tuple[str, ...] = (),
    offline: bool = False,
) -> Settings:
    return Settings(
        cache=tmp_path / "cache",
        recipes=(tmp_path / "recipes",),
        project=tmp_path,
        dist=tmp_path / "dist",
        index=index,
        debian=debian,
        debian_snapshot=snapshot,
        offline=offline,
    )


def make_input(
    data: bytes,
    path: str,
    *,
    source: SourceKind = SourceKind.DEBIAN,
    name: str = "thing",
    version: str = "1.0",
    roles: tuple[Role, ...] = (Role.ROOT,),
) -> Input:
    return Input(
        roles=roles,
        source=source,
        name=name,
        version=version,
        path=path,
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )


def some_bytes(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def tree(root: Path) -> list[str]:
    """Files below ``root`` that are data, relative; locks left out."""
    return sorted(
        str(p.relative_to(root))
        for p in root.rglob("*")
        if p.is_file() and "locks" not in p.relative_to(root).parts
    )
