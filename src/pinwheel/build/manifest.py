"""The manifest of a wheel: facts that every build of the same lock states the same way.

No times, hosts or users. The wheel carries it as ``pinwheel.json`` in its dist-info; beside the
wheel lies the same with what only the whole file can say: its name, size and hash.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pinwheel.build.elf import Library
from pinwheel.errors import WheelError
from pinwheel.inspect.platform import Platform, version_floor
from pinwheel.recipe.lock import Lock, Role
from pinwheel.verify.manifest import LOCKED
from pinwheel.verify.parity_rule import compared_targets

NAME = "pinwheel.json"  # within dist-info
FORMAT = 1
OWN = (
    *("manifest-version", "distribution", "version", "platform-tag", "libraries"),
    *("wheel", "loaded"),  # of the manifest beside the wheel
)
_SUM = re.compile(r"([0-9a-f]{64}) [ *]([^/\0\n]+)")


def library_facts(
    library: Library, *, sha256: str, size: int, machine_code: bool, elsewhere: Sequence[str]
) -> dict[str, Any]:
    """What the manifest says of one library.

    ``symbol-floor`` is the newest version it needs of each kind (GLIBC, GLIBCXX, ...), system
    libraries only.
    """
    return {
        "device-code": machine_code,
        "kind": library.kind,
        "needed": list(library.needed),
        "sha256": sha256,
        "size": size,
        "symbol-floor": version_floor(library, elsewhere),
    }


def kind_of(lock: Lock, role: Role) -> str:
    """Of what a root or toolkit is made, as the manifest states it: ``locked`` or ``host``.

    Locked is one that the lock has the files of; verify holds a release to that (``hermetic``).
    """
    return LOCKED if lock.with_role(role) else "host"


def build_manifest(
    facts: Mapping[str, Any],
    *,
    distribution: str,
    version: str,
    platform: Platform | None,
    libraries: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Put the builder's facts and what was read from the wheel together.

    Args:
        facts: combo, lock digest, toolkit and so on; plain data, no key of the manifest's own.
            ``parity`` may have ``official-targets``, the official wheel's cubins by library: they
            are put beside those of ``libraries`` as ``targets``.
        distribution: project name.
        version: full version.
        platform: None when the wheel holds no library.
        libraries: path within the wheel -> :func:`library_facts`.

    Raises:
        WheelError: a fact has a key the manifest states itself, or is not plain data.
    """
    taken = sorted(set(facts) & set(OWN))
    if taken:
        raise _bad(f"the manifest states {', '.join(taken)} itself")
    manifest = {
        **facts,
        "manifest-version": FORMAT,
        "distribution": distribution,
        "version": version,
        "platform-tag": platform.tag if platform else "any",
        "platform-reasons": [str(r) for r in platform.reasons] if platform else [],
        "libraries": {name: dict(libraries[name]) for name in sorted(libraries)},
    }
    if isinstance(parity := facts.get("parity"), Mapping) and "official-targets" in parity:
        official = parity["official-targets"]
        ours = {n: lib["cubins"] for n, lib in libraries.items() if lib.get("cubins")}
        kept = {key: value for key, value in parity.items() if key != "official-targets"}
        manifest["parity"] = {**kept, "targets": compared_targets(official, ours)}
    # A round trip: tuples become lists, and the dictionary is what the file will hold.
    loaded: dict[str, Any] = json.loads(as_json(manifest))
    return loaded


def as_json(manifest: Mapping[str, Any]) -> bytes:
    """The one spelling of a manifest: keys sorted, two blanks, ASCII, a newline at the end.

    Raises:
        WheelError: something in it is not plain data (text, whole numbers, booleans, lists,
            mappings with text keys).
    """
    _plain(manifest, "manifest")
    return (json.dumps(manifest, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


def _plain(value: object, where: str) -> None:
    if value is None or isinstance(value, str | int | bool):
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise _bad(f"{where}: the key {key!r} is no text")
            _plain(item, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            _plain(item, f"{where}[{number}]")
    else:
        # Floats too: how they are printed is a matter of taste, and no fact here needs one.
        raise _bad(f"{where}: a {type(value).__name__} is no stable fact")


def _bad(evidence: str) -> WheelError:
    return WheelError(
        "the manifest's facts cannot be written",
        evidence=(evidence,),
        next_step="This is a mistake in pinwheel's own build stage; please report it.",
    )


def merge_sums(old: str, new: Mapping[str, str], present: set[str]) -> str:
    """SHA256SUMS with the lines of ``new`` written and those of files that are gone removed.

    Lines of other files stay as they are, also where the file has since changed: that is what
    ``sha256sum --check`` is for.

    Args:
        old: the file so far, or empty.
        new: file name -> sha256.
        present: names of the files in the directory.
    """
    sums: dict[str, str] = {}
    for line in old.splitlines():
        match = _SUM.fullmatch(line)
        if match and match[2] in present:
            sums[match[2]] = match[1]
    sums |= new
    return "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))
