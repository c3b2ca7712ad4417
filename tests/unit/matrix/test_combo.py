from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from pinwheel.errors import UnknownComboError, WheelError
from pinwheel.matrix.combo import (
    ArtifactVersion,
    ComboId,
    find_combo,
    line_to_tag,
    nearest,
    tag_to_line,
)

tags = st.sampled_from(["118", "121", "124", "126", "128", "129", "130", "132"])
minors = st.builds(lambda a, b: f"{a}.{b}", st.integers(0, 9), st.integers(0, 99))
packages = st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z])?", fullmatch=True)
releases = st.builds(
    lambda parts, post: str(Version(".".join(map(str, parts)) + post)),
    st.lists(st.integers(0, 99), min_size=1, max_size=4),
    st.sampled_from(["", ".post1", "rc2", ".dev3"]),
)


class TestComboId:
    @pytest.mark.parametrize(
        "text",
        [
            "cu121-torch2.3-vllm0.6.3",
            "cu130-torch2.11-pinprobe0.1.0",
            "cu124-torch2.5-vllm0.6.4.post1",
            "cu128-torch2.10-flash-attn2.8.3",
        ],
    )
    def test_round_trip(self, text: str) -> None:
        assert str(ComboId.parse(text)) == text

    def test_fields(self) -> None:
        combo = ComboId.parse("cu121-torch2.3-vllm0.6.3")
        assert combo == ComboId("121", "2.3", "vllm", "0.6.3")
        assert combo.cuda_line == "12.1"

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "cu121",
            "cu121-torch2.3-vllm",
            "cu121-torch2.3-0.6.3",
            "cu12-torch2.3-vllm0.6.3",
            "cu1210-torch2.3-vllm0.6.3",
            "cu012-torch2.3-vllm0.6.3",
            "cu121-torch2-vllm0.6.3",
            "cu121-torch2.3.0-vllm0.6.3",
            "cu121-torch2.03-vllm0.6.3",
            "cu121-torch2.3-vLLM0.6.3",
            "cu121-torch2.3-vllm0.6.03",
            "cu121-torch2.3-vllm0.6.3+cu121",
            "cu121-torch2.3-vllm-0.6.3",
            "CU121-torch2.3-vllm0.6.3",
            " cu121-torch2.3-vllm0.6.3",
            "cu121-torch2.3-vllm0.6.3\n",
            "cu121-torch2.3-../../x0.6.3",
            "cu\uff1121-torch2.3-vllm0.6.3",
            "cu121-torch2.3-vllm" + "0" * 10_000,
        ],
    )
    def test_refused(self, text: str) -> None:
        with pytest.raises(UnknownComboError) as caught:
            ComboId.parse(text)
        assert len(caught.value.what) < 200

    @given(tags, minors, packages, releases)
    def test_what_can_be_made_reads_back(
        self, cuda: str, torch: str, package: str, release: str
    ) -> None:
        try:
            combo = ComboId(cuda, torch, package, release)
        except ValueError:
            # Only a name that would swallow part of a release may be refused.
            assert any(c.isdigit() for c in package)
            return
        assert ComboId.parse(str(combo)) == combo

    @given(st.text(max_size=60))
    def test_junk_never_passes_changed(self, text: str) -> None:
        try:
            combo = ComboId.parse(text)
        except UnknownComboError:
            return
        assert str(combo) == text

    def test_ambiguous_name_is_refused(self) -> None:
        with pytest.raises(ValueError, match="cannot be part"):
            ComboId("121", "2.3", "x0rc", "1")


