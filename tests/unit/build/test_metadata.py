from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement as Parsed
from packaging.version import Version
from pydantic import ValidationError
from wheelkit import METADATA, WHEEL

from pinwheel.build.metadata import (
    MAX_BYTES,
    built_for_module,
    check_against_lock,
    fields,
    rewrite_metadata,
    rewrite_wheel_file,
    version_module,
)
from pinwheel.errors import WheelError
from pinwheel.recipe.models import Requirement

FULL = "0.6.3+cu121.torch2.3.ctk124"


def change(old: str, new: str) -> Requirement:
    return Requirement(old=old, new=new, reason="test")


TORCH = change("torch==2.4.0", "torch==2.3.0")
XFORMERS = change(
    'xformers==0.0.27.post2; platform_system == "Linux" and platform_machine == "x86_64"',
    'xformers==0.0.26.post1; platform_system == "Linux" and platform_machine == "x86_64"',
)


def test_only_the_named_lines_change() -> None:
    out = rewrite_metadata(METADATA, version=FULL, requirements=(TORCH, XFORMERS))
    before, after = METADATA.split(b"\n"), out.split(b"\n")
    assert len(before) == len(after)
    assert {a for a, b in zip(after, before, strict=True) if a != b} == {
        b"Version: " + FULL.encode(),
        b"Requires-Dist: torch==2.3.0",
        b"Requires-Dist: " + XFORMERS.new.encode(),
    }
    assert out.endswith(
        b"Requires-Dist: torch==9.9\nA body that looks like fields keeps its bytes.\n"
    )


@pytest.mark.parametrize(
    "line",
    [
        b"Requires-Dist: torch (==2.4.0)",
        b"requires-dist:   Torch == 2.4.0  ",
        b"Requires-Dist: torch\n  ==2.4.0",
    ],
)
def test_a_line_is_found_by_meaning(line: bytes) -> None:
    data = METADATA.replace(b"Requires-Dist: torch==2.4.0", line, 1)
    out = rewrite_metadata(data, version=FULL, requirements=(TORCH,))
    assert b"\nRequires-Dist: torch==2.3.0\nRequires-Dist: xformers" in out


def test_a_marker_is_part_of_the_meaning() -> None:
    with pytest.raises(WheelError, match="no longer there") as caught:
        rewrite_metadata(
            METADATA,
            version=FULL,
            requirements=(change("xformers==0.0.27.post2", "xformers==0.0.26.post1"),),
        )
    assert "platform_machine" in caught.value.evidence[0]


def test_a_line_that_is_gone_shows_what_is_there_now() -> None:
    data = METADATA.replace(b"torch==2.4.0", b"torch==2.5.1")
    with pytest.raises(WheelError, match=r"'torch==2\.4\.0'.*no longer there") as caught:
        rewrite_metadata(data, version=FULL, requirements=(TORCH,))
    assert caught.value.evidence == ("Requires-Dist: torch==2.5.1",)


def test_a_line_that_is_there_twice_is_refused() -> None:
    data = METADATA.replace(
        b"Requires-Dist: torch==2.4.0\n",
        b"Requires-Dist: torch==2.4.0\nRequires-Dist: torch (==2.4.0)\n",
    )
    with pytest.raises(WheelError, match="there 2 times"):
        rewrite_metadata(data, version=FULL, requirements=(TORCH,))


def test_the_result_may_not_be_there_twice() -> None:
    data = METADATA.replace(b"Requires-Dist: numpy<2.0.0", b"Requires-Dist: torch==2.3.0")
    with pytest.raises(WheelError) as caught:
        rewrite_metadata(data, version=FULL, requirements=(TORCH,))
    assert "more than once" in caught.value.evidence[0]


def test_only_public_forms() -> None:
    new = change(TORCH.old, "torch==2.3.0+cu121")
    with pytest.raises(WheelError, match="cannot be installed from an index"):
        rewrite_metadata(METADATA, version=FULL, requirements=(new,))


def test_a_recipe_cannot_ask_for_a_url() -> None:
    with pytest.raises(ValidationError, match="no URL"):
        change(TORCH.old, "torch @ file:///x/torch.whl")


@pytest.mark.parametrize("line", [b"numpy===2.0+mkl", b"numpy @ file:///x/numpy.whl"])
def test_an_untouched_line_that_no_index_can_serve_is_refused_too(line: bytes) -> None:
    data = METADATA.replace(b"numpy<2.0.0", line)
    with pytest.raises(WheelError, match="cannot be installed from an index"):
        rewrite_metadata(data, version=FULL, requirements=(TORCH,))


