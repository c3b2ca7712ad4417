from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinwheel import clients
from pinwheel.errors import SettingsError
from pinwheel.settings import Settings, load_settings, redact

HOME = {"HOME": "/home/user"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty file system root, for the clients' files."""
    made = tmp_path / "root"
    made.mkdir()
    return made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    (made / "arch_matrix.toml").write_text("")
    return made


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def load(project: Path, root: Path, **env: str) -> Settings:
    return load_settings(project, {**HOME, **env}, root=root)


# --- paths and precedence ------------------------------------------------------------------


def test_defaults(project: Path, root: Path) -> None:
    from pypi_simple import PYPI_SIMPLE_ENDPOINT

    settings = load(project, root)
    assert settings.project == project
    assert settings.recipes == (project / "recipes",)
    assert settings.dist == project / "dist"
    assert settings.cache.name == "pinwheel"
    assert settings.store == settings.cache / "store"
    assert settings.index == (PYPI_SIMPLE_ENDPOINT.rstrip("/"),)
    assert settings.debian == settings.debian_snapshot == ()
    assert settings.offline is False


def test_project_is_searched_upwards(project: Path, root: Path, tmp_path: Path) -> None:
    (project / "recipes/x").mkdir(parents=True)
    assert load(project / "recipes/x", root).project == project
    assert load(tmp_path, root).project == tmp_path
    assert load(tmp_path, root, PINWHEEL_PROJECT=str(project)).project == project
    with pytest.raises(SettingsError, match="PINWHEEL_PROJECT"):
        load(tmp_path, root, PINWHEEL_PROJECT="/nonexistent/x")


FILE = """
[mirrors]
index = "https://file.example/simple/"
debian = ["http://a.example/debian", "file:///srv/debian/"]
debian-snapshot = "http://snap.example"

[paths]
cache = "var/cache"
dist = "/srv/dist"
recipes = ["recipes", "more"]
"""


def test_file(project: Path, root: Path) -> None:
    put(root, "etc/pip.conf", "[global]\nindex-url = https://pip.example/simple\n")
    put(root, "etc/apt/sources.list", "deb http://apt.example/debian bookworm main\n")
    put(project, "pinwheel.toml", FILE)
    settings = load(project, root)
    assert settings.index == ("https://file.example/simple",)
    assert settings.debian == ("http://a.example/debian", "file:///srv/debian")
    assert settings.debian_snapshot == ("http://snap.example",)
    assert settings.cache == project / "var/cache"
    assert settings.dist == Path("/srv/dist")
    assert settings.recipes == (project / "recipes", project / "more")


def test_environment_wins(project: Path, root: Path) -> None:
    put(project, "pinwheel.toml", FILE)
    settings = load(
        project,
        root,
        PINWHEEL_MIRRORS_INDEX="https://one.example https://two.example/",
        PINWHEEL_MIRRORS_DEBIAN="http://env.example/debian",
        PINWHEEL_MIRRORS_DEBIAN_SNAPSHOT="http://env.example",
        PINWHEEL_CACHE="/c",
        PINWHEEL_DIST="/d",
        PINWHEEL_RECIPES=f"/r{os.pathsep}/s",
        PINWHEEL_OFFLINE="1",
    )
    assert settings.index == ("https://one.example", "https://two.example")
    assert settings.debian == ("http://env.example/debian",)
    assert settings.debian_snapshot == ("http://env.example",)
    assert (settings.cache, settings.dist) == (Path("/c"), Path("/d"))
    assert settings.recipes == (Path("/r"), Path("/s"))
    assert settings.offline is True


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("[mirrors]\nindex = 3\n", 2, "mirrors.index must be a string"),
        ("[mirrors]\n# x\ndebian = ['']\n", 3, "mirrors.debian must be"),
        ("[mirrors]\n\nindx = 'https://a'\n", 3, "mirrors.indx is unknown"),
        ("[paths]\ncache = 'a'\n[mirror]\n", 3, "mirror is unknown"),
        ("[paths]\ncache = ['a', 'b']\n", 2, "paths.cache must be one path"),
        ("[mirrors]\nindex = 'pypi'\n", 2, "no http://"),
        ("[mirrors]\nindex = 'ftp://a'\n", 2, "no http://"),
        ("mirrors = 1\n", 1, "mirrors must be a table"),
        ("mirrors.index = 1\n", 1, "mirrors.index must be"),
        ("[mirrors]\nindex = \n", 2, "is not TOML"),
    ],
)
def test_malformed_file(project: Path, root: Path, text: str, line: int, said: str) -> None:
    put(project, "pinwheel.toml", text)
    with pytest.raises(SettingsError) as caught:
        load(project, root)
    assert caught.value.what.startswith(f"{project / 'pinwheel.toml'}:{line}")
    assert said in caught.value.what


