"""Wheels made to look as if they fit, and commands called so as to do harm: all refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import verify_kit
from click.testing import CliRunner
from inspect_kit import make_cubin, make_entry, make_fatbin, make_ptx
from verify_kit import MAIN, Gate, Lib, Parts, Sec, Sym, broken, cubin_entry, told

from pinwheel.cli.main import cli, main
from pinwheel.errors import ArtifactError, MatrixError, NotWritableError
from pinwheel.matrix.models import load_matrix
from pinwheel.verify.code import CODE_RULES, check_code
from pinwheel.verify.model import Profile, Report, Status
from pinwheel.verify.torch_rules import builds_named

KNOWN = load_matrix(MAIN).known
CAPTURE = pytest.CaptureFixture[str]
C = "tinypack/_C.abi3.so"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9\n"


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture
def at(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """A wheel that fits, and commands that find its project."""
    gate.make()
    monkeypatch.setenv("PINWHEEL_PROJECT", str(gate.settings.project))
    monkeypatch.setenv("PINWHEEL_CACHE", str(gate.settings.cache))
    for name in ("PINWHEEL_RECIPES", "PINWHEEL_DIST"):
        monkeypatch.delenv(name, raising=False)
    return gate


# --- files that are called libraries --------------------------------------------------------


@pytest.mark.parametrize("data", [b"", LFS, b"INPUT(libx.so)", make_cubin()])
@pytest.mark.parametrize("command", ["verify", "abi", "compare"])
def test_no_command_takes_such_a_file_for_data(
    at: Gate, tmp_path: Path, data: bytes, command: str, capsys: CAPTURE
) -> None:
    at.place = tmp_path / "other"
    at.place.mkdir()
    wheel = at.make(Parts(files={**Parts().files, "tinypack/_lost.abi3.so": data}))
    more = [wheel] if command == "compare" else []
    assert run(command, wheel, *more) == ArtifactError.exit_code
    said = capsys.readouterr().err
    assert "tinypack/_lost.abi3.so" in said
    assert "called a library" in said
    assert "next:" in said


# --- device code ----------------------------------------------------------------------------


def empty_cubin(arch: int) -> bytes:
    return make_entry(make_cubin(arch, ()), arch=arch)


def empty_ptx(arch: int) -> bytes:
    text = make_ptx(f"sm_{arch}", kernels=())
    return make_entry(text, kind=1, arch=arch, version=(8, 4))


def verdicts(report: Report) -> dict[str, str]:
    return {row["gpu"]: row["verdict"] for row in report.facts["gpus"]}


def test_images_without_kernels_are_code_for_no_gpu(gate: Gate) -> None:
    parts = Parts()
    for library in (parts.c, parts.moe):
        library.entries = [cubin_entry(80), empty_cubin(90), empty_ptx(90), empty_cubin(120)]
    report = gate.report(parts)
    gpus = verdicts(report)
    assert gpus["8.0"] == "native"
    assert {gpus[gpu] for gpu in ("9.0", "10.0", "12.0")} == {"does not run"}
    found = broken(report)
    assert found["code-present"] is Status.FAILED
    assert "no library has code for 9.0" in told(report, "code-present")
    assert "without a kernel" in told(report, "code-declared")


def test_where_kernels_were_not_read_that_is_unknown(gate: Gate) -> None:
    report = gate.report(kernels=False)
    assert broken(report)["code-kernels"] is Status.UNKNOWN
    assert not report.fits


def test_a_library_that_launches_kernels_and_holds_none_runs_nowhere(gate: Gate) -> None:
    """Its fatbin section renamed, so that nothing finds the code: not the runtime either."""
    parts = Parts(with_manifest=False)
    for library in (parts.c, parts.moe):
        library.entries = []
        library.sections.append(Sec(".nv_fatbim", make_fatbin(cubin_entry(80))))
    report = gate.report(parts, profile=Profile.STRANGER)
    assert broken(report)["code-present"] is Status.FAILED
    assert f"{C} launches kernels and holds none" in told(report, "code-present")
    checked = check_code([], [], known=KNOWN, launching=[C])
    assert set(checked.unsure) == set(CODE_RULES)


def test_one_such_library_is_enough(gate: Gate) -> None:
    parts = Parts(with_manifest=False)
    parts.c.entries = [empty_cubin(80), empty_cubin(90)]
    report = gate.report(parts, profile=Profile.STRANGER)
    assert broken(report)["code-present"] is Status.FAILED


def test_a_nul_in_ptx_hides_no_end(gate: Gate) -> None:
    text = make_ptx("sm_80", kernels=()).rstrip(b"\0") + b"\0.visible .entry k(){}\n\0"
    parts = Parts(with_manifest=False)
    parts.c.entries = [cubin_entry(80), make_entry(text, kind=1, arch=80, version=(8, 4))]
    with pytest.raises(ArtifactError, match="a NUL within it"):
        gate.report(parts)


# --- other machines -------------------------------------------------------------------------


@pytest.mark.parametrize("machine", [183, 3, 21])
def test_a_library_for_another_machine_fits_no_torch(gate: Gate, machine: int) -> None:
    parts = Parts(with_manifest=False)
    parts.core = OtherMachine(machine, needed=["libc.so.6"])
    report = gate.report(parts, profile=Profile.STRANGER)
    assert broken(report)["abi-resolved"] is Status.FAILED
    assert "for another machine" in told(report, "abi-resolved")


def test_and_abi_says_so_too(at: Gate, capsys: CAPTURE) -> None:
    at.place = at.place / "again"
    at.place.mkdir()
    parts = Parts(with_manifest=False)
    parts.core = OtherMachine(183, needed=["libc.so.6"])
    assert run("abi", at.make(parts), "--torch", "2.3.0") == 1
    out = capsys.readouterr().out
    assert "for another machine: EM_AARCH64" in out
    assert "tinypack/_core_C.abi3.so" in out


class OtherMachine(Lib):
    """The same library with another e_machine."""

    def __init__(self, machine: int, **named: Any) -> None:
        super().__init__(**named)
        self.machine = machine

    def bytes(self) -> bytes:
        data = super().bytes()
        return data[:18] + self.machine.to_bytes(2, "little") + data[20:]


# --- operators ------------------------------------------------------------------------------

OPERATORS = ["_C::gelu_new", "_C::rms_norm", "_C_custom_ar::dispose", "_C_custom_ar::meta_size"]
TEXTS = (
    b"\0gelu_new(Tensor! out, Tensor input) -> ()\0rms_norm(Tensor! out, float epsilon) -> ()\0\0\0"
    b"gelu_new\0rms_norm\0dispose\0meta_size\0_C\0_C_custom_ar\0\0\0"
)


@pytest.fixture
def operators(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """A project whose recipe lists operators, and an official wheel that has them."""
    listed = f'[extensions."{C}"]\n'
    assert listed in verify_kit.RECIPE
    recipe = verify_kit.RECIPE.replace(listed, f"{listed}operators = {OPERATORS}\n")
    monkeypatch.setattr(verify_kit, "RECIPE", recipe)
    return gate


def registering(texts: bytes = TEXTS) -> Parts:
    parts = Parts()
    symbols = [Sym("_Z7disposel", defined=True), Sym("_Z9meta_sizev", defined=True)]
    parts.c.symbols += symbols
    parts.c.sections.append(Sec(".rodata", texts))
    official = Parts()
    official.c.symbols += symbols
    official.c.sections.append(Sec(".rodata", TEXTS))
    parts.official = {C: official.c.bytes()}
    return parts


def test_the_operators_of_the_recipe_are_no_difference(operators: Gate) -> None:
    report = operators.report(registering())
    assert broken(report) == {}, told(report, "parity")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"gelu_new(", b"gelu_neu("),  # the schema
        (b"\0gelu_new\0", b"\0gelu_neu\0"),  # the name that the kernel is bound to
        (b"gelu_new", b"gelu_neu"),  # both
        (b"\0dispose\0", b"\0dispoze\0"),  # one without schema
        (b"\0meta_size\0", b"\0nets_size\0"),
        (b"float epsilon", b"float epsilom"),
        (b"\0_C_custom_ar\0", b"\0_C_custom_az\0"),
    ],
)
def test_a_renamed_operator_is_seen_whatever_the_recipe_lists(
    operators: Gate, old: bytes, new: bytes
) -> None:
    assert old in TEXTS
    report = operators.report(registering(TEXTS.replace(old, new)))
    assert broken(report) == {"parity": Status.FAILED}
    assert "(operator)" in told(report, "parity")


def test_a_short_name_that_the_compiler_copies_in_pieces_is_there(operators: Gate) -> None:
    """std::string("meta_size"): eight bytes by one instruction, the last by another."""
    code = b"\x48\xb8meta_siz\x48\x89\x07\xc6\x47\x08e\xc7\x07disp"
    parts = registering(TEXTS.replace(b"dispose\0meta_size\0", b""))
    parts.c.sections.append(Sec(".text", code))
    report = operators.report(parts)
    assert broken(report) == {}, told(report, "parity")


def test_an_operator_that_nobody_listed_is_a_difference(operators: Gate) -> None:
    more = TEXTS.replace(b"\0rms_norm(", b"\0own_the_host(str s) -> ()\0rms_norm(")
    report = operators.report(registering(more))
    assert "added: tinypack/_C.abi3.so: own_the_host" in told(report, "parity")


# --- where reports go -----------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_a_report_replaces_no_device(at: Gate, tmp_path: Path, capsys: CAPTURE) -> None:
    path = tmp_path / "null"
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except OSError as error:
        pytest.skip(f"no devices can be made here: {error}")
    assert run("verify", at.wheel, "--junit", path) == 0
    assert stat.S_ISCHR(path.lstat().st_mode)


def test_a_report_without_a_place_is_said_after_the_verdict(
    at: Gate, tmp_path: Path, capsys: CAPTURE
) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert run("verify", at.wheel, "--junit", tmp_path / "pipe") == NotWritableError.exit_code
    said = capsys.readouterr()
    assert said.out.splitlines()[-1].startswith(f"{at.wheel.name}: fits")
    assert "nobody reads from" in said.err


def test_a_report_overwrites_no_wheel(at: Gate, tmp_path: Path, capsys: CAPTURE) -> None:
    before = at.wheel.read_bytes()
    (tmp_path / "link").symlink_to(at.wheel)
    for target in (at.wheel, tmp_path / "link"):
        assert run("verify", at.wheel, "--junit", target) == 2
    assert at.wheel.read_bytes() == before
    assert "would overwrite" in capsys.readouterr().err


def test_one_report_may_be_written_over_another(at: Gate, tmp_path: Path, capsys: CAPTURE) -> None:
    for _ in range(2):
        assert run("verify", at.wheel, "--junit", tmp_path / "r.xml", "-q") == 0
    assert ET.parse(tmp_path / "r.xml").getroot().tag == "testsuites"


# --- arguments ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2.3.0+cu121", ("2.3.0+cu121",)),
        ("2.3.0", ("2.3.0+cu121",)),
        ("v2.3.0+CU121", ("2.3.0+cu121",)),
        ("2.6.0", ("2.6.0+cu124", "2.6.0+cu126")),
        ("2.3.0+cu118", ()),
        ("2.3.9", ()),
        ("", ()),
        ("no version", ()),
        ("9" * 5000, ()),
    ],
)
def test_a_torch_build_as_people_name_it(text: str, found: tuple[str, ...]) -> None:
    known = ("2.3.0+cu121", "2.6.0+cu124", "2.6.0+cu126")
    assert builds_named(text, known) == found


def test_a_release_with_several_builds_is_no_build(at: Gate) -> None:
    cu124 = verify_kit.torch_build("2.4.0+cu124", {})
    at.place = at.place / "again"
    at.place.mkdir()
    parts = Parts(builds={**verify_kit.torch_builds(), "2.4.0+cu124": cu124})
    matrix = "\n[torch]\n"
    assert matrix not in verify_kit.MATRIX
    report = at.report(parts, torch="2.4.0")
    # The matrix has one build of 2.4.0, which is what is meant; of 2.4.1 there is none.
    assert report.claim["torch"]["value"] == "2.4.0+cu121"
    unknown = at.again(at.wheel, torch="2.4.1")
    assert broken(unknown)["torch-known"] is Status.UNKNOWN


@pytest.mark.parametrize("text", ["", " ", "9" * 5000])
def test_a_torch_that_is_none_is_not_the_default(at: Gate, text: str, capsys: CAPTURE) -> None:
    assert run("verify", at.wheel, "--torch", text) == 2
    assert "--torch names no build" in capsys.readouterr().err


def test_an_empty_toolkit_is_not_the_default(at: Gate, capsys: CAPTURE) -> None:
    assert run("verify", at.wheel, "--combo", verify_kit.COMBO, "--toolkit", "") == 2
    assert "--toolkit is empty" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["torch=={}", "torch=={}+cu121", "numpy<{}", "torch==2.{}.0"])
def test_a_number_without_end_in_metadata_is_refused(gate: Gate, line: str) -> None:
    with pytest.raises(ArtifactError, match="hundreds of digits"):
        gate.report(Parts(requires=[line.format("9" * 5000)], official=None))


def test_outside_a_project_it_says_what_to_set(
    at: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CAPTURE
) -> None:
    monkeypatch.delenv("PINWHEEL_PROJECT")
    monkeypatch.chdir(tmp_path)
    assert run("verify", at.wheel) == MatrixError.exit_code
    assert "PINWHEEL_PROJECT" in capsys.readouterr().err


def test_abi_and_compare_need_no_project(
    at: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CAPTURE
) -> None:
    monkeypatch.delenv("PINWHEEL_PROJECT")
    monkeypatch.chdir(tmp_path)
    assert run("abi", at.wheel, "--torch", "2.3.0") == 0
    assert run("compare", at.wheel, at.wheel) == 0


@pytest.mark.parametrize("command", ["verify", "abi", "compare"])
def test_help_teaches(command: str) -> None:
    text = CliRunner().invoke(cli, [command, "--help"]).output
    for part in ("Examples:", f"pinwheel {command} ", "Exit codes: 0", "docs/exit-codes.md"):
        assert part in text
    assert "docs/rules.md" in text
    assert max(map(len, text.splitlines())) <= 100
    if command == "verify":
        assert all(f"\n    {profile} " in text for profile in ("ours", "release", "stranger"))


def test_what_is_unknown_says_what_to_do_next(at: Gate, capsys: CAPTURE) -> None:
    assert run("verify", at.wheel, "--no-kernels") == 1
    lines = capsys.readouterr().out.splitlines()
    (place,) = (n for n, line in enumerate(lines) if line.startswith("UNKNOWN  code-kernels"))
    assert lines[place + 1].strip().startswith("next: ")
