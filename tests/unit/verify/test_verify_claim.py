"""What a wheel is held against, and who says so: options, combo, manifest, METADATA."""

from __future__ import annotations

import pytest
from verify_kit import BUILD, COMBO, Gate, Parts, broken, cubin_entry, told

from pinwheel.errors import CapabilityError, RecipeError, UnknownComboError
from pinwheel.verify.model import Profile, Report, Status


def claim(report: Report, key: str) -> tuple[object, str]:
    part = report.claim[key]
    return part["value"], part["from"]


def test_our_manifest_says_everything(gate: Gate) -> None:
    report = gate.report()
    assert report.profile is Profile.OURS
    assert claim(report, "torch") == (BUILD, "the wheel's manifest")
    assert claim(report, "capabilities") == (["8.0", "9.0"], "the wheel's manifest")
    combo, source = claim(report, "combo")
    assert combo == COMBO
    assert "the project has this recipe and lock" in source
    assert report.claim["overridden"] == []


def stranger(**changes: object) -> Parts:
    values: dict[str, object] = {"with_manifest": False, **changes}
    return Parts(**values)  # type: ignore[arg-type]


def test_a_strangers_wheel_is_held_against_metadata_and_matrix(gate: Gate) -> None:
    parts = stranger()
    parts.requires[0] = "torch==2.4"
    report = gate.report(parts, loaded=None)
    assert report.profile is Profile.STRANGER
    value, source = claim(report, "torch")
    assert value == "2.4.0+cu121"
    assert source.startswith("METADATA, torch==2.4; CUDA 12.1 by arch_matrix.toml [releases.tinyp")
    value, source = claim(report, "capabilities")
    assert value == ["8.0", "9.0"]
    assert "upstream's own list" in source
    assert broken(report) == {}
    skipped = {o.rule for o in report.outcomes if o.status is Status.NOT_APPLICABLE}
    assert {"manifest-agrees", "stripped", "companion-pins", "parity", "one-libtorch"} <= skipped


def test_the_only_build_of_a_release_the_matrix_has_no_row_for(gate: Gate) -> None:
    parts = stranger()
    parts.requires[0] = "torch==2.3.1"
    report = gate.report(parts)
    value, source = claim(report, "torch")
    assert value == "2.3.1+cu121"
    parts.requires[0] = "torch==9.9"
    value, source = claim(gate_again(gate, parts), "torch")
    assert value is None
    assert "no one build" in source


def gate_again(gate: Gate, parts: Parts, **request: object) -> Report:
    gate.place = gate.place / "again"
    gate.place.mkdir()
    return gate.report(parts, **request)


@pytest.mark.parametrize(
    ("requires", "why"),
    [
        (["numpy<2"], "METADATA pins no torch"),
        (["torch"], "METADATA pins no one release of torch"),
        (["torch>=99"], "METADATA pins no one release of torch"),
        (['torch==2.3.0; sys_platform == "win32"'], "METADATA pins no one release of torch"),
        (
            ['torch==2.3.0; python_version < "3.10"', 'torch==2.4.0; python_version >= "3.10"'],
            "METADATA pins no one release of torch",
        ),
    ],
)
def test_an_unknown_torch_is_unknown_and_does_not_fit(
    gate: Gate, requires: list[str], why: str
) -> None:
    report = gate.report(stranger(requires=requires))
    value, source = claim(report, "torch")
    assert value is None
    assert why in source
    found = broken(report)
    rules = ("torch-known", "abi-flag", "abi-version", "abi-link", "abi-resolved", "torch-code")
    assert {found[rule] for rule in rules} == {Status.UNKNOWN}
    assert not report.fits


@pytest.mark.parametrize(
    ("requires", "oldest"),
    [
        ("torch>=2.3", "2.3.0+cu121"),
        ("torch==2.4.*", "2.4.0+cu121"),
        ("torch>2.3.0", "2.3.1+cu121"),
    ],
)
def test_an_open_release_is_held_against_the_oldest_it_admits(
    gate: Gate, requires: str, oldest: str
) -> None:
    """A8: what torch's stable ABI asks for is a minimum; C++ symbols are tied to one release."""
    report = gate.report(stranger(requires=[requires]))
    value, source = claim(report, "torch")
    assert value == oldest
    assert source == f"METADATA, {requires}: the oldest build in arch_matrix.toml it admits"
    assert broken(report)["torch-pin"] is Status.FAILED
    assert "leaves the torch release open" in told(report, "torch-pin")


