"""The flagship build killed in download, unpacking and compiling: in the end the same wheel.

It starts with an empty store and nothing unpacked. Of the compile cache it gets four entries in
five, so that it compiles for real around the kill without taking the whole hour again.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from flagship import ARCHS, COMBO, PROJECT
from pipeline_kit import Place, kill_when, made, once_compiled, wait_for

from pinwheel.settings import load_settings

pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.timeout(6 * 3600)]

COMMAND = ("build", "--combo", COMBO, "--archs", ARCHS, "--json")
HOURS = 3 * 3600


def thinned(source: Path, target: Path, drop: int) -> int:
    """Link a compile cache but for every ``drop``-th entry; how many were left out."""
    entries = sorted(p for p in source.rglob("*") if p.is_file())
    kept = [p for n, p in enumerate(entries) if n % drop]
    for path in kept:
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    return len(entries) - len(kept)


def test_killed_in_download_unpacking_and_compiling_it_is_the_same_wheel(
    built: dict[str, Any], tmp_path: Path
) -> None:
    settings = load_settings(PROJECT)
    cache = tmp_path / "cache"
    place = Place(
        project=PROJECT, dist=tmp_path / "dist", cache=cache, index=" ".join(settings.index)
    )
    assert thinned(settings.cache / "sccache", cache / "sccache", 5)

    def downloading(process: subprocess.Popen[bytes]) -> int:
        def size() -> int:
            files = [p for p in (cache / "store").rglob("*") if p.is_file()]
            return sum(p.stat().st_size for p in files)

        # A third of it is there, and a large file is half-way.
        wait_for(lambda: size() > 1_800_000_000, process, HOURS)
        return len(list((cache / "store/sha256").rglob("*")))

    def unpacking(process: subprocess.Popen[bytes]) -> None:
        wait_for(lambda: list(cache.glob("roots/*.partial/usr/bin/*")), process, HOURS)

    def assembling(process: subprocess.Popen[bytes]) -> None:
        wait_for(lambda: list(cache.glob("toolkits/*.partial")), process, HOURS)

    stored = kill_when(place, tmp_path / "download.log", downloading, *COMMAND)
    assert stored
    assert list((cache / "store/partial").iterdir()), "nothing was half-way"
    kill_when(place, tmp_path / "unpack.log", unpacking, *COMMAND)
    assert "fetching" in (tmp_path / "unpack.log").read_text()
    kill_when(place, tmp_path / "toolkit.log", assembling, *COMMAND)
    done = kill_when(place, tmp_path / "compile.log", once_compiled(place, 12, HOURS), *COMMAND)
    answer = place.run(*COMMAND, timeout=HOURS)
    assert "taking up the build where it stopped" in answer.err, answer
    compiles = place.compiles()
    assert [len(compiles[step]) for step in done] == [1] * len(done), compiles
    again = made(place, answer)
    assert again.sha256 == built["sha256"]
    assert again.wheel.stat().st_size == built["size"]
    report = answer.json()
    assert report["build"]["cache-misses"] > 0, "nothing was compiled for real"
