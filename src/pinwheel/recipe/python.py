"""Resolves Python requirements with uv, as of a date, to exactly one wheel for each package."""

from __future__ import annotations

import os
import re
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import uv
from packaging.markers import Environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from pinwheel import process
from pinwheel.errors import RecipeError, ResolveError
from pinwheel.settings import Settings, redact

# PEP 600 gives the older names of three manylinux platforms.
_LEGACY = {(2, 17): "manylinux2014", (2, 12): "manylinux2010", (2, 5): "manylinux1"}


@dataclass(frozen=True, slots=True)
class Target:
    """What the wheels must run on: CPython ``python`` on Linux with C library ``glibc``."""

    python: str  # "3.11"
    glibc: str  # "2.36"
    machine: str = "x86_64"

    def tags(self) -> Iterator[Tag]:
        """Wheel tags in order of preference (PEP 425, PEP 600)."""
        version = tuple(int(part) for part in self.python.split("."))
        platforms = list(self._platforms())
        name = f"cp{version[0]}{version[1]}"
        # The ABI is given: left out, packaging would ask the interpreter pinwheel runs on.
        yield from cpython_tags(version, abis=[name], platforms=platforms)
        yield from compatible_tags(version, interpreter=name, platforms=platforms)

    def _platforms(self) -> Iterator[str]:
        major, newest = (int(part) for part in self.glibc.split("."))
        for minor in range(newest, 4, -1):
            yield f"manylinux_{major}_{minor}_{self.machine}"
            if legacy := _LEGACY.get((major, minor)):
                yield f"{legacy}_{self.machine}"
        yield f"linux_{self.machine}"

    def environment(self) -> Environment:
        """Values of environment markers there (PEP 508)."""
        return Environment(
            implementation_name="cpython",
            implementation_version=f"{self.python}.0",
            os_name="posix",
            platform_machine=self.machine,
            platform_release="",
            platform_system="Linux",
            platform_version="",
            python_full_version=f"{self.python}.0",
            platform_python_implementation="CPython",
            python_version=self.python,
            sys_platform="linux",
        )


@dataclass(frozen=True, slots=True)
class IndexFile:
    """One file of the index: its name, never its URL, goes into a lock.

    ``url`` is where the resolver saw it, for reads while resolving.
    """

    name: str
    version: str
    filename: str
    size: int | None  # bytes
    sha256: str
    url: str = field(default="", repr=False, compare=False)


def rewrite_requirements(
    lines: Iterable[str], rewrites: Sequence[tuple[str, str]], *, where: str
) -> list[str]:
    """Requirement lines with each ``(old, new)`` applied to the line that means ``old``.

    Lines are compared by meaning: order of specifiers, spaces and quotes do not count.

    Raises:
        RecipeError: an ``old`` is not among the lines, or one of both is no requirement.
    """
    result = [(line, canonical_requirement(line, where)) for line in lines]
    for old, new in rewrites:
        wanted = canonical_requirement(old, "the recipe's [[requirements]]")
        canonical_requirement(new, "the recipe's [[requirements]]")
        hits = [i for i, (_, meaning) in enumerate(result) if meaning == wanted]
        if not hits:
            name = Requirement(old).name
            near = [line for line, _ in result if Requirement(line).name == name]
            raise RecipeError(
                f"requirement {old!r} of the recipe is no longer in {where}",
                evidence=[f"there is: {line}" for line in near] or [f"nothing names {name}"],
                next_step="Correct `old` in the recipe's [[requirements]].",
            )
        for i in hits:
            result[i] = (new, canonical_requirement(new, where))
    return [line for line, _ in result]


def canonical_requirement(line: str, where: str) -> str:
    """One spelling for every requirement that means the same (PEP 508).

    Raises:
        RecipeError: ``line`` is no requirement.
    """
    try:
        return str(Requirement(line))
    except InvalidRequirement as error:
        raise RecipeError(
            f"{line!r} in {where} is no requirement",
            evidence=[str(error).replace("\n", " ")],
            next_step="Write it as PEP 508 has it.",
        ) from error


def without_extras(lines: Iterable[str], target: Target) -> list[str]:
    """The lines that apply on ``target`` when no extra is asked for."""
    environment: Mapping[str, str] = {**target.environment(), "extra": ""}  # type: ignore[dict-item]
    kept = []
    for line in lines:
        marker = Requirement(line).marker
        if marker is None or marker.evaluate(dict(environment)):
            kept.append(line)
    return kept


def resolve_wheels(
    settings: Settings,
    target: Target,
    requirements: Sequence[str],
    *,
    constraints: Sequence[str] = (),
    as_of: datetime | None,
    closure: bool = True,
    what: str,
) -> tuple[IndexFile, ...]:
    """One wheel for each package that ``requirements`` lead to, sorted by name.

    Args:
        settings: names the index.
        target: where the wheels must run.
        requirements: PEP 508 lines.
        constraints: lines that limit versions without asking for a package.
        as_of: nothing uploaded later counts, but for what is pinned by ``==``; None for no limit.
        closure: whether to follow dependencies.
        what: what is resolved, for messages.

    Raises:
        ResolveError: no solution, a package without a wheel, or a file without sha256.
        SettingsError: no index is configured.
    """
    document = _uv_compile(settings, target, requirements, constraints, as_of, closure, what)
    ranks = {tag: rank for rank, tag in reversed(list(enumerate(target.tags())))}
    files = [best_wheel(package, ranks, what) for package in document.get("packages", [])]
    return tuple(sorted(files, key=lambda f: f.name))