@pytest.mark.parametrize(
    "env",
    [
        {"PINWHEEL_OFFLINE": "maybe"},
        {"PINWHEEL_MIRRORS_DEBIAN": "mirror"},
        {"PINWHEEL_CACHE": "~nosuchuser/x"},
        {"PINWHEEL_DIST": "~nosuchuser/x"},
        {"PINWHEEL_RECIPES": "/a:~nosuchuser"},
        {"PINWHEEL_PROJECT": "~nosuchuser"},
        {"PINWHEEL_PROJECT": "a" * 5000},
    ],
)
def test_malformed_environment(project: Path, root: Path, env: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=next(iter(env))):
        load(project, root, **env)


def test_a_source_without_url(project: Path, root: Path) -> None:
    with pytest.raises(SettingsError, match="'debian' has no URL") as caught:
        load(project, root).require("debian")
    assert "PINWHEEL_MIRRORS_DEBIAN" in caught.value.next_step
    assert str(project / "pinwheel.toml") in caught.value.next_step
    assert "dists/ and pool/" in caught.value.next_step


def test_credentials_are_never_shown(project: Path, root: Path) -> None:
    secret = "https://user:s3cret@host.example:8443/simple?token=s3cret"
    assert redact(secret) == "https://***@host.example:8443/simple?***"
    settings = load(project, root, PINWHEEL_MIRRORS_INDEX=secret)
    assert settings.index == (secret,)
    assert "s3cret" not in repr(settings)
    put(project, "pinwheel.toml", f"[mirrors]\ndebian = 'ftp{secret[5:]}'\n")
    with pytest.raises(SettingsError) as caught:
        load(project, root)
    assert "s3cret" not in str(caught.value.as_dict())