class TestArtifactVersion:
    @pytest.mark.parametrize(
        "text",
        ["0.6.3+cu121.torch2.3.ctk124", "0.6.3+cu121.torch2.3", "0.6.4.post1+cu124.torch2.10"],
    )
    def test_round_trip_and_pep_440(self, text: str) -> None:
        assert str(ArtifactVersion.parse(text)) == text
        assert str(Version(text)) == text

    def test_suffix_only_for_another_line(self) -> None:
        combo = ComboId.parse("cu121-torch2.3-vllm0.6.3")
        assert str(ArtifactVersion.of(combo, "12.4")) == "0.6.3+cu121.torch2.3.ctk124"
        assert str(ArtifactVersion.of(combo, "12.1")) == "0.6.3+cu121.torch2.3"

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "0.6.3",
            "0.6.3+cu121",
            "0.6.3+cu121.torch2.3.ctk121",
            "0.6.3+cu121.torch2.3.ctk12",
            "0.6.3+cu121-torch2.3",
            "0.6.3+cu121.torch2.3.0",
            "0.6.3+torch2.3.cu121",
            "v0.6.3+cu121.torch2.3",
            "0.6.3+cu121.torch2.03",
            "0.6.3+cu121.torch2.3.ctk124.",
            "1!0.6.3+cu121.torch2.3",
            "0.6.3+cu121.torch2.3\n",
        ],
    )
    def test_refused(self, text: str) -> None:
        with pytest.raises(WheelError):
            ArtifactVersion.parse(text)

    @given(releases, tags, minors, st.none() | tags)
    def test_what_can_be_made_reads_back(
        self, release: str, cuda: str, torch: str, ctk: str | None
    ) -> None:
        if ctk == cuda:
            with pytest.raises(ValueError, match="only where it differs"):
                ArtifactVersion(release, cuda, torch, ctk)
            return
        version = ArtifactVersion(release, cuda, torch, ctk)
        assert ArtifactVersion.parse(str(version)) == version
        assert str(Version(str(version))) == str(version)


class TestNearest:
    OFFERED = (
        "cu121-torch2.3-vllm0.6.3",
        "cu121-torch2.4-vllm0.6.3",
        "cu124-torch2.5-vllm0.7.3",
        "cu130-torch2.11-pinprobe0.1.0",
    )

    @pytest.mark.parametrize(
        ("text", "first"),
        [
            ("cu121-torch2.3-vllm0.6.4", "cu121-torch2.3-vllm0.6.3"),
            ("cu121-torch2.4-vllm0.6.2", "cu121-torch2.4-vllm0.6.3"),
            ("cu121-torch2.3-vlm0.6.3", "cu121-torch2.3-vllm0.6.3"),
            ("cu121_torch2.3_vllm0.6.3", "cu121-torch2.3-vllm0.6.3"),
            ("pinprobe", "cu130-torch2.11-pinprobe0.1.0"),
            ("CU124-TORCH2.5-VLLM0.7.3", "cu124-torch2.5-vllm0.7.3"),
        ],
    )
    def test_offers_the_nearest(self, text: str, first: str) -> None:
        assert nearest(text, self.OFFERED)[0] == first
        with pytest.raises(UnknownComboError) as caught:
            find_combo(text, self.OFFERED)
        assert first in caught.value.next_step
        assert f"nearest: {first}" in caught.value.evidence

    def test_found(self) -> None:
        assert str(find_combo(self.OFFERED[0], self.OFFERED)) == self.OFFERED[0]

    def test_none_offered(self) -> None:
        with pytest.raises(UnknownComboError):
            find_combo("x", ())

    def test_huge_input(self) -> None:
        with pytest.raises(UnknownComboError) as caught:
            find_combo("cu" * 100_000, self.OFFERED)
        assert len(caught.value.what) < 200


def test_lines_and_tags() -> None:
    assert line_to_tag("12.4") == "124"
    assert tag_to_line("130") == "13.0"
    for bad in ("12", "12.10", "1.2", "", "12.x"):
        with pytest.raises(ValueError, match="no CUDA line"):
            line_to_tag(bad)
    for bad in ("12", "1210", "012", "x21"):
        with pytest.raises(ValueError, match="no CUDA tag"):
            tag_to_line(bad)