def best_wheel(package: Mapping[str, Any], ranks: Mapping[Tag, int], what: str) -> IndexFile:
    """The wheel of a pylock package that suits best: tags first, then build number, then name.

    Raises:
        ResolveError: none fits, or the index states no sha256.
    """
    name, version = str(package.get("name")), str(package.get("version"))
    fitting: list[tuple[int, tuple[int, str], str, Mapping[str, Any]]] = []
    wheels = package.get("wheels", [])
    for wheel in wheels:
        filename = wheel.get("name") or unquote(urlsplit(wheel.get("url", "")).path.split("/")[-1])
        try:
            _, _, build, tags = parse_wheel_filename(filename)
        except InvalidWheelFilename:
            continue
        rank = min((ranks[tag] for tag in tags if tag in ranks), default=None)
        if rank is not None:
            number, suffix = build or (0, "")
            fitting.append((rank, (-number, suffix), filename, wheel))
    if not fitting:
        raise ResolveError(
            f"{name} {version}, needed to {what} this combo, has no wheel that fits",
            evidence=[str(w.get("name") or w.get("url", "")).split("/")[-1] for w in wheels]
            or ["the index has a source distribution only"],
            next_step="Pin another version of it in the recipe's companions or [build] requires.",
        )
    _, _, filename, wheel = min(fitting, key=lambda f: f[:3])
    sha256 = wheel.get("hashes", {}).get("sha256", "")
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise ResolveError(
            f"the index states no sha256 for {filename}",
            next_step="Use an index that states hashes (PEP 503); a lock needs them.",
        )
    return IndexFile(name, version, filename, wheel.get("size"), sha256, wheel.get("url", ""))


def uv_environment(settings: Settings) -> dict[str, str]:
    """Our environment without uv's and pip's own settings, and with the configured index.

    The index goes in here, not on the command line: it may hold a password.

    Raises:
        SettingsError: no index is configured.
    """
    *more, default = settings.require("index")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("UV_", "PIP_", "VIRTUAL_"))}
    if "SSL_CERT_FILE" not in kept and (bundle := os.environ.get("PIP_CERT")):
        kept["SSL_CERT_FILE"] = bundle
    return kept | {
        "UV_DEFAULT_INDEX": default,
        "UV_INDEX": " ".join(more),
        "UV_NO_CONFIG": "1",
        "UV_CACHE_DIR": str(settings.cache / "uv"),
        "UV_PYTHON_DOWNLOADS": "never",
        "NO_COLOR": "1",
    }


def _uv_compile(
    settings: Settings,
    target: Target,
    requirements: Sequence[str],
    constraints: Sequence[str],
    as_of: datetime | None,
    closure: bool,
    what: str,
) -> dict[str, Any]:
    if settings.offline:
        raise ResolveError(
            f"what is needed to {what} this combo cannot be resolved offline",
            next_step="Run `pinwheel lock` without --offline; --check works offline.",
        )
    with tempfile.TemporaryDirectory(prefix="pinwheel-lock-") as scratch:
        place = Path(scratch)
        wanted, output = place / "requirements.in", place / "pylock.toml"
        wanted.write_text("".join(f"{line}\n" for line in requirements), "utf-8")
        args = [uv.find_uv_bin(), "pip", "compile", str(wanted), "--output-file", str(output)]
        args += ["--format", "pylock.toml", "--no-header", "--no-annotate", "--quiet"]
        args += ["--only-binary", ":all:", "--no-sources", "--python-version", target.python]
        glibc = target.glibc.replace(".", "_")
        args += ["--python-platform", f"{target.machine}-manylinux_{glibc}"]
        if constraints:
            limits = place / "constraints.in"
            limits.write_text("".join(f"{line}\n" for line in constraints), "utf-8")
            args += ["--constraints", str(limits)]
        if not closure:
            args.append("--no-deps")
        if as_of is not None:
            args += ["--exclude-newer", as_of.strftime("%Y-%m-%dT%H:%M:%SZ")]
            for name in exact_pins(requirements):
                args += ["--exclude-newer-package", f"{name}=false"]
        result = process.run(args, env=uv_environment(settings), cwd=place)
        if result.returncode:
            text = result.output
            for url in settings.index:
                text = text.replace(url, redact(url))
            raise ResolveError(
                f"what is needed to {what} this combo cannot be resolved",
                evidence=[line.rstrip() for line in text.splitlines() if line.strip()][:20],
                next_step="Change the recipe's pins, or its [run] as-of date.",
            )
        return tomllib.loads(output.read_text("utf-8"))


def exact_pins(requirements: Iterable[str]) -> list[str]:
    """Names pinned to one version by ``==`` without a wildcard."""
    names = []
    for line in requirements:
        requirement = Requirement(line)
        pins = [s for s in requirement.specifier if s.operator == "=="]
        if any(not pin.version.endswith(".*") for pin in pins):
            names.append(requirement.name)
    return sorted(set(names))