# --- pip and uv ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "files", "expected"),
    [
        ({"PIP_INDEX_URL": "https://p/s/"}, {}, ["https://p/s"]),
        ({"UV_INDEX_URL": "https://u/s"}, {}, ["https://u/s"]),
        (
            {"UV_DEFAULT_INDEX": "main=https://u/d", "UV_INDEX": "a=https://u/a https://u/b"},
            {},
            ["https://u/a", "https://u/b", "https://u/d"],
        ),
        (
            {"PIP_INDEX_URL": "https://p/s", "UV_DEFAULT_INDEX": "https://u/d"},
            {},
            ["https://p/s"],
        ),
        ({}, {"etc/xdg/pip/pip.conf": "[global]\nindex_url: https://xdg/s\n"}, ["https://xdg/s"]),
        (
            {},
            {
                "etc/xdg/pip/pip.conf": "[global]\nindex-url = https://xdg/s\n",
                "etc/pip.conf": "[global]\nindex-url = https://etc/s\n",
                "home/user/.config/pip/pip.conf": "[global]\nindex-url = https://user/s\n",
            },
            ["https://user/s"],
        ),
        (
            {"VIRTUAL_ENV": "/venv"},
            {
                "home/user/.config/pip/pip.conf": "[global]\nindex-url = https://user/s\n",
                "venv/pip.conf": "[download]\nindex-url = https://venv/s\n",
            },
            ["https://venv/s"],
        ),
        (
            {"PIP_CONFIG_FILE": "/named.conf"},
            {
                "home/user/.config/pip/pip.conf": "[global]\nindex-url = https://user/s\n",
                "named.conf": "[global]\nindex-url = https://named/s\n",
            },
            ["https://named/s"],
        ),
        (
            {},
            {"home/user/.config/uv/uv.toml": '[[index]]\nurl = "https://u/x"\nexplicit = true\n'
             '[[index]]\nurl = "https://u/a"\n[[index]]\nurl = "https://u/d"\ndefault = true\n'},
            ["https://u/a", "https://u/d"],
        ),
        ({}, {"etc/uv/uv.toml": 'index-url = "https://u/e"\n'}, ["https://u/e"]),
        ({}, {"etc/uv/uv.toml": '[pip]\nindex-url = "https://u/p"\n'}, ["https://u/p"]),
        (
            {},
            {
                "etc/uv/uv.toml": 'index-url = "https://u/e"\n',
                "etc/pip.conf": "[global]\nindex-url = https://etc/s\n",
            },
            ["https://etc/s"],
        ),
    ],
)  # fmt: skip
def test_index_of_pip_and_uv(
    root: Path, env: dict[str, str], files: dict[str, str], expected: list[str]
) -> None:
    for path, text in files.items():
        put(root, path, text)
    assert clients.index_urls({**HOME, **env}, root).urls == tuple(expected)


def test_what_is_ignored(root: Path) -> None:
    from pypi_simple import PYPI_SIMPLE_ENDPOINT

    default = (PYPI_SIMPLE_ENDPOINT.rstrip("/"),)
    put(
        root,
        "etc/pip.conf",
        "[global]\nextra-index-url = https://evil/s\nfind-links = /w\nconstraint = c.txt\n"
        "[install]\nno-binary = :all:\n",
    )
    put(root, "home/user/.config/uv/uv.toml", 'index-url = "https://u/e"\n')
    env = {**HOME, "PIP_EXTRA_INDEX_URL": "https://evil/s", "UV_NO_CONFIG": "1"}
    assert clients.index_urls(env, root).urls == default
    put(root, "etc/pip.conf", "[global]\nindex-url = https://etc/s\n")
    assert clients.index_urls({**env, "PIP_CONFIG_FILE": "/dev/null"}, root).urls == default


@pytest.mark.parametrize("path", ["etc/pip.conf", "home/user/.config/uv/uv.toml"])
def test_broken_files_of_theirs(root: Path, path: str) -> None:
    put(root, path, "[global\nindex-url = https://user:s3cret@x/s\n")
    with pytest.raises(SettingsError) as caught:
        clients.index_urls(HOME, root)
    assert path in caught.value.what
    assert "s3cret" not in str(caught.value.as_dict())


