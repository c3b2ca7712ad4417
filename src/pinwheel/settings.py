"""Where things are: cache, project, recipes, dist, and the URLs of each source.

Environment wins over ``pinwheel.toml``, which wins over what pip, uv and apt are told.
``docs/configuration.md`` is the reader's account of this module.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from pinwheel import clients, toml
from pinwheel.errors import SettingsError

FILE = "pinwheel.toml"
MATRIX = "arch_matrix.toml"

#: ``[mirrors]`` key of each source, and its environment variable.
VARIABLES = {
    "index": "PINWHEEL_MIRRORS_INDEX",
    "debian": "PINWHEEL_MIRRORS_DEBIAN",
    "debian-snapshot": "PINWHEEL_MIRRORS_DEBIAN_SNAPSHOT",
}
_PATHS = ("cache", "dist", "recipes")
_URL = re.compile(r"(https?://[^\s/]+|file:///)\S*")


def redact(url: str) -> str:
    """``url`` without user, password and query, fit to be shown."""
    shown = re.sub(r"(?<=://)[^/?#]*@", "***@", url)
    return re.sub(r"\?.*", "?***", shown)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything configuration decides.

    Attributes:
        cache: root of what may be deleted and had again.
        recipes: directories that hold ``<combo>/recipe.toml``, in order.
        project: directory of ``arch_matrix.toml``, recipes and patches.
        dist: where builds put what they produce.
        index: base URLs of simple-API package indexes, in order.
        debian: base URLs of Debian archives (holding ``dists/`` and ``pool/``), in order.
        debian_snapshot: base URLs of archives by date; a file is at
            ``<base>/archive/debian/<timestamp>/<path>``.
        offline: nothing may be had from the network.
        origin: per source, where its URLs were configured.
    """

    cache: Path
    recipes: tuple[Path, ...]
    project: Path
    dist: Path
    # URLs may hold credentials, and a repr ends up in logs.
    index: tuple[str, ...] = field(default=(), repr=False)
    debian: tuple[str, ...] = field(default=(), repr=False)
    debian_snapshot: tuple[str, ...] = field(default=(), repr=False)
    offline: bool = False
    origin: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse paths that no system call takes, wherever they were written.

        Raises:
            SettingsError: a NUL in one, or a part or the whole is too long.
        """
        named = (("cache", self.cache), ("dist", self.dist), ("project", self.project))
        for name, path in (*named, *(("recipes", path) for path in self.recipes)):
            _usable(name, path)

    @property
    def store(self) -> Path:
        """The content-addressed store of inputs."""
        return self.cache / "store"

    @property
    def work(self) -> Path:
        """Build roots, toolkits and trees in progress."""
        return self.cache / "work"

    @property
    def compile_cache(self) -> Path:
        """sccache's storage."""
        return self.cache / "sccache"

    def urls(self, source: str) -> tuple[str, ...]:
        """The configured URLs of ``source`` (``index``, ``debian``, ``debian-snapshot``)."""
        return {
            "index": self.index,
            "debian": self.debian,
            "debian-snapshot": self.debian_snapshot,
        }[source]

    def require(self, source: str) -> tuple[str, ...]:
        """Like :meth:`urls`, for when there must be one.

        Raises:
            SettingsError: no URL is configured; says what to set.
        """
        if urls := self.urls(source):
            return urls
        seen = {
            "debian": "no Debian archive in this host's apt sources (/etc/apt/sources.list, "
            "/etc/apt/sources.list.d)",
        }.get(source, "nothing names one")
        raise SettingsError(
            f"source {source!r} has no URL",
            evidence=(seen, f"{VARIABLES[source]} is not set", f"no [mirrors] {source} in {FILE}"),
            next_step=f'Write [mirrors] {source} = "URL" into {self.project / FILE}, or set '
            f"{VARIABLES[source]}; the URL is the base that holds "
            f"{_HOLDS[source]}.",
        )


