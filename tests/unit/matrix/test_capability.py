from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matrix_kit import PROJECT

from pinwheel.errors import CapabilityError
from pinwheel.matrix.capability import (
    Capability,
    Cover,
    coverage,
    format_capabilities,
    ptx_runs_on,
    sass_runs_on,
)
from pinwheel.matrix.models import Matrix, load_matrix
from pinwheel.matrix.require import require_gcc, require_targets

KNOWN = load_matrix(PROJECT / "arch_matrix.toml").known
TARGETS = sorted(KNOWN.accepted)
target = st.sampled_from(TARGETS)
listed = st.builds(lambda c, p: Capability(c.major, c.minor, c.variant, p), target, st.booleans())
lists = st.lists(listed, min_size=1, max_size=12, unique_by=lambda c: c.code)


def cap(text: str) -> Capability:
    variant = text[-1] if text[-1] in "af" else ""
    major, minor = text.rstrip("af").split(".")
    return Capability(int(major), int(minor), variant)  # type: ignore[arg-type]


class TestParsing:
    @pytest.mark.parametrize(
        "text",
        [
            "8.0;8.6;8.9;9.0",
            "8.0 8.6 8.9 9.0",
            "8.0,8.6,8.9,9.0",
            "80,86,89,90",
            "9.0 ; 8.9, 8.6\n8.0",
            " 80 8.6;89,\t9.0 ",
            ["8.0", "8.6", "8.9", "9.0"],
            ("90", "89", "86", "80"),
        ],
    )
    def test_b1_same_normalized_list(self, matrix: Matrix, text: object) -> None:
        assert format_capabilities(matrix.parse_capabilities(text)) == "8.0;8.6;8.9;9.0"

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("native", "no two machines"),
            ("NATIVE", "no two machines"),
            ("", "empty"),
            ("  \t\n", "empty"),
            ("8.0;8.0", "twice"),
            ("8.0;80", "twice"),
            ("8.0 8.0+PTX", "twice"),
            ("8.10", "single digit"),
            ("12.1(2.0)", "two capabilities in one"),
            ("all", "other targets"),
            ("all-major", "other targets"),
            ("common", "other targets"),
            ("Ampere", "names stand for"),
            ("8.0;Hopper", "names stand for"),
            ("Kepler+Tesla", "names stand for"),
            ("Volta", "names stand for"),
            ("8.0;;8.6", "an entry is empty"),
            ("8.0;", "an entry is empty"),
            (";8.0", "an entry is empty"),
            ("8.0+ptx", "exactly +PTX"),
            ("sm_80", "compiler target"),
            ("compute_90", "compiler target"),
            ("80-real", "compiler target"),
            ("8", "not of the form"),
            ("8.", "not of the form"),
            (".8", "not of the form"),
            ("-8.0", "not of the form"),
            ("+8.0", "not of the form"),
            ("8.0.0", "not of the form"),
            ("0.8", "starts with"),
            ("08.0", "starts with"),
            ("8.0b", "not of the form"),
            ("9.0af", "not of the form"),
            ("9.0 a", "not of the form"),
            ("8.0a", "no variant"),
            ("9.0f", "no variant"),
            ("8.8", "knows no such"),
            ("3.5", "knows no such"),
            ("99.9", "knows no such"),
            ("8.1", "knows no such"),
            ("8\u066b0", "not of the form"),
            ("\u0668.\u0660", "not of the form"),
            ("\uff18.0", "not of the form"),
            ("8\x00.0", "not of the form"),
            ("None", "not of the form"),
            ("nan", "not of the form"),
            ("8.0\u00a08.6", "several entries"),
            ("8.0;" * 5000, "longer than"),
            (["8.0"] * 10**5, "named twice"),
            (["8.0;8.6"], "several entries"),
            (["8.0", ""], "not of the form"),
            ([], "empty"),
            ([80], "must be strings"),
            ([8.0], "must be strings"),
            ([True], "must be strings"),
        ],
    )
    def test_b2_refused_with_the_reason(self, matrix: Matrix, text: object, reason: str) -> None:
        with pytest.raises(CapabilityError) as caught:
            matrix.parse_capabilities(text)
        shown = " ".join((caught.value.what, *caught.value.evidence))
        assert reason in shown
        assert len(caught.value.what) < 300
        assert len(shown) < 600
        assert caught.value.next_step

    @pytest.mark.parametrize(
        ("text", "want"),
        [
            ("9.0a", "sm_90a"),
            ("90a", "sm_90a"),
            ("10.0f", "sm_100f"),
            ("100f", "sm_100f"),
            ("12.1a", "sm_121a"),
            ("120", "sm_120"),
        ],
    )
    def test_variants(self, matrix: Matrix, text: str, want: str) -> None:
        (found,) = matrix.parse_capabilities(text)
        assert (found.sm, found.ptx) == (want, False)
        assert found.compute == want.replace("sm", "compute")

    def test_ptx(self, matrix: Matrix) -> None:
        (found,) = matrix.parse_capabilities("9.0+PTX")
        assert str(found) == "9.0+PTX"
        assert found.gencode == (
            "-gencode=arch=compute_90,code=sm_90",
            "-gencode=arch=compute_90,code=compute_90",
        )

    def test_plain_and_variant_are_different_targets(self, matrix: Matrix) -> None:
        assert format_capabilities(matrix.parse_capabilities("9.0a;9.0")) == "9.0;9.0a"

    def test_unknown_names_what_is_known(self, matrix: Matrix) -> None:
        with pytest.raises(CapabilityError) as caught:
            matrix.parse_capabilities("8.8")
        assert "8.9" in caught.value.evidence[0]

    @given(lists)
    def test_round_trip_sorted_and_idempotent(self, capabilities: list[Capability]) -> None:
        from pinwheel.matrix.capability import parse_capabilities

        for separator in (";", " ", ",", " ; "):
            text = separator.join(str(c) for c in capabilities)
            once = parse_capabilities(text, known=KNOWN)
            assert list(once) == sorted(capabilities)
            assert parse_capabilities(once, known=KNOWN) == once
            assert parse_capabilities(format_capabilities(once), known=KNOWN) == once

    @given(st.text(max_size=40) | st.from_regex(r"[0-9.;, af+PTX()-]{0,20}", fullmatch=True))
    def test_junk_is_refused_or_means_exactly_what_it_says(self, text: str) -> None:
        from pinwheel.matrix.capability import parse_capabilities

        try:
            found = parse_capabilities(text, known=KNOWN)
        except CapabilityError:
            return
        digits = text.replace(".", "")
        for capability in found:
            assert capability.code in KNOWN.accepted
            assert str(capability).replace(".", "") in digits
        assert sum(c.isdigit() for c in text) == sum(len(f"{c.major}{c.minor}") for c in found)

    def test_capability_rejects_nonsense(self) -> None:
        for arguments in ((8, 10), (0, 1), (-8, 0), (100, 0)):
            with pytest.raises(ValueError, match="no compute capability"):
                Capability(*arguments)
        with pytest.raises(ValueError, match="variant"):
            Capability(9, 0, "b")  # type: ignore[arg-type]


