from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path

import pytest
from archive_kit import deb, member, symlink
from root_kit import python, tree_digest

from pinwheel.buildroot import root as module
from pinwheel.buildroot.root import MOUNT_POINTS, root_digest, unpack_root
from pinwheel.console import Console
from pinwheel.errors import UnpackError
from pinwheel.files import sha256_file
from pinwheel.recipe.data import root_data
from pinwheel.recipe.lock import Input, Role, SourceKind

DIRECTORY = b"5"  # tarfile.DIRTYPE
PACKAGES = {
    "base-files": [
        member("./usr/", kind=DIRECTORY, mode=0o755),
        member("./tmp/", kind=DIRECTORY, mode=0o1777),
        member("./root/", kind=DIRECTORY, mode=0o700),
        member("./etc/debian_version", b"12\n"),
    ],
    "base-passwd": [
        member("./usr/share/base-passwd/passwd.master", b"root:*:0:0:\n"),
        member("./usr/share/base-passwd/group.master", b"root:*:0:\n"),
    ],
    "gcc": [member("./usr/bin/gcc", b"gcc", mode=0o755), member("./usr/bin/g++", b"g++")],
    "libc6": [
        member("./lib/x86_64-linux-gnu/libc.so.6", b"libc", mode=0o755),
        symlink("./lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/ld.so"),
    ],
    "mawk": [member("./usr/bin/mawk", b"mawk", mode=0o755)],
    "sudo": [member("./usr/bin/sudo", b"sudo", mode=0o4755)],
}