_HOLDS = {
    "index": "one page per project (a simple API)",
    "debian": "dists/ and pool/",
    "debian-snapshot": "archive/debian/<timestamp>/",
}


def load_settings(
    start: Path | None = None,
    env: Mapping[str, str] = os.environ,
    *,
    root: Path = Path("/"),
) -> Settings:
    """Read all configuration.

    Args:
        start: where to look for the project from, upwards; default the working directory.
        env: the environment.
        root: file system root of pip's, uv's and apt's configuration files.

    Raises:
        SettingsError: ``pinwheel.toml`` or a variable is wrong; names file, line and key.
    """
    try:
        project = find_project(start or Path.cwd(), env)
    except FileNotFoundError as error:
        raise SettingsError(
            "the working directory does not exist any more",
            evidence=(str(error),),
            next_step="Change to one that exists.",
        ) from error
    table = _File(project / FILE)

    def path(variable: str, key: str, default: Path) -> Path:
        if text := env.get(variable, "").strip():
            return _expanded(text, variable).absolute()
        written = table.strings("paths", key)
        if len(written) > 1:
            raise table.error("paths", key, "must be one path")
        return (project / _expanded(written[0], f"paths.{key}")) if written else default

    cache = path(
        "PINWHEEL_CACHE", "cache", Path(platformdirs.user_cache_dir("pinwheel", appauthor=False))
    )
    if text := env.get("PINWHEEL_RECIPES", "").strip():
        recipes = tuple(
            _expanded(part, "PINWHEEL_RECIPES").absolute()
            for part in text.split(os.pathsep)
            if part
        )
    else:
        recipes = tuple(
            project / _expanded(part, "paths.recipes") for part in table.strings("paths", "recipes")
        ) or (project / "recipes",)

    origin: dict[str, str] = {}
    sources: dict[str, tuple[str, ...]] = {}
    for source, variable in VARIABLES.items():
        if text := env.get(variable, "").strip():
            urls, origin[source] = tuple(text.split()), variable
            for url in urls:
                if not _URL.fullmatch(url):
                    raise _bad_url(f"{variable}: {redact(url)!r}")
        elif urls := table.strings("mirrors", source):
            origin[source] = str(table.path)
            for url in urls:
                if not _URL.fullmatch(url):
                    raise table.error("mirrors", source, f"{redact(url)!r} is {_NO_URL}")
        elif source != "debian-snapshot":
            found = (
                clients.index_urls(env, root) if source == "index" else clients.debian_urls(root)
            )
            urls, origin[source] = found.urls, found.where
            for url in urls:
                if not _URL.fullmatch(url):
                    raise _bad_url(f"{found.where}: {redact(url)!r}")
        sources[source] = clients.unique(urls)

    return Settings(
        cache=cache,
        recipes=recipes,
        project=project,
        dist=path("PINWHEEL_DIST", "dist", project / "dist"),
        index=sources["index"],
        debian=sources["debian"],
        debian_snapshot=sources["debian-snapshot"],
        offline=_flag(env, "PINWHEEL_OFFLINE"),
        origin=origin,
    )


def find_project(start: Path, env: Mapping[str, str]) -> Path:
    """The project's directory: ``PINWHEEL_PROJECT``, else the nearest one upwards with a matrix.

    Where there is none, ``start`` itself: commands that need no project work anywhere.

    Raises:
        SettingsError: ``PINWHEEL_PROJECT`` is no directory.
    """
    if text := env.get("PINWHEEL_PROJECT", "").strip():
        path = _expanded(text, "PINWHEEL_PROJECT").absolute()
        _usable("PINWHEEL_PROJECT", path)
        if not path.is_dir():
            raise SettingsError(
                f"PINWHEEL_PROJECT is {text!r}, which is no directory",
                next_step=f"Set it to the directory that holds {MATRIX}, or unset it.",
            )
        return path
    start = start.absolute()
    return next((p for p in (start, *start.parents) if (p / MATRIX).is_file()), start)


