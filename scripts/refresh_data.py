"""Compares the data files of build root, toolkits and tools with what their sources serve now.

Run by a person: ``python scripts/refresh_data.py [--keyring]``. Needs the configured index and
Debian archive. ``--keyring`` takes Debian's archive keys anew from package
debian-archive-keyring, as the archive signed by the present keys serves it.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import sys
from pathlib import Path

from debian.debfile import DebFile
from packaging.version import InvalidVersion, Version

from pinwheel.errors import PinwheelError
from pinwheel.http import Client
from pinwheel.recipe.data import Suite, root_data, toolkit_data, toolkit_names, tools_data
from pinwheel.recipe.debian_archive import find_part, read_suite
from pinwheel.recipe.index import project_files
from pinwheel.settings import load_settings

DATA = Path(__file__).parent.parent / "src/pinwheel/data"
KEYS = "./usr/share/keyrings/debian-archive-keyring.gpg"


def main() -> int:
    """Print a line for each pin; 1 when one can no longer be had."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keyring", action="store_true", help="replace the keyring")
    arguments = parser.parse_args()
    settings = load_settings()
    bad = 0
    with Client() as client:
        pins = [(t.name, t.version, "tools") for t in tools_data().tool]
        for name in toolkit_names():
            kit = toolkit_data(name)
            pins += [(p.name, p.version, name) for p in kit.package if p.source == "index"]
            if kit.toolkit.provider != "debian":
                continue
            head = kit.toolkit.model_dump(exclude={"provider", "line", "version"})
            snapshot = read_suite(client, settings.require("debian"), Suite.model_validate(head))
            for part in (p for p in kit.package if p.source == "debian"):
                try:
                    say(f"{name}: {part.name} {find_part(snapshot, part).version}")
                except PinwheelError as error:
                    bad += 1
                    say(f"{name}: {error.what}")
        for package, version, where in pins:
            served = {known(f.version) for f in project_files(client, settings.index, package)}
            stable = [v for v in served if v and not v.is_prerelease]
            there = Version(version) in served
            bad += not there
            say(f"{where}: {package} {version}{'' if there else ' GONE'}, newest {max(stable)}")
        if arguments.keyring:
            root = root_data().root
            packages = read_suite(client, settings.debian, root).merged(root.components)
            wanted = packages["debian-archive-keyring"]
            deb = client.get(f"{settings.debian[0]}/{wanted.path}").content
            if hashlib.sha256(deb).hexdigest() != wanted.sha256:
                raise SystemExit(f"{wanted.path}: sha256 differs from the signed index")
            keys = DebFile(fileobj=io.BytesIO(deb)).data.get_content(KEYS)
            (DATA / root.keyring).write_bytes(keys)
            say(f"{root.keyring}: from {wanted.name} {wanted.version}")
    return 1 if bad else 0


def known(version: str | None) -> Version | None:
    """``version`` as PEP 440 reads it, None for what it cannot read."""
    try:
        return Version(version or "")
    except InvalidVersion:
        return None


def say(text: str) -> None:
    """One line on stdout."""
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
