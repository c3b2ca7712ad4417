"""Libraries of the system: which there are on every one, and which names they have.

A reference to them mostly has a version, which says where it belongs. One without, from an
extension that was not linked against the library it uses, is found in ``data/torch/system.zst``:
the names that C and C++ library of the build root's Debian export. ``scripts/torch_snapshots.py
--system`` makes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from pinwheel.verify.snapshot import compress, damaged, text_of

FORMAT = "pinwheel-system-names 1"
FILE = "system.zst"
_MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemNames:
    """Names that system libraries export, without version or as the default one.

    Attributes:
        packages: what they were read from: name, version and sha256 of each package.
        libraries: SONAME -> names, sorted.
    """

    packages: tuple[Mapping[str, str], ...]
    libraries: Mapping[str, Sequence[str]] = field(repr=False)


def pack(names: SystemNames) -> bytes:
    """The bytes of the file; the same for the same names."""
    libraries = sorted(names.libraries.items())
    header = {
        "packages": [dict(package) for package in names.packages],
        "libraries": [[soname, len(of)] for soname, of in libraries],
    }
    lines = [FORMAT, json.dumps(header, sort_keys=True, separators=(",", ":"))]
    for _, of in libraries:
        lines += sorted(of)
    return compress("\n".join(lines) + "\n")


def unpack(packed: bytes, where: str = FILE) -> SystemNames:
    """Read the file.

    Raises:
        SnapshotError: it is damaged.
    """
    lines = text_of(packed, where, FORMAT).split("\n")
    try:
        header = json.loads(lines[1])
        libraries: dict[str, tuple[str, ...]] = {}
        at = 2
        for soname, count in header["libraries"]:
            libraries[str(soname)] = tuple(lines[at : at + count])
            at += count
        if at != len(lines) - 1 or lines[-1]:
            raise ValueError(f"{len(lines) - 3} names, {at - 2} stated")
        packages = tuple({str(k): str(v) for k, v in p.items()} for p in header["packages"])
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise damaged(where, f"{type(error).__name__}: {error}") from error
    return SystemNames(packages=packages, libraries=libraries)


@cache
def owners() -> Mapping[str, tuple[str, ...]]:
    """Name -> SONAMEs of the system libraries that have it.

    Raises:
        SnapshotError: the data file is damaged.
    """
    path = resources.files("pinwheel.data").joinpath("torch", FILE)
    found: dict[str, tuple[str, ...]] = {}
    for soname, names in unpack(path.read_bytes()).libraries.items():
        for name in names:
            found[name] = (*found.get(name, ()), soname)
    return found


@cache
def system_libraries(machine: str) -> frozenset[str]:
    """Libraries that every system of a manylinux policy has, by SONAME (auditwheel's policies).

    Args:
        machine: ELF machine, ``EM_X86_64``; one that no policy is for has none.
    """
    from auditwheel.architecture import Architecture
    from auditwheel.libc import Libc
    from auditwheel.policy import WheelPolicies

    if machine not in _MACHINES:
        return frozenset()
    policies = WheelPolicies(libc=Libc.GLIBC, arch=Architecture(_MACHINES[machine]))
    return frozenset(name for policy in policies for name in policy.whitelist)
