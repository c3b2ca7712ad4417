"""Fetches in a process of its own, for tests that kill it or race several of them.

python worker.py PROJECT DEBIAN-URL PATH SIZE SHA256
"""

from __future__ import annotations

import sys
from pathlib import Path

from pinwheel.console import Console
from pinwheel.inputs.fetch import fetch
from pinwheel.inputs.store import Store
from pinwheel.recipe.lock import Input, Role, SourceKind
from pinwheel.settings import Settings

if __name__ == "__main__":
    root, url, path, size, sha256 = sys.argv[1:]
    project = Path(root)
    settings = Settings(
        cache=project / "cache",
        recipes=(project / "recipes",),
        project=project,
        dist=project / "dist",
        debian=(url,),
    )
    item = Input(
        roles=(Role.ROOT,),
        source=SourceKind.DEBIAN,
        name="thing",
        version="1.0",
        path=path,
        size=int(size),
        sha256=sha256,
    )
    store = Store(settings.store)
    report = fetch([item], store, settings, Console())
    store.get(item)
    print(report.fetched[0].place if report.fetched else "present", report.bytes_resumed)
