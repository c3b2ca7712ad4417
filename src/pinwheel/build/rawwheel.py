"""Reads an unpacked raw wheel and refuses one whose name, METADATA, WHEEL and RECORD disagree."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from pinwheel.build.metadata import MAX_BYTES, fields, only
from pinwheel.build.zipping import entry_order
from pinwheel.errors import WheelError
from pinwheel.files import tree_files

HASHES = ("sha256", "sha384", "sha512")  # the wheel specification asks for sha256 or better
_NEXT = "Build the wheel again; nothing was written."


@dataclass(frozen=True, slots=True, kw_only=True)
class RawWheel:
    """What the build back end left, unpacked.

    Attributes:
        name: distribution, as the file name writes it.
        version: as METADATA states it.
        build: build tag of the file name, or empty.
        tags: sorted (python, abi) pairs.
        python_abi: the first two tags of the file name, ``cp38-abi3``.
        dist_info: name of the dist-info directory.
        purelib: what Root-Is-Purelib says.
    """

    name: str
    version: str
    build: str
    tags: tuple[tuple[str, str], ...]
    python_abi: str
    dist_info: str
    purelib: bool


def wheel_error(what: str, *evidence: str) -> WheelError:
    """A WheelError about the raw wheel."""
    return WheelError(what, evidence=evidence, next_step=_NEXT)


def names_below(tree: Path) -> list[str]:
    """Every file's path below ``tree``, with slashes."""
    return [p.relative_to(tree).as_posix() for p in tree_files(tree)]


def read_raw(tree: Path, file_name: str, distribution: str) -> RawWheel:
    """Read and check an unpacked wheel.

    Args:
        tree: where it was unpacked.
        file_name: the raw wheel's own.
        distribution: the name it must have.

    Raises:
        WheelError: file name, METADATA, WHEEL, dist-info and RECORD are not of one wheel.
    """
    try:
        name, version, _, tags = parse_wheel_filename(file_name)
    except (InvalidWheelFilename, InvalidVersion) as error:
        raise wheel_error(f"{file_name!r} is no wheel file name", str(error)) from error
    infos = sorted({n.split("/")[0] for n in names_below(tree) if ".dist-info/" in n})
    infos = [i for i in infos if i.endswith(".dist-info")]
    if len(infos) != 1:
        raise wheel_error(f"{file_name} must hold one dist-info directory", *infos)
    info = infos[0]
    for part in ("METADATA", "WHEEL", "RECORD"):
        path = tree / info / part
        if not path.is_file():
            raise wheel_error(f"{file_name} has no {info}/{part}")
        if path.stat().st_size > MAX_BYTES:
            raise wheel_error(f"{info}/{part} is larger than {MAX_BYTES} bytes")
    metadata, _ = fields((tree / info / "METADATA").read_bytes(), "METADATA")
    stated = only(metadata, "Version", "METADATA").value
    names = {
        "expected": distribution,
        "file name": name,
        "METADATA": only(metadata, "Name", "METADATA").value,
        "dist-info": info.removesuffix(".dist-info").rpartition("-")[0],
    }
    if len({canonicalize_name(n) for n in names.values()}) != 1:
        raise wheel_error(
            f"{file_name} names different projects", *(f"{k}: {v}" for k, v in names.items())
        )
    versions = {
        "file name": str(version),
        "METADATA": stated,
        "dist-info": info.removesuffix(".dist-info").rpartition("-")[2],
    }
    if len({_normal(v) for v in versions.values()}) != 1:
        raise wheel_error(
            f"{file_name} names different versions", *(f"{k}: {v}" for k, v in versions.items())
        )
    wheel, _ = fields((tree / info / "WHEEL").read_bytes(), "WHEEL")
    pairs = {(t.interpreter, t.abi) for t in tags}
    inside = {tuple(f.value.split("-")[:2]) for f in wheel if f.name == "tag"}
    if pairs != inside:
        raise wheel_error(
            f"{file_name}: file name and WHEEL name different Python or ABI tags",
            f"file name: {sorted(pairs)}",
            f"WHEEL: {sorted(inside)}",
        )
    check_record(tree, info)
    pieces = file_name.removesuffix(".whl").split("-")
    return RawWheel(
        name=pieces[0],
        version=stated,
        build=pieces[2] if len(pieces) == 6 else "",
        tags=tuple(sorted(pairs)),
        python_abi="-".join(pieces[-3:-1]),
        dist_info=info,
        purelib=only(wheel, "Root-Is-Purelib", "WHEEL").value.lower() == "true",
    )


def _normal(text: str) -> str:
    try:
        return str(Version(text.replace("_", "-")))
    except InvalidVersion:
        return text


def check_record(tree: Path, info: str) -> None:
    """Compare RECORD with the files that are there.

    Raises:
        WheelError: a hash or size is wrong or missing, a file is not listed or listed twice, or
            what is listed is not there.
    """
    record = f"{info}/RECORD"
    try:
        text = (tree / record).read_bytes().decode()
        rows = [r for r in csv.reader(io.StringIO(text, newline=""), strict=True) if r]
    except (UnicodeDecodeError, csv.Error) as error:
        raise wheel_error(f"{record} cannot be read", str(error)) from error
    wrong: list[str] = []
    listed: set[str] = set()
    present = set(names_below(tree))
    for row in rows:
        if len(row) != 3:
            wrong.append(f"not three fields: {','.join(row)[:200]}")
            continue
        name, digest, size = row
        if name in listed:
            wrong.append(f"listed twice: {name}")
        listed.add(name)
        if name == record:
            if digest or size:
                wrong.append("RECORD states a hash of itself")
        elif name not in present:
            wrong.append(f"listed, not there: {name}")
        else:
            wrong += _compare(tree / name, name, digest, size)
    wrong += [f"there, not listed: {name}" for name in sorted(present - listed)]
    if wrong:
        raise wheel_error(f"{record} does not describe the wheel", *wrong[:20])


def _compare(path: Path, name: str, digest: str, size: str) -> Iterable[str]:
    algorithm, _, value = digest.partition("=")
    if algorithm not in HASHES:
        return [f"{name}: hash {digest[:80]!r} is not sha256 or better"]
    if size != str(path.stat().st_size):
        return [f"{name}: {path.stat().st_size} bytes, RECORD says {size[:80]}"]
    if _encoded(path, algorithm) != value:
        return [f"{name}: {algorithm} differs from RECORD"]
    return []


def _encoded(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, algorithm).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def record_of(tree: Path, info: str) -> bytes:
    """RECORD for the files below ``tree``, complete, in the order the zip has them."""
    record = f"{info}/RECORD"
    names = [n for n in names_below(tree) if n != record]
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    for name in entry_order(names):
        path = tree / PurePosixPath(name)
        writer.writerow((name, f"sha256={_encoded(path, 'sha256')}", path.stat().st_size))
    writer.writerow((record, "", ""))
    return out.getvalue().encode()