def test_as_pip_itself_reads_them(tmp_path: Path) -> None:
    """The real pip, asked with the same files and environment, names the same index."""
    for where in ("xdg/pip", "home/.config/pip"):
        (tmp_path / where).mkdir(parents=True)
    env = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_DIRS": str(tmp_path / "xdg")}
    (tmp_path / "xdg/pip/pip.conf").write_text("[global]\nindex-url = https://xdg.example/s\n")
    user = tmp_path / "home/.config/pip/pip.conf"
    named = tmp_path / "named.conf"
    named.write_text("[global]\nindex-url = https://named.example/s\n")
    for step in (
        lambda: None,
        lambda: user.write_text("[global]\nindex-url = https://user.example/s\n"),
        lambda: env.update(PIP_CONFIG_FILE=str(named)),
        lambda: env.update(PIP_CONFIG_FILE="/dev/null", PIP_INDEX_URL="https://env.example/s"),
    ):
        step()
        said = subprocess.run(
            # Not `config list`, whose lines are sorted and name what is overruled too. The hosts
            # do not exist, which pip finds out after it has said where it looks.
            [sys.executable, "-m", "pip", "download", "--no-deps", "--retries=0", "pinwheel-none"],
            env={**env, "PATH": os.environ["PATH"]},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        if "No module named pip" in said.stderr:
            pytest.skip("no pip in this environment")
        (url,) = clients.index_urls(env).urls
        assert said.stdout.splitlines()[0] == f"Looking in indexes: {url}", said.stderr


# --- apt -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("deb http://m/debian bookworm main", ["http://m/debian"]),
        ("deb [arch=amd64 trusted=yes] https://m/debian/ trixie main contrib", ["https://m/debian/"]),
        ("deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://m/d sid main", ["http://m/d"]),
        ("  deb  file:///srv/debian  oldstable  main # local", ["file:///srv/debian"]),
        ("deb http://m/debian stable-backports main", ["http://m/debian"]),
        ("deb http://m/debian-security bookworm-security main", []),
        ("deb http://m/debian-security bullseye/updates main", []),
        ("deb-src http://m/debian bookworm main", []),
        ("# deb http://m/debian bookworm main", []),
        ("deb http://m/ubuntu noble main", []),
        ("deb http://m/vendor bookworm stable", []),
        ("deb [signed-by=/etc/apt/keyrings/vendor.gpg] http://m/vendor bookworm main", []),
        ("deb [arch=arm64] http://m/debian bookworm main", []),
        ("deb cdrom:[Debian] bookworm main", []),
        ("deb mirror+file:/etc/mirrors bookworm main", []),
        ("deb http://m/debian", []),
        ("deb", []),
    ],
)  # fmt: skip
def test_one_line_sources(line: str, expected: list[str]) -> None:
    assert list(clients.one_line_debian(line)) == expected


DEB822 = """\
# comment
Types: deb deb-src
URIs: http://m/debian
  https://n/debian
# in between
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://m/debian-security
Suites: bookworm-security
Components: main

Enabled: no
Types: deb
URIs: http://off/debian
Suites: bookworm
Components: main

types: deb
uris: http://pasted/debian
suites: trixie
components: main non-free
signed-by:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mQ
 -----END PGP PUBLIC KEY BLOCK-----

Types: deb
URIs: http://vendor/debian
Suites: bookworm
Components: main
Signed-By: /usr/share/keyrings/vendor.gpg
"""


def test_deb822_sources(root: Path) -> None:
    assert list(clients.deb822_debian(DEB822)) == [
        "http://m/debian",
        "https://n/debian",
        "http://pasted/debian",
    ]
    put(root, "etc/apt/sources.list", "deb http://first/debian bookworm main\n")
    put(root, "etc/apt/sources.list.d/a.sources", DEB822)
    put(root, "etc/apt/sources.list.d/b.list", "deb http://m/debian/ bookworm main\n")
    put(root, "etc/apt/sources.list.d/c.list.disabled", "deb http://x/debian bookworm main\n")
    assert clients.debian_urls(root).urls == (
        "http://first/debian",
        "http://m/debian",
        "https://n/debian",
        "http://pasted/debian",
    )


# --- properties ----------------------------------------------------------------------------

WORD = st.text(st.sampled_from("abcdefghijklmnopqrstuvwxyz0123456789-_."), min_size=1, max_size=12)
URL = st.builds("{}://{}/{}".format, st.sampled_from(["http", "https"]), WORD, WORD)
SUITE = st.sampled_from(["bookworm", "trixie-updates", "sid", "stable-backports"])
OTHER = st.sampled_from(
    ["noble", "bookworm-security", "bookworm/updates", "nodistro", "jammy-main"]
)
SOURCE_LIKE = st.text(
    st.sampled_from("deb [signed-by=/x.gpg] http://m:Types\nURIs Suites # main\t")
)