def _expanded(text: str, name: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise SettingsError(
            f"{name} is {text[:_WIDEST]!r}, and there is no such user's home",
            evidence=(str(error),),
            next_step="Write the path without '~'.",
        ) from error


def _usable(name: str, path: Path) -> None:
    text = str(path)
    length = len(os.fsencode(text))
    # NAME_MAX, and PATH_MAX less what we put below (a hash, a file name).
    if "\0" in text or length > 3800 or any(len(os.fsencode(p)) > 255 for p in path.parts):
        raise SettingsError(
            f"{name} is no path that can be used: {text[:_WIDEST]!r}",
            evidence=(f"{length} bytes",),
            next_step="Name a shorter path, without NUL.",
        )


_WIDEST = 200  # characters of a value that is quoted
_NO_URL = "no http://, https:// or file:/// URL"


def _bad_url(subject: str) -> SettingsError:
    return SettingsError(
        f"{subject} is {_NO_URL}",
        next_step="Write absolute URLs, several separated by spaces, first to be asked first.",
    )


def _flag(env: Mapping[str, str], variable: str) -> bool:
    text = env.get(variable, "").strip().lower()
    if text in ("", "0", "false", "no", "off"):
        return False
    if text in ("1", "true", "yes", "on"):
        return True
    raise SettingsError(
        f"{variable} is {text!r}, which is neither yes nor no",
        next_step="Set it to 1 or 0.",
    )


class _File:
    """``pinwheel.toml``, checked; an absent file is an empty one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: list[str] = []
        self._data: dict[str, Any] = {}
        try:
            text = toml.read_text(path)
            self._lines = text.splitlines()
            self._data = toml.loads(text)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._wrong("cannot be read", str(error)) from error
        except UnicodeDecodeError as error:
            raise self._wrong("is not UTF-8", str(error)) from error
        except tomllib.TOMLDecodeError as error:
            raise self._wrong("is not TOML", str(error)) from error
        for name, keys in (("mirrors", tuple(VARIABLES)), ("paths", _PATHS)):
            table = self._data.get(name, {})
            if not isinstance(table, dict):
                raise self.error(name, "", "must be a table")
            for key in table:
                if key not in keys:
                    raise self.error(name, key, f"is unknown; known are {', '.join(keys)}")
        for name in self._data:
            if name not in ("mirrors", "paths"):
                raise self.error(name, "", "is unknown; known are mirrors, paths")

    def strings(self, table: str, key: str) -> tuple[str, ...]:
        value = self._data.get(table, {}).get(key, [])
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(v, str) and v for v in values):
            raise self.error(table, key, "must be a string or a list of strings, none empty")
        return tuple(values)

    def error(self, table: str, key: str, rule: str) -> SettingsError:
        dotted = f"{table}.{key}" if key else table
        line = self._line(table, key)
        return SettingsError(
            f"{self.path}:{line}: {dotted} {rule}",
            evidence=(redact(self._lines[line - 1].strip())[:_WIDEST],) if self._lines else (),
            next_step="Correct that line; docs/configuration.md lists every key.",
        )

    def _wrong(self, rule: str, evidence: str) -> SettingsError:
        match = re.search(r"at line (\d+)", evidence)
        where = f"{self.path}:{match.group(1)}" if match else str(self.path)
        return SettingsError(
            f"{where} {rule}",
            evidence=(evidence,),
            next_step="Correct the file; docs/configuration.md shows one.",
        )

    def _line(self, table: str, key: str) -> int:
        """Line number of a key, as near as plain text tells (tomllib keeps no positions)."""
        name, current, header = re.escape(key), "", 1
        for number, line in enumerate(self._lines, 1):
            if match := re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line):
                current = match.group(1).strip("\"'")
                header = number if current == table else header
            if key and current == table and re.match(rf"\s*[\"']?{name}[\"']?\s*=", line):
                return number
            if not current and re.match(rf"\s*[\"']?{re.escape(table)}[\"']?\s*[.=]", line):
                return number
        return header