def test_changes_do_not_chain() -> None:
    data = METADATA.replace(b"numpy<2.0.0", b"torch==2.3.0")
    out = rewrite_metadata(
        data, version=FULL, requirements=(TORCH, change("torch==2.3.0", "torch==2.2.0"))
    )
    assert b"Requires-Dist: torch==2.2.0\nRequires-Dist: torch==2.3.0\n" in out


def test_one_line_is_not_rewritten_twice() -> None:
    with pytest.raises(WheelError):
        rewrite_metadata(
            METADATA, version=FULL, requirements=(TORCH, change("Torch (==2.4.0)", "torch"))
        )


@pytest.mark.parametrize("raw", ["0.6.4", "0.6.3.post1", "0.6.3rc1", "nonsense"])
def test_another_version_than_the_combos_is_refused(raw: str) -> None:
    data = METADATA.replace(b"Version: 0.6.3", b"Version: " + raw.encode())
    with pytest.raises(WheelError):
        rewrite_metadata(data, version=FULL, requirements=())


@pytest.mark.parametrize("raw", ["0.6.3+cu124", "v0.6.3", "0.6.3"])
def test_upstreams_spellings_of_the_version_are_taken(raw: str) -> None:
    data = METADATA.replace(b"Version: 0.6.3", b"Version: " + raw.encode())
    assert f"\nVersion: {FULL}\n".encode() in rewrite_metadata(data, version=FULL, requirements=())


@pytest.mark.parametrize("version", ["0.6.3+CU121", "v0.6.3", "0.6.3+cu121-torch2", ""])
def test_the_version_must_be_in_normal_form(version: str) -> None:
    with pytest.raises(WheelError):
        rewrite_metadata(METADATA, version=version, requirements=())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b" continuation first\n",
        b"no colon\n\n",
        b"Version: 1\nVersion: 1\n\n",
        b"Version: 0.6.3\nRequires-Dist: ???\n\n",
        b"Version: \xff\n\n",
        b"Version: 0.6.3\nRequires-Dist: a; " + b"(" * 5000 + b"\n\n",
        b"x" * (MAX_BYTES + 1),
    ],
)
def test_what_is_no_metadata_is_refused(data: bytes) -> None:
    with pytest.raises(WheelError):
        rewrite_metadata(data, version=FULL, requirements=())


names = st.sampled_from(["numpy", "ray", "psutil", "pillow", "uvicorn", "einops"])
lines = st.builds(
    lambda n, s, m: f"{n}{s}{m}",
    names,
    st.sampled_from(["", ">=1.0", "==1.0", "<3,>=1", "!=1.*"]),
    st.sampled_from(["", ' ; extra == "x"', '; python_version < "3.9"']),
)
bodies = st.binary(max_size=200)


@given(
    before=st.lists(lines, max_size=5),
    after=st.lists(lines, max_size=5),
    body=bodies,
    end=st.sampled_from([b"\n", b"\r\n"]),
)
def test_every_other_byte_stays(
    before: list[str], after: list[str], body: bytes, end: bytes
) -> None:
    def text(version: str, torch: str) -> bytes:
        head = ["Metadata-Version: 2.1", "Name: vllm", f"Version: {version}"]
        head += [f"Requires-Dist: {x}" for x in [*before, torch, *after]]
        return end.join(x.encode() for x in head) + end + end + body

    out = rewrite_metadata(text("0.6.3", TORCH.old), version=FULL, requirements=(TORCH,))
    assert out == text(FULL, TORCH.new)


@given(st.binary(max_size=400))
def test_splitting_loses_nothing(data: bytes) -> None:
    try:
        found, rest = fields(data, "METADATA")
    except WheelError:
        return
    assert b"".join(f.raw for f in found) + rest == data


# Case A10.
def test_metadata_that_contradicts_the_lock_is_refused() -> None:
    locked = {"torch": "2.3.0", "numpy": "1.26.4", "xformers": "0.0.27.post2"}
    with pytest.raises(WheelError, match="METADATA contradicts the lock") as caught:
        check_against_lock(METADATA, locked, python="3.11")
    assert caught.value.evidence == ("METADATA: torch==2.4.0; lock: torch 2.3.0",)
    out = rewrite_metadata(METADATA, version=FULL, requirements=(TORCH,))
    check_against_lock(out, locked, python="3.11")
    check_against_lock(out, locked | {"Torch": "2.3.0"}, python="3.11")