@given(st.one_of(st.text(), SOURCE_LIKE))
def test_no_text_breaks_the_apt_readers(text: str) -> None:
    for url in (*clients.one_line_debian(text), *clients.deb822_debian(text)):
        assert url.startswith(("http://", "https://", "file://"))
        assert not any(c.isspace() for c in url)


@given(st.lists(st.tuples(URL, st.one_of(SUITE, OTHER), st.booleans()), max_size=6))
def test_both_apt_styles_say_the_same(entries: list[tuple[str, str, bool]]) -> None:
    one = "".join(f"{'' if on else '#'}deb {url} {suite} main\n" for url, suite, on in entries)
    two = "".join(
        f"Types: deb\nURIs: {url}\nSuites: {suite}\nComponents: main\n"
        f"Enabled: {'yes' if on else 'no'}\n\n"
        for url, suite, on in entries
    )
    known = ("bookworm", "trixie-updates", "sid", "stable-backports")
    expected = [url for url, suite, on in entries if on and suite in known]
    assert list(clients.one_line_debian(one)) == list(clients.deb822_debian(two)) == expected


@given(st.one_of(st.text(), st.text(st.sampled_from("[global]\nindex-url=_ :#;htp/"))))
def test_no_text_breaks_the_pip_reader(text: str) -> None:
    with suppress(SettingsError):
        value = clients.pip_index_of(text, "pip.conf")
        assert not any(c.isspace() for c in value)


@given(URL, st.sampled_from(["index-url", "index_url"]), st.sampled_from([" = ", ":", "=", " : "]))
def test_pip_reader_finds_what_was_written(url: str, key: str, separator: str) -> None:
    text = f"[install]\nindex-url = http://no/x\n[global]\ntimeout = 60\n{key}{separator}{url}\n"
    assert clients.pip_index_of(text, "pip.conf") == url


@given(st.one_of(st.text(), st.text(st.sampled_from('[[index]]\nurl = "x" default=true pip.'))))
def test_no_text_breaks_the_uv_reader(text: str) -> None:
    with suppress(SettingsError):
        extra, default = clients.uv_indexes_of(text, "uv.toml")
        assert all(isinstance(u, str) for u in (*extra, default))


@given(st.text())
def test_redact_never_keeps_a_password(text: str) -> None:
    host = "host.example"
    secret = "\x00" + "".join(c for c in text if c not in "/?#@\\") + "\x00"
    assert secret not in redact(f"https://user:{secret}@{host}/simple")


@pytest.mark.parametrize("value", ["a" * 300, "a/" * 3000, "a\0b"])
@pytest.mark.parametrize("name", ["cache", "dist", "recipes"])
def test_a_path_no_system_call_takes(project: Path, root: Path, name: str, value: str) -> None:
    settings = load(project, root)
    path = Path("/", value)
    with pytest.raises(SettingsError, match=f"^{name} is no path") as caught:
        replace(settings, **{name: (path,) if name == "recipes" else path})
    assert len(caught.value.what) < 300


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "a = " + "9" * 5000])
def test_a_file_that_breaks_the_parser(project: Path, root: Path, text: str) -> None:
    put(project, "pinwheel.toml", text)
    with pytest.raises(SettingsError, match="is not TOML"):
        load(project, root)


def test_a_device_is_no_configuration(project: Path, root: Path) -> None:
    (project / "zero").symlink_to("/dev/zero")
    env = {**HOME, "PIP_CONFIG_FILE": str(project / "zero")}
    with pytest.raises(SettingsError, match="no configuration file"):
        load_settings(project, env)
    os.mkfifo(project / "pinwheel.toml")
    with pytest.raises(SettingsError, match="cannot be read"):
        load(project, root)


def test_a_working_directory_that_is_gone(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(SettingsError, match="working directory"):
        load_settings(None, HOME, root=root)
