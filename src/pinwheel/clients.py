"""What this host's pip, uv and apt are already told about where packages come from.

Only primary sources are taken. pip's ``extra-index-url`` is left out on purpose: pip mixes all
its indexes and takes the highest version, so a stranger's upload of a private name wins
(dependency confusion); an index meant as a second place belongs into ``pinwheel.toml``.
``find-links`` and ``constraint`` are no indexes and would make a lock depend on the host.
"""

from __future__ import annotations

import configparser
import errno
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from pinwheel import toml
from pinwheel.errors import SettingsError

_URL = re.compile(r"(https?|file)://\S+")


@dataclass(frozen=True, slots=True)
class Found:
    """URLs and where they were read, for messages."""

    urls: tuple[str, ...]
    where: str


def unique(urls: Iterable[str]) -> tuple[str, ...]:
    """``urls`` without trailing slashes and repetitions, in order."""
    return tuple(dict.fromkeys(url.rstrip("/") for url in urls if url))


def index_urls(env: Mapping[str, str], root: Path = Path("/")) -> Found:
    """The simple-API indexes that pip or uv would use, first found wins whole.

    In order: pip's environment, uv's environment, pip's files, uv's files, and what both have
    built in when told nothing.

    Args:
        env: the environment.
        root: file system root under which the files are looked for.

    Raises:
        SettingsError: a file of theirs cannot be parsed.
    """
    if url := env.get("PIP_INDEX_URL", "").strip():
        return Found(unique([url]), "PIP_INDEX_URL")
    if found := _uv_environment(env):
        return found
    if found := _pip_files(env, root):
        return found
    if found := _uv_files(env, root):
        return found
    from pypi_simple import PYPI_SIMPLE_ENDPOINT

    return Found(unique([PYPI_SIMPLE_ENDPOINT]), "what pip and uv use when told nothing")


# --- pip -----------------------------------------------------------------------------------


def _home(env: Mapping[str, str], root: Path) -> Path:
    return _under(root, env["HOME"]) if env.get("HOME") else _under(root, "/nonexistent")


def _under(root: Path, path: str) -> Path:
    return root / path.lstrip("/") if root != Path("/") else Path(path)


def pip_config_files(env: Mapping[str, str], root: Path = Path("/")) -> list[Path]:
    """pip's configuration files in the order pip reads them, later ones override.

    Source: pip's documentation, "Configuration" (global, user, site, ``PIP_CONFIG_FILE``).
    """
    named = env.get("PIP_CONFIG_FILE", "")
    if named == "/dev/null":
        return []
    home = _home(env, root)
    paths = [
        _under(root, directory) / "pip/pip.conf"
        for directory in env.get("XDG_CONFIG_DIRS", "").split(":") or ()
        if directory
    ] or [_under(root, "/etc/xdg/pip/pip.conf")]
    paths.append(_under(root, "/etc/pip.conf"))
    if not (named and _under(root, named).exists()):
        paths.append(home / ".pip/pip.conf")
        config = env.get("XDG_CONFIG_HOME")
        paths.append((_under(root, config) if config else home / ".config") / "pip/pip.conf")
    if environment := env.get("VIRTUAL_ENV"):
        paths.append(_under(root, environment) / "pip.conf")
    if named:
        paths.append(_under(root, named))
    return paths


def pip_index_of(text: str, where: str) -> str:
    """The ``index-url`` of one pip configuration file, or ``""``.

    ``[download]`` overrides ``[global]``, as for ``pip download``.

    Raises:
        SettingsError: the text is no configuration file; names ``where`` and the line.
    """
    parser = configparser.RawConfigParser(strict=True)
    try:
        parser.read_string(text, where)
    except configparser.Error as error:
        lines = str(error).replace("\n", " ").split("://")[0]
        raise SettingsError(
            f"{where} cannot be parsed, so the package index is unknown",
            evidence=(lines,),
            next_step="Correct the file (pip refuses it too), or set PINWHEEL_MIRRORS_INDEX.",
        ) from error
    value = ""
    for section in ("global", "download"):
        if parser.has_section(section):
            for key, text_value in parser.items(section):
                if key.replace("_", "-") == "index-url" and text_value and text_value.strip():
                    value = text_value.split()[0]
    return value