class TestTargets:
    @pytest.mark.parametrize(
        ("capability", "line"),
        [
            ("8.9", "11.7"),
            ("9.0", "11.7"),
            ("10.0", "12.4"),
            ("7.0", "13.0"),
            ("9.0a", "11.8"),
            ("10.0f", "12.8"),
            ("10.1", "13.0"),
            ("11.0", "12.9"),
        ],
    )
    def test_b3_refused(self, matrix: Matrix, capability: str, line: str) -> None:
        capabilities = matrix.parse_capabilities(f"8.0;{capability}")
        with pytest.raises(CapabilityError) as caught:
            require_targets(matrix, line, capabilities)
        assert capability in caught.value.what
        assert line in caught.value.what
        assert "ptxas" in caught.value.evidence[0]

    @pytest.mark.parametrize("line", ["12.1", "12.4", "12.9", "13.0"])
    def test_the_flagships_list_is_targetable(self, matrix: Matrix, line: str) -> None:
        require_targets(matrix, line, matrix.parse_capabilities("8.0;8.6;8.9;9.0+PTX"))

    def test_line_unknown(self, matrix: Matrix) -> None:
        from pinwheel.errors import MatrixError

        with pytest.raises(MatrixError, match=r"12\.7"):
            require_targets(matrix, "12.7", ())


class TestGcc:
    def test_d3_gcc_14_with_cuda_12_4(self, matrix: Matrix) -> None:
        from pinwheel.errors import ToolchainError

        with pytest.raises(ToolchainError, match="takes gcc up to 13") as caught:
            require_gcc(matrix, "12.4", 14, available=(12, 14))
        assert "g++-12" in caught.value.next_step
        assert "host_config.h" in caught.value.evidence[0]

    @pytest.mark.parametrize(
        ("line", "newest"),
        [("11.8", 11), ("12.1", 12), ("12.3", 12), ("12.4", 13), ("12.8", 14), ("13.0", 15)],
    )
    def test_limits(self, matrix: Matrix, line: str, newest: int) -> None:
        from pinwheel.errors import ToolchainError

        require_gcc(matrix, line, newest)
        with pytest.raises(ToolchainError, match=rf"g\+\+-{newest}|too new"):
            require_gcc(matrix, line, newest + 1)

    def test_unknown_limit_is_refused(self, change) -> None:  # type: ignore[no-untyped-def]
        from pinwheel.errors import ToolchainError

        matrix = change("cuda", "12.1", "gcc-source")
        with pytest.raises(ToolchainError, match="unknown"):
            require_gcc(matrix, "12.4", 4)