class Debs:
    """Small .debs as a lock lists them."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.inputs: list[Input] = []
        self.paths: dict[str, Path] = {}
        for name, members in PACKAGES.items():
            self.add(name, deb(directory / f"{name}_1_amd64.deb", members))

    def add(self, name: str, path: Path) -> None:
        sha256 = sha256_file(path)
        self.paths[sha256] = path
        self.inputs.append(
            Input(
                roles=(Role.ROOT,),
                source=SourceKind.DEBIAN,
                name=name,
                version="1",
                path=f"pool/{path.name}",
                size=path.stat().st_size,
                sha256=sha256,
            )
        )


@pytest.fixture
def debs(tmp_path: Path) -> Debs:
    return Debs(tmp_path / "debs")


@pytest.fixture
def console() -> Console:
    return Console(err=StringIO(), out=StringIO())


def test_a_root_is_what_its_packages_and_their_scripts_would_make(
    debs: Debs, tmp_path: Path, console: Console
) -> None:
    root = unpack_root(debs.inputs, debs.paths, tmp_path / "roots", console)
    assert (root / "lib/x86_64-linux-gnu/libc.so.6").read_bytes() == b"libc"
    assert (root / "lib").readlink() == Path("usr/lib")
    assert (root / "bin").readlink() == Path("usr/bin")
    assert (root / "usr/bin/cc").readlink() == Path("gcc")
    assert (root / "usr/bin/awk").readlink() == Path("mawk")
    assert (root / "etc/passwd").read_text() == "root:*:0:0:\n"
    assert (root / "etc/hosts").read_text() == "127.0.0.1 localhost\n"
    assert all((root / name).is_dir() for name in MOUNT_POINTS)
    assert not (root / "usr/bin/sudo").stat().st_mode & stat.S_ISUID
    assert root.parent == tmp_path / "roots"
    assert root.name == root_digest(debs.inputs, root_data().layout)[:32]


def test_the_same_root_whatever_the_umask_and_the_order(
    debs: Debs, tmp_path: Path, console: Console
) -> None:
    digests = set()
    for number, umask in enumerate((0o022, 0o077, 0o000)):
        before = os.umask(umask)
        try:
            inputs = debs.inputs if number else debs.inputs[::-1]
            root = unpack_root(inputs, debs.paths, tmp_path / f"roots{number}", console)
        finally:
            os.umask(before)
        digests.add((root.name, stat.S_IMODE(root.stat().st_mode), tree_digest(root)))
    assert len(digests) == 1


def test_a_root_is_made_once(debs: Debs, tmp_path: Path, console: Console) -> None:
    root = unpack_root(debs.inputs, debs.paths, tmp_path / "roots", console)
    assert unpack_root(debs.inputs, {}, tmp_path / "roots", console) == root  # no file was read


CHANGES: dict[str, Callable[[Path], object]] = {
    "truncated": lambda root: os.truncate(root / "usr/bin/gcc", 1),
    "removed": lambda root: (root / "etc/debian_version").unlink(),
    "added": lambda root: (root / "usr/bin/nvcc").touch(),
    "chmod-ed": lambda root: (root / "usr/bin/gcc").chmod(0o4755),
    "replaced by a link": lambda root: (
        (root / "usr/bin/gcc").unlink(),
        (root / "usr/bin/gcc").symlink_to("mawk"),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_root_that_was_changed_is_made_anew_and_said_so(
    debs: Debs, tmp_path: Path, change: str
) -> None:
    console = Console(err=(said := StringIO()))
    root = unpack_root(debs.inputs, debs.paths, tmp_path / "roots", console)
    before = tree_digest(root)
    CHANGES[change](root)
    assert tree_digest(root) != before
    assert unpack_root(debs.inputs, debs.paths, tmp_path / "roots", console) == root
    assert tree_digest(root) == before
    assert said.getvalue().count(f"build root {root.name} is made anew, it has changed: ") == 1


def test_other_packages_layout_or_revision_make_another_root(
    debs: Debs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = root_data().layout
    one = root_digest(debs.inputs, layout)
    assert root_digest(debs.inputs, layout) == one
    assert root_digest(debs.inputs[1:], layout) != one
    changed = debs.inputs[0].model_copy(update={"sha256": "0" * 64})
    assert root_digest([changed, *debs.inputs[1:]], layout) != one
    assert root_digest(debs.inputs, layout.model_copy(update={"files": {}})) != one
    monkeypatch.setattr(module, "REVISION", module.REVISION + 1)
    assert root_digest(debs.inputs, layout) != one


def test_only_inputs_of_the_root_are_unpacked(debs: Debs, tmp_path: Path, console: Console) -> None:
    extra = deb(tmp_path / "nvcc_1_amd64.deb", [member("./usr/bin/nvcc", b"nvcc")])
    debs.add("nvcc", extra)
    debs.inputs[-1] = debs.inputs[-1].model_copy(update={"roles": (Role.TOOLKIT,)})
    root = unpack_root(debs.inputs, debs.paths, tmp_path / "roots", console)
    assert not (root / "usr/bin/nvcc").exists()


@pytest.mark.parametrize(("gone", "named"), [("mawk", "mawk"), ("gcc", "gcc")])
def test_a_missing_package_is_named(
    debs: Debs, tmp_path: Path, console: Console, gone: str, named: str
) -> None:
    inputs = [i for i in debs.inputs if i.name != gone]
    with pytest.raises(UnpackError, match=f"The build root has no {named} ") as caught:
        unpack_root(inputs, debs.paths, tmp_path / "roots", console)
    assert "pinwheel lock" in caught.value.next_step
    assert not [p for p in (tmp_path / "roots").iterdir() if p.is_dir() and p.suffix == ""]


def test_without_base_passwd_the_error_names_the_file(
    debs: Debs, tmp_path: Path, console: Console
) -> None:
    inputs = [i for i in debs.inputs if i.name != "base-passwd"]
    with pytest.raises(UnpackError, match=r"passwd\.master"):
        unpack_root(inputs, debs.paths, tmp_path / "roots", console)


def test_a_damaged_package_leaves_no_root(debs: Debs, tmp_path: Path, console: Console) -> None:
    path = next(p for p in debs.paths.values() if p.name.startswith("mawk"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    roots = tmp_path / "roots"
    with pytest.raises(UnpackError, match=r"mawk_1_amd64\.deb"):
        unpack_root(debs.inputs, debs.paths, roots, console)
    assert not [p for p in roots.iterdir() if p.is_dir() and not p.suffix]
    path.write_bytes(whole)
    clean = unpack_root(debs.inputs, debs.paths, tmp_path / "clean", console)
    assert tree_digest(unpack_root(debs.inputs, debs.paths, roots, console)) == tree_digest(clean)


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from test_root import Debs
from pinwheel.buildroot import root
from pinwheel.console import Console
debs = Debs(Path(sys.argv[1]))
real, count = root.unpack_deb, [0]
def unpack(path, dest, **options):
    real(path, dest, **options)
    count[0] += 1
    if count[0] == 4:
        (dest / "usr/bin/half").write_text("written when the power went")
        os.kill(os.getpid(), signal.SIGKILL)
root.unpack_deb = unpack
root.unpack_root(debs.inputs, debs.paths, Path(sys.argv[2]), Console(quiet=True))
"""


def test_killed_while_unpacking_and_done_again(
    debs: Debs, tmp_path: Path, console: Console
) -> None:
    roots = tmp_path / "roots"
    here = Path(__file__).parent
    with python(
        KILLED,
        *(str(tmp_path / "debs"), str(roots), str(here), str(here.parent / "inputs_archives")),
    ) as process:
        said, _ = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, said
    (partial,) = roots.glob("*.partial")
    assert (partial / "usr/bin/half").exists()
    root = unpack_root(debs.inputs, debs.paths, roots, console)
    clean = unpack_root(debs.inputs, debs.paths, tmp_path / "clean", console)
    assert tree_digest(root) == tree_digest(clean)
    assert not list(roots.glob("*.partial"))


def test_two_at_once_make_one_root(debs: Debs, tmp_path: Path, console: Console) -> None:
    def make(_: int) -> Path:
        return unpack_root(debs.inputs, debs.paths, tmp_path / "roots", console)

    with ThreadPoolExecutor(4) as pool:
        (root,) = {*pool.map(make, range(4))}
    assert (root / "usr/bin/mawk").exists()