def _pip_files(env: Mapping[str, str], root: Path) -> Found | None:
    found = None
    for path in pip_config_files(env, root):
        text = _read(path)
        if text is not None and (url := pip_index_of(text, str(path))):
            found = Found(unique([url]), str(path))
    return found


# --- uv ------------------------------------------------------------------------------------


def _uv_named(text: str) -> str:
    """uv writes an index as ``URL`` or ``name=URL``."""
    name, equals, url = text.partition("=")
    return url if equals and re.fullmatch(r"[A-Za-z0-9._-]+", name) else text


def _uv_environment(env: Mapping[str, str]) -> Found | None:
    extra = [_uv_named(part) for part in env.get("UV_INDEX", "").split()]
    default = env.get("UV_DEFAULT_INDEX", "").strip() or env.get("UV_INDEX_URL", "").strip()
    if not extra and not default:
        return None
    if not default:
        from pypi_simple import PYPI_SIMPLE_ENDPOINT

        default = PYPI_SIMPLE_ENDPOINT
    names = [n for n in ("UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL") if env.get(n, "").strip()]
    return Found(unique([*extra, _uv_named(default)]), " and ".join(names))


def uv_indexes_of(text: str, where: str) -> tuple[tuple[str, ...], str]:
    """``(indexes, default)`` of one ``uv.toml``; default is ``""`` when it names none.

    Indexes marked ``explicit`` serve only packages pinned to them and are left out.
    Source: uv's documentation, "Package indexes" and "Settings".

    Raises:
        SettingsError: the text is not TOML, or ``index`` has another shape.
    """
    try:
        data = toml.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(
            f"{where} cannot be parsed, so the package index is unknown",
            evidence=(str(error),),
            next_step="Correct the file (uv refuses it too), or set PINWHEEL_MIRRORS_INDEX.",
        ) from error
    extra: list[str] = []
    default = ""
    pip = data.get("pip")
    for table in (pip if isinstance(pip, dict) else {}, data):
        if isinstance(url := table.get("index-url"), str):
            default = url
    entries = data.get("index", [])
    for entry in entries if isinstance(entries, list) else []:
        url = entry.get("url") if isinstance(entry, dict) else None
        if not isinstance(url, str) or entry.get("explicit") is True:
            continue
        if entry.get("default") is True:
            default = url
        else:
            extra.append(url)
    return tuple(extra), default


def _uv_files(env: Mapping[str, str], root: Path) -> Found | None:
    if env.get("UV_NO_CONFIG", "").lower() in ("1", "true", "yes"):
        return None
    if named := env.get("UV_CONFIG_FILE"):
        paths = [_under(root, named)]
    else:
        config = env.get("XDG_CONFIG_HOME")
        user = _under(root, config) if config else _home(env, root) / ".config"
        system = [
            _under(root, directory) / "uv/uv.toml"
            for directory in env.get("XDG_CONFIG_DIRS", "").split(":")
            if directory
        ] or [_under(root, "/etc/xdg/uv/uv.toml")]
        # uv takes the first system file that exists.
        first = next((p for p in (*system, _under(root, "/etc/uv/uv.toml")) if p.is_file()), None)
        paths = [user / "uv/uv.toml", *([first] if first else [])]
    extra: list[str] = []
    default, where = "", []
    for path in paths:
        text = _read(path)
        if text is None:
            continue
        more, base = uv_indexes_of(text, str(path))
        extra += more
        default = default or base
        if more or base:
            where.append(str(path))
    if not where:
        return None
    if not default:
        from pypi_simple import PYPI_SIMPLE_ENDPOINT

        default = PYPI_SIMPLE_ENDPOINT
    return Found(unique([*extra, default]), " and ".join(where))


# --- apt -----------------------------------------------------------------------------------