def test_what_the_lock_lacks_is_named_and_extras_are_not_asked_for() -> None:
    with pytest.raises(WheelError) as caught:
        check_against_lock(METADATA, {"torch": "2.4.0", "numpy": "1.26.4"}, python="3.11")
    assert len(caught.value.evidence) == 1
    assert "the lock has no xformers" in caught.value.evidence[0]


def test_markers_are_judged_for_the_targets_python() -> None:
    data = b'Requires-Dist: six; python_version > "3.11"\n\n'
    check_against_lock(data, {}, python="3.11")
    with pytest.raises(WheelError):
        check_against_lock(data, {}, python="3.12")


RAW_TAG = b"Tag: cp38-abi3-linux_x86_64"
NEW_TAG = b"Tag: cp38-abi3-manylinux_2_34_x86_64"


def rewritten(data: bytes, build: str = "1") -> bytes:
    platforms = ["manylinux_2_34_x86_64"]
    return rewrite_wheel_file(data, build=build, tags=[("cp38", "abi3")], platforms=platforms)


def test_build_and_tags_replace_tags_and_nothing_else() -> None:
    out = rewritten(WHEEL.replace(RAW_TAG, b"Tag: a-b-c\nTag: d-e-f"))
    assert out == WHEEL.replace(RAW_TAG, b"Build: 1\n" + NEW_TAG)
    lines = WHEEL.replace(b"\n", b"\r\n")
    assert rewritten(lines) == lines.replace(RAW_TAG, b"Build: 1\r\n" + NEW_TAG)


def test_a_build_tag_that_is_stated_stays_where_it_is() -> None:
    data = WHEEL.replace(b"Root-Is", b"Build: 0sm80\nRoot-Is")
    assert rewritten(data, "0sm80") == data.replace(RAW_TAG, NEW_TAG)


@pytest.mark.parametrize("stated", [b"Build: 2\n", b"Build: 1\nBuild: 1\n", b"build: \n"])
def test_another_build_tag_than_the_file_names_is_refused(stated: bytes) -> None:
    with pytest.raises(WheelError, match="WHEEL of the raw wheel") as caught:
        rewritten(WHEEL.replace(b"Root-Is", stated + b"Root-Is"))
    assert caught.value.evidence[-1] == "to become: 1"


@pytest.mark.parametrize(
    "data", [WHEEL.replace(b"1.0", b"2.0"), WHEEL.replace(b"Tag: ", b"Tug: "), b""]
)
def test_an_unknown_wheel_file_is_refused(data: bytes) -> None:
    with pytest.raises(WheelError):
        rewritten(data)


@pytest.mark.parametrize(
    ("version", "parts"),
    [
        (FULL, (0, 6, 3, "cu121.torch2.3.ctk124")),
        ("0.6.3", (0, 6, 3)),
        ("1", (1,)),
        ("1!2.0rc1.post2.dev3+x", ("1!", 2, 0, "rc1", "post2", "dev3", "x")),
    ],
)
def test_the_version_module(version: str, parts: tuple[object, ...]) -> None:
    names: dict[str, object] = {}
    exec(version_module(version), names)
    assert names["__version__"] == names["version"] == version
    assert names["__version_tuple__"] == names["version_tuple"] == parts


@settings(max_examples=30)
@given(st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){0,3}(\+[a-z0-9]{1,5})?", fullmatch=True))
def test_any_normal_version_makes_a_module(text: str) -> None:
    version = str(Version(text))
    names: dict[str, object] = {}
    exec(version_module(version), names)
    assert names["__version__"] == version


def test_the_constants_module() -> None:
    text = built_for_module({"TORCH": "2.3.0", "CUDA": "12.1", "CXX11_ABI": False})
    names: dict[str, object] = {}
    exec(text, names)
    assert names["TORCH"] == "2.3.0"
    assert names["CXX11_ABI"] is False
    assert "import" not in text
    with pytest.raises(ValueError, match="constant"):
        built_for_module({"x = 1; y": "2"})


def test_the_flagships_rewrites_are_public_forms() -> None:
    assert str(Parsed(TORCH.new).specifier) == "==2.3.0"