def test_a_build_without_snapshot_is_unknown(gate: Gate) -> None:
    report = gate.report(Parts(), torch="2.5.1")
    assert claim(report, "torch") == ("2.5.1+cu124", "--torch")
    found = broken(report)
    assert found["torch-known"] is Status.UNKNOWN
    assert found["torch-pin"] is Status.FAILED  # METADATA says 2.3.0
    assert "known: 2.3.0+cu121" in told(report, "torch-known")


def test_options_win_and_that_is_said(gate: Gate) -> None:
    report = gate.report(Parts(), torch="2.4.0", archs="8.0", profile=Profile.STRANGER)
    assert claim(report, "torch") == ("2.4.0+cu121", "--torch")
    assert claim(report, "capabilities") == (["8.0"], "--archs")
    assert claim(report, "profile") == ("stranger", "--profile")
    assert report.claim["overridden"] == [
        "torch 2.4.0+cu121 (--torch) instead of 2.3.0+cu121 (the wheel's manifest)",
        "capabilities 8.0 (--archs) instead of 8.0;9.0 (the wheel's manifest)",
    ]


def test_a_combo_brings_recipe_and_lock(gate: Gate) -> None:
    parts = stranger()
    report = gate.report(parts, combo=COMBO)
    assert claim(report, "combo") == (COMBO, "--combo")
    assert claim(report, "torch") == (BUILD, "--combo")
    assert claim(report, "capabilities") == (["8.0", "9.0"], "--combo")
    assert report.profile is Profile.STRANGER
    assert report.fits  # nothing of ours is asked of it
    ours = gate.again(gate.wheel, combo=COMBO, profile=Profile.OURS)
    assert broken(ours) == {"manifest-agrees": Status.FAILED}
    assert "it is missing" in told(ours, "manifest-agrees")


def test_a_combo_whose_lock_is_another(gate: Gate) -> None:
    wheel = gate.make()
    lock = next(gate.settings.project.rglob("lock.*.toml"))
    lock.write_text(lock.read_text().replace("1.26.4", "1.26.5", 1))
    found = broken(gate.again(wheel, combo=COMBO, loaded=Parts().loaded))
    assert found == {"manifest-agrees": Status.FAILED}
    # Without --combo nothing is known of the lock that built it, and that is no pass.
    alone = gate.again(wheel, loaded=Parts().loaded)
    assert broken(alone) == {"companion-pins": Status.UNKNOWN, "parity": Status.UNKNOWN}
    assert "another now" in told(alone, "companion-pins")


def test_a_manifest_of_a_combo_nobody_has(gate: Gate) -> None:
    parts = Parts(manifest={"combo": "cu999-torch9.9-nothing1"})
    found = broken(gate.report(parts))
    assert found == {
        "manifest-agrees": Status.FAILED,
        "companion-pins": Status.UNKNOWN,
        "parity": Status.UNKNOWN,
    }


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"combo": "cu121-torch2.3-nothing1"}, UnknownComboError),
        ({"combo": COMBO, "toolkit": "none-1.2.3"}, RecipeError),
        ({"archs": "native"}, CapabilityError),
        ({"archs": "8.10"}, CapabilityError),
    ],
)
def test_what_cannot_be_held_against_is_an_error(
    gate: Gate, request_: dict[str, str], error: type[Exception]
) -> None:
    gate.make()
    with pytest.raises(error):
        gate.again(gate.wheel, **request_)


def test_code_for_a_capability_the_matrix_does_not_know_is_unknown(gate: Gate) -> None:
    parts = Parts()
    parts.c.entries.append(cubin_entry(88))
    report = gate.report(parts)
    assert not report.fits
    assert all("8.8" in told(report, rule) for rule, _ in broken(report).items())