def debian_urls(root: Path = Path("/")) -> Found:
    """Base URLs of Debian archives in the host's apt sources; none on other systems.

    A line counts when it is enabled, serves binary packages for amd64, names a suite of the
    Debian archive (not of its security archive, which has another pool) with component main,
    and is signed by no keyring but Debian's own.
    Source: sources.list(5).
    """
    directory = root / "etc/apt"
    parts = directory / "sources.list.d"
    paths = [directory / "sources.list"]
    if parts.is_dir():
        paths += sorted(p for p in parts.iterdir() if p.suffix in (".list", ".sources"))
    urls: list[str] = []
    where: list[str] = []
    for path in paths:
        text = _read(path)
        if text is None:
            continue
        parse = deb822_debian if path.suffix == ".sources" else one_line_debian
        if found := list(parse(text)):
            urls += found
            where.append(str(path))
    return Found(unique(urls), " and ".join(where) or "the host's apt sources")


def one_line_debian(text: str) -> Iterator[str]:
    """Debian archive base URLs of a one-line-style apt source file; other lines are skipped."""
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[([^\]]*)\]\s*)?(\S+)\s+(\S+)\s*([^#]*)", line)
        if not match:
            continue
        options, uri, suite, components = match.groups()
        pairs = dict(
            option.split("=", 1) for option in (options or "").lower().split() if "=" in option
        )
        if _is_debian(
            uris=[uri],
            suites=[suite],
            components=components.split(),
            architectures=pairs.get("arch", "").split(","),
            signed_by=pairs.get("signed-by", ""),
        ):
            yield uri


def deb822_debian(text: str) -> Iterator[str]:
    """Debian archive base URLs of a deb822-style apt source file; other stanzas are skipped."""
    for stanza in _stanzas(text):
        if stanza.get("enabled", "yes").lower() in ("no", "false", "0", "off", "without"):
            continue
        if "deb" not in stanza.get("types", "").split():
            continue
        uris = stanza.get("uris", "").split()
        if _is_debian(
            uris=uris,
            suites=stanza.get("suites", "").split(),
            components=stanza.get("components", "").split(),
            architectures=stanza.get("architectures", "").split(),
            signed_by=stanza.get("signed-by", ""),
        ):
            yield from (uri for uri in uris if _URL.fullmatch(uri))


def _stanzas(text: str) -> Iterator[dict[str, str]]:
    stanza: dict[str, str] = {}
    key = ""
    for line in [*text.splitlines(), ""]:
        if line.startswith("#"):
            continue
        if not line.strip():
            if stanza:
                yield stanza
            stanza, key = {}, ""
        elif line[0] in " \t":
            if key:
                stanza[key] += " " + line.strip()
        elif ":" in line:
            key, _, value = line.partition(":")
            key = key.strip().lower()
            stanza[key] = value.strip()


@cache
def _debian_names() -> tuple[frozenset[str], tuple[str, ...]]:
    """Suites of the Debian archive, and how the names of its keyrings start."""
    text = resources.files("pinwheel.data").joinpath("debian_suites.toml").read_text("utf-8")
    data = tomllib.loads(text)
    suites = frozenset(suite + part for suite in data["suites"] for part in data["parts"])
    return suites, tuple(data["keyrings"])


def _is_debian(
    *,
    uris: list[str],
    suites: list[str],
    components: list[str],
    architectures: list[str],
    signed_by: str,
) -> bool:
    known, keyrings = _debian_names()
    wanted = [a for a in architectures if a]
    # A key pasted into the source line says nothing about whose it is; a foreign file name does.
    keyring = signed_by.rsplit("/", 1)[-1] if signed_by.startswith("/") else ""
    return (
        any(_URL.fullmatch(uri) for uri in uris)
        and any(suite in known for suite in suites)
        and "main" in components
        and (not wanted or "amd64" in wanted)
        and (not keyring or keyring.startswith(keyrings))
    )


def _read(path: Path) -> str | None:
    """A file of theirs; None where they would read none either."""
    try:
        if path.is_dir():
            return None
        if path.exists() and path.samefile(os.devnull):
            return ""
        return toml.read_text(path)
    except UnicodeDecodeError:
        return path.read_text("utf-8", errors="replace")
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EFBIG):
            return None
        # To go on as if nothing stood there could ask another index than the one meant.
        raise SettingsError(
            f"{path} is no configuration file",
            evidence=(error.strerror or str(error),),
            next_step="Name a plain file, or set PINWHEEL_MIRRORS_INDEX.",
        ) from error
