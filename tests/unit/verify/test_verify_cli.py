"""The two commands: exit codes, the line that is last, several wheels, JSON and JUnit."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from verify_kit import Gate, Parts, Sym

from pinwheel.cli.main import main
from pinwheel.errors import ArtifactError, CapabilityError
from pinwheel.verify.model import Profile
from pinwheel.verify.rules import RULES, asked

CAPTURE = pytest.CaptureFixture[str]


@pytest.fixture
def right(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Path:
    # one-libtorch does not apply outside a build; everything else is as in a build.
    wheel = gate.make()
    monkeypatch.setenv("PINWHEEL_PROJECT", str(gate.settings.project))
    monkeypatch.setenv("PINWHEEL_CACHE", str(gate.settings.cache))
    for name in ("PINWHEEL_RECIPES", "PINWHEEL_DIST"):
        monkeypatch.delenv(name, raising=False)
    return wheel


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_a_wheel_that_fits(right: Path, capsys: CAPTURE) -> None:
    assert run("verify", right) == 0
    out = capsys.readouterr().out
    assert (
        out.splitlines()[-1] == f"{right.name}: fits: {len(asked(Profile.OURS)) - 1} rules passed"
    )
    assert "\x1b" not in out


def test_quiet_leaves_the_last_line(right: Path, capsys: CAPTURE) -> None:
    assert run("verify", right, "--quiet") == 0
    assert (
        capsys.readouterr().out
        == f"{right.name}: fits: {len(asked(Profile.OURS)) - 1} rules passed\n"
    )


def test_one_that_does_not(right: Path, capsys: CAPTURE) -> None:
    assert run("verify", right, "--torch", "2.4.0") == 1
    out = capsys.readouterr().out
    assert "does not fit" in out.splitlines()[-1]
    assert "overridden    torch 2.4.0+cu121" in out


def test_json_and_junit(right: Path, tmp_path: Path, capsys: CAPTURE) -> None:
    target = tmp_path / "ci" / "report.xml"
    assert run("verify", right, "--json", "--junit", target) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["fits"] is True
    (report,) = data["reports"]
    assert report["wheel"] == right.name
    assert [o["rule"] for o in report["outcomes"]] == list(RULES)
    assert ET.parse(target).getroot().tag == "testsuites"


@pytest.mark.parametrize("data", [b"", b"PK", b"no wheel at all" * 100])
def test_one_that_cannot_be_read(right: Path, tmp_path: Path, data: bytes, capsys: CAPTURE) -> None:
    bad = tmp_path / "bad-1-py3-none-any.whl"
    bad.write_bytes(data)
    assert run("verify", bad, "--json") == ArtifactError.exit_code == 60
    said = capsys.readouterr()
    assert json.loads(said.out)["rule"] == "artifact-unreadable"
    assert "Traceback" not in said.err
    assert run("verify", tmp_path / "none-1-py3-none-any.whl") == 60


def test_of_several_a_bad_one_hides_nothing(right: Path, tmp_path: Path, capsys: CAPTURE) -> None:
    bad = tmp_path / "bad-1-py3-none-any.whl"
    bad.write_bytes(b"")
    target = tmp_path / "report.xml"
    assert run("verify", bad, right, "--json", "--junit", target) == 60
    said = capsys.readouterr()
    data = json.loads(said.out)
    assert data["fits"] is False
    assert [r["fits"] for r in data["reports"]] == [True]
    assert data["errors"][0]["wheel"] == bad.name
    assert data["errors"][0]["exit_code"] == 60
    assert bad.name in said.err
    assert len(ET.parse(target).getroot()) == 2


def test_wrong_options(right: Path, capsys: CAPTURE) -> None:
    assert run("verify") == 2
    assert run("verify", right, "--toolkit", "x") == 2
    assert "--combo" in capsys.readouterr().err
    assert run("verify", right, "--profile", "mine") == 2
    assert run("verify", right, "--archs", "native") == CapabilityError.exit_code
    assert run("verify", right, "--official", right.parent / "none.whl") == 60


def test_without_kernels_they_are_unknown(right: Path, capsys: CAPTURE) -> None:
    assert run("verify", right, "--no-kernels") == 1
    assert "UNKNOWN  code-kernels" in capsys.readouterr().out


def test_nothing_is_left_behind(right: Path, gate: Gate, capsys: CAPTURE) -> None:
    run("verify", right)
    assert list(gate.settings.work.iterdir()) == []


def test_compare(right: Path, gate: Gate, capsys: CAPTURE) -> None:
    assert run("compare", right, right) == 0
    assert capsys.readouterr().out.endswith("are the same bytes\n")
    parts = Parts()
    parts.c.symbols.append(Sym("getpid"))
    parts.files["tinypack/__init__.py"] = b"import sys\n"
    gate.place = gate.place / "other"
    gate.place.mkdir()
    other = gate.make(parts)
    assert run("compare", right, other) == 1
    out = capsys.readouterr().out
    assert "tinypack/__init__.py" in out
    assert "differ;" in out.splitlines()[-1]
    assert run("compare", right, other, "--json") == 1
    assert json.loads(capsys.readouterr().out)["equal"] is False
    assert run("compare", right, gate.place / "none-1-py3-none-any.whl") == 60