class TestRuns:
    @pytest.mark.parametrize(
        ("code", "device", "runs"),
        [
            ("8.0", "8.6", True),  # B4
            ("8.0", "8.9", True),
            ("8.0", "8.7", False),  # B5
            ("8.6", "8.7", False),  # B5
            ("8.7", "8.7", True),
            ("8.7", "8.9", False),
            ("9.0", "12.0", False),  # B6
            ("9.0a", "10.0", False),  # B8
            ("9.0a", "9.0", True),
            ("8.9", "8.6", False),
            ("7.0", "7.5", True),
            ("7.0", "7.2", False),
            ("10.0f", "10.3", True),
            ("10.0f", "10.0", True),
            ("10.3f", "10.0", False),
            ("10.0f", "10.1", False),
            ("10.0f", "12.0", False),
            ("10.0a", "10.3", False),
            ("12.0", "12.1", True),
            ("12.0f", "12.1", True),
            ("12.0a", "12.1", False),
        ],
    )
    def test_sass(self, code: str, device: str, runs: bool) -> None:
        assert sass_runs_on(cap(code), cap(device), known=KNOWN) is runs

    @pytest.mark.parametrize(
        ("code", "device", "runs"),
        [
            ("8.0", "12.0", True),
            ("8.0", "8.7", True),
            ("9.0", "8.9", False),
            ("9.0a", "9.0", True),
            ("9.0a", "10.0", False),
            ("10.0f", "10.3", True),
            ("10.0f", "12.0", False),
            ("10.0f", "10.1", False),
        ],
    )
    def test_ptx(self, code: str, device: str, runs: bool) -> None:
        assert ptx_runs_on(cap(code), cap(device), known=KNOWN) is runs

    @given(target, target)
    def test_machine_code_never_leaves_its_major(self, code: Capability, on: Capability) -> None:
        device = Capability(*on.base)
        if sass_runs_on(code, device, known=KNOWN):
            assert code.major == device.major
            assert code.minor <= device.minor
            assert code.base == device.base or code.variant != "a"
            # What runs as machine code could also be compiled from its PTX.
            assert ptx_runs_on(code, device, known=KNOWN)

    def test_unknown_device_is_refused_not_guessed(self) -> None:
        with pytest.raises(CapabilityError, match=r"8\.8"):
            sass_runs_on(cap("8.6"), Capability(8, 8), known=KNOWN)
        assert not sass_runs_on(cap("8.6"), Capability(14, 0), known=KNOWN)

    def test_a_gpu_reports_no_variant(self) -> None:
        with pytest.raises(ValueError, match="without variant"):
            sass_runs_on(cap("9.0"), cap("9.0a"), known=KNOWN)

    def test_b6_says_what_is_missing(self) -> None:
        found = coverage([cap("8.0"), cap("9.0")], cap("12.0"), known=KNOWN)
        assert (found.cover, found.by) == (Cover.NONE, None)
        assert "12.0 is missing" in found.reason

    def test_b7_torch_falls_short(self, matrix: Matrix) -> None:
        ours = coverage([cap("12.0")], cap("12.0"), known=KNOWN)
        torch = matrix.torch["2.7.0+cu126"].capabilities
        assert torch is not None
        theirs = coverage(matrix.parse_capabilities(torch), cap("12.0"), known=KNOWN)
        assert (ours.cover, theirs.cover) == (Cover.NATIVE, Cover.NONE)

    def test_b9_covered_by_same_major_code(self) -> None:
        library = [cap("8.0"), cap("9.0")]
        for text in ("8.6", "8.9"):
            found = coverage(library, cap(text), known=KNOWN)
            assert (found.cover, found.by) == (Cover.SAME_MAJOR, cap("8.0"))

    def test_torch_2_3_serves_8_9_though_not_listed(self, matrix: Matrix) -> None:
        carried = matrix.torch["2.3.0+cu121"].capabilities
        assert carried is not None
        assert "8.9" not in carried
        found = coverage(matrix.parse_capabilities(carried), cap("8.9"), known=KNOWN)
        assert (found.cover, found.by) == (Cover.SAME_MAJOR, cap("8.6"))

    def test_ptx_comes_last(self, matrix: Matrix) -> None:
        found = coverage(matrix.parse_capabilities("8.0;9.0+PTX"), cap("12.0"), known=KNOWN)
        assert found.cover is Cover.PTX
