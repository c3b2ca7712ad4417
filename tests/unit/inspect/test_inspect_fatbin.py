"""Device code, as NVIDIA's own tools pack it and as nobody should.

The files in data/ are made by ``make_fatbins.py``.
"""

from __future__ import annotations

import re
import struct
import tracemalloc

import lz4.block
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inspect_kit import (
    ALLOC,
    DATA,
    Sec,
    elf_of,
    fatbins_of,
    library_with,
    make_cubin,
    make_elf,
    make_entry,
    make_fatbin,
    make_ptx,
)

from pinwheel.errors import ArtifactError
from pinwheel.inspect.cubin import read_cubin, read_ptx
from pinwheel.inspect.fatbin import Compression, EntryKind, FatbinEntry, count_targets
from pinwheel.inspect.region import Region
from pinwheel.matrix.capability import Capability

OBSERVED = ("none", "lz4", "zstd", "concat", "odd")
SAID = re.compile(
    r"^\t?Fatbin (?P<kind>elf|ptx|tile ir) code:\n"
    r"\t?=+\n"
    r"\t?arch = (?P<arch>\w+)\n"
    r"\t?code version = \[(?P<major>\d+),(?P<minor>\d+)\]\n"
    r"(?P<rest>(?:\t?\w.*\n?)*)",
    re.MULTILINE,
)


def observed(name: str) -> bytes:
    return library_with((DATA / f"{name}.fatbin").read_bytes())


def refused(data: bytes, *, kernels: bool = False) -> str:
    with pytest.raises(ArtifactError) as caught:
        fatbins_of(data, kernels=kernels)
    return " / ".join((str(caught.value), *caught.value.evidence))


# --- what NVIDIA's tools write -----------------------------------------------------------------


@pytest.mark.parametrize("name", OBSERVED)
def test_entries_are_what_cuobjdump_says(name: str) -> None:
    said = list(SAID.finditer((DATA / f"{name}.cuobjdump.txt").read_text()))
    entries = fatbins_of(observed(name))
    kinds = {EntryKind.CUBIN: "elf", EntryKind.PTX: "ptx", EntryKind.TILE_IR: "tile ir"}
    assert [
        (kinds[e.kind], e.capability and e.capability.sm, *e.code_version, e.debug) for e in entries
    ] == [
        (s["kind"], s["arch"], int(s["major"]), int(s["minor"]), "debug" in s["rest"]) for s in said
    ]
    assert len(entries) == len(said) > 2
    if name != "concat":  # there it is said of the whole
        packed = ["compressed" in s["rest"] for s in said]
        assert [e.compression is not Compression.NONE for e in entries] == packed


@pytest.mark.parametrize("name", OBSERVED)
def test_kernels_are_those_that_were_compiled(name: str) -> None:
    for entry in fatbins_of(observed(name), kernels=True):
        if entry.kind is EntryKind.TILE_IR:
            assert entry.kernels is None
            continue
        assert entry.kernels == ("store",), entry  # not device_only, not the comment's
        if entry.kind is EntryKind.CUBIN:
            assert entry.toolkit == {7: "12.4", 8: "13.5"}[entry.code_version[1]]
            assert entry.relocatable is (name == "odd")


def test_packing_changes_nothing_but_sizes() -> None:
    plain, lz4s, zstds = (fatbins_of(observed(n), kernels=True) for n in OBSERVED[:3])
    assert {e.compression for e in lz4s} == {Compression.LZ4}
    assert {e.compression for e in zstds} == {Compression.ZSTD}
    for first, second, third in zip(plain, lz4s, zstds, strict=True):
        assert first.target == second.target == third.target
        assert first.kernels == second.kernels == third.kernels
        assert first.size > second.size > third.size
        assert second.unpacked == third.unpacked <= first.unpacked < second.unpacked + 8


def test_targets_are_counted() -> None:
    assert count_targets(fatbins_of(observed("none"))) == {
        "ptx sm_100f": 1, "ptx sm_80": 1, "ptx sm_90a": 1, "sm_100": 1, "sm_100a": 1,
        "sm_100f": 1, "sm_120f": 1, "sm_75": 1, "sm_80": 1, "sm_90": 1, "sm_90a": 2,
    }  # fmt: skip


def test_images_packed_together_come_apart() -> None:
    entries = fatbins_of(observed("concat"), kernels=True)
    assert [e.target for e in entries] == ["ptx sm_80", "sm_100f", "sm_80", "sm_90a", "sm_75"]
    assert [e.size > 0 for e in entries] == [True, True, True, False, False]
    assert len({e.unpacked for e in entries[2:]}) == 3


# --- what a library holds ----------------------------------------------------------------------


def test_containers_follow_each_other_with_zeros_between() -> None:
    one = make_fatbin(
        make_entry(make_cubin(80), arch=80),
        make_entry(make_ptx("sm_80"), kind=1, arch=80, version=(8, 4)),
    )
    two = make_fatbin(make_entry(make_cubin(86), arch=86))
    entries = fatbins_of(library_with(one + bytes(4096) + two + bytes(24)), kernels=True)
    assert [(e.container, e.target) for e in entries] == [
        (0, "sm_80"),
        (0, "ptx sm_80"),
        (1, "sm_86"),
    ]
    assert entries[1].ptx_isa == "8.4"
    assert entries[0].ptx_isa == ""
    assert entries[0].capability == Capability(8, 0)


def test_both_sections_are_read() -> None:
    fatbin = make_fatbin(make_entry(make_cubin()))
    data = make_elf(sections=[Sec(".nv_fatbin", fatbin), Sec("__nv_relfatbin", fatbin)])
    assert [e.section for e in fatbins_of(data)] == [".nv_fatbin", "__nv_relfatbin"]
    assert fatbins_of(make_elf()) == ()


def test_listing_does_not_look_into_images() -> None:
    broken = library_with(make_fatbin(make_entry(b"no cubin")))
    (entry,) = fatbins_of(broken)
    assert (entry.kernels, entry.toolkit, entry.relocatable) == (None, "", None)
    assert "ELF" in refused(broken, kernels=True)


@pytest.mark.parametrize("kind", [0, 3, 4, 16, 32, 512])
def test_an_unknown_kind_is_listed_and_is_no_code(kind: int) -> None:
    (entry,) = fatbins_of(library_with(make_fatbin(make_entry(b"?" * 8, kind=kind))), kernels=True)
    assert entry.kind is EntryKind.OTHER
    assert entry.capability is None
    assert entry.kernels is None
    assert entry.target == f"other kind {kind}"


@pytest.mark.parametrize("abi", [7, 8])
@pytest.mark.parametrize("accelerated", [False, True])
def test_a_cubin_says_what_it_is(abi: int, accelerated: bool) -> None:
    cubin = read_cubin(Region.of(make_cubin(90, ["b", "a"], abi=abi, accelerated=accelerated), "x"))
    assert cubin.architecture == 90
    assert cubin.accelerated is accelerated
    assert cubin.toolkit == {7: "12.4", 8: "13.0"}[abi]
    assert cubin.kernels == ("a", "b")
    assert cubin.agrees(Capability(9, 0, "a" if accelerated else ""))
    assert not cubin.agrees(Capability(9, 0, "" if accelerated else "a"))
    assert not cubin.agrees(Capability(8, 9))


def test_ptx_in_comments_and_strings_does_not_count() -> None:
    text = rb"""
    // .version 1.0 .entry a(
    /* .target sm_20
       .entry b( */
    .version 8.3
    .target sm_90a, texmode_independent
    .file 1 "say \" .entry c("
    .visible .entry
      $d%_1(
    .entry_e(
    """
    ptx = read_ptx(Region.of(text, "x"))
    assert ptx.isa == (8, 3)
    assert ptx.target == Capability(9, 0, "a")
    assert ptx.kernels == ("$d",)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b".version 8.0\n",
        b".target sm_80\n",
        b".version 8.0\n.version 8.1\n.target sm_80\n",
        b".version 8.0\n.target sm_80\n.target sm_90\n",
        b".version 8.0\n.target sm_00\n",
        b"/* .version 8.0\n.target sm_80\n",
    ],
)
def test_ptx_that_states_no_one_target(text: bytes) -> None:
    with pytest.raises(ArtifactError):
        read_ptx(Region.of(text, "x"))


def test_hostile_ptx_takes_no_more_time_than_its_length() -> None:
    head = b".version 8.0\n.target sm_80\n"
    for piece in (b"/*", b'\\"', b'"', b".entry ", b".version ", b" ", b"//"):
        ptx = read_ptx(Region.of(head + piece * 300_000 + b"\\", "x"))
        assert ptx.target == Capability(8, 0)


# --- entries that lie --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (make_entry(make_cubin(80), arch=90), "sm_80"),
        (make_entry(make_cubin(90), arch=90, flags=0x100011), "sm_90a"),
        (make_entry(make_cubin(90, accelerated=True), arch=90), "sm_90"),
        (make_entry(make_cubin(90, abi=7), arch=90), "ABI 7"),
        (make_entry(make_ptx("sm_90a"), kind=1, arch=90, version=(8, 4)), "sm_90a"),
        (make_entry(make_ptx("sm_100"), kind=1, arch=90, version=(8, 4)), "sm_100"),
        (make_entry(make_ptx("sm_90"), kind=1, arch=90, version=(8, 0)), "ISA 8.4"),
    ],
)
def test_an_image_that_is_not_what_its_entry_says(entry: bytes, said: str) -> None:
    data = library_with(make_fatbin(entry))
    assert len(fatbins_of(data)) == 1
    message = refused(data, kernels=True)
    assert "not what its fatbin entry says" in message
    assert said in message


def test_ptx_for_an_older_target_is_right() -> None:
    entry = make_entry(make_ptx("sm_80"), kind=1, arch=90, version=(8, 4))
    assert fatbins_of(library_with(make_fatbin(entry)), kernels=True)[0].kernels == ("k",)


@pytest.mark.parametrize(
    ("fatbin", "said"),
    [
        (b"\x01" + bytes(63), "no fatbin"),
        (struct.pack("<IHHQ", 0xBA55ED50, 2, 16, 0), "version 2"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 24, 0), "header of 24"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 62), "outside"),
        (make_fatbin(bytes(64)), "header of 0 bytes"),
        (make_fatbin(make_entry(make_cubin()))[:-8], "outside"),
        (make_fatbin(make_entry(make_cubin(), arch=0)), "architecture 0"),
        (make_fatbin(make_entry(make_cubin(), arch=1000)), "architecture 1000"),
        (make_fatbin(make_entry(make_cubin(), flags=0x400011)), "0x400000"),
        (make_fatbin(make_entry(make_cubin(), flags=0x1011)), "0x1000"),
        (make_fatbin(make_entry(make_cubin(), flags=0xA011)), "two ways"),
        (make_fatbin(make_entry(make_cubin(), flags=0x300011)), "two variants"),
        (make_fatbin(make_entry(make_cubin(), packing="lz4", packed_size=1 << 31)), "cannot be"),
        (make_fatbin(make_entry(make_cubin(), packing="zstd", unpacked=1 << 40)), "cannot be"),
        (make_fatbin(make_entry(b"", kind=256, extra=struct.pack("<II", 9, 8))), "9 images"),
        (make_fatbin(make_entry(b"", kind=256, extra=struct.pack("<II", 1 << 31, 8))), "images"),
    ],
)  # fmt: skip
def test_containers_that_cannot_be(fatbin: bytes, said: str) -> None:
    assert said in refused(library_with(fatbin))


def test_images_outside_of_what_they_are_packed_in() -> None:
    inner = bytearray(make_entry(make_cubin())[:64])
    for offset, size in ((0, 1 << 40), (5000, 8000)):
        struct.pack_into("<IQ", inner, 4, offset, size)
        extra = struct.pack("<II", 1, 72) + inner
        data = library_with(make_fatbin(make_entry(make_cubin(), kind=256, extra=extra)))
        assert "outside" in refused(data)


@pytest.mark.parametrize("packing", ["lz4", "zstd"])
def test_images_that_do_not_unpack(packing: str) -> None:
    cubin = make_cubin()
    for size in (len(cubin) - 1, len(cubin) + 1, 0):
        entry = make_entry(cubin, packing=packing, unpacked=size)
        refused(library_with(make_fatbin(entry)), kernels=True)
    whole = bytearray(make_fatbin(make_entry(cubin, packing=packing)))
    whole[16 + 64 :] = bytes(len(whole) - 80)
    assert "unpack" in refused(library_with(bytes(whole)), kernels=True)


def test_an_image_that_would_take_all_memory() -> None:
    """A few bytes that state, and are, a lot of zeros."""
    zeros = 200 << 20
    block = lz4.block.compress(bytes(zeros), store_size=False)
    entry = bytearray(make_entry(block, flags=0x2011))
    struct.pack_into("<I", entry, 16, len(block))
    struct.pack_into("<Q", entry, 56, zeros)
    data = library_with(make_fatbin(*[bytes(entry)] * 4))
    assert len(data) < 4 << 20
    assert len(fatbins_of(data)) == 4
    tracemalloc.start()
    try:
        refused(data, kernels=True)
        assert tracemalloc.get_traced_memory()[1] < 300 << 20
    finally:
        tracemalloc.stop()


def test_the_same_image_over_and_over_is_too_much() -> None:
    inner = bytearray(make_entry(b"", kind=1, version=(8, 4))[:64])
    text = make_ptx().rstrip(b"\0").ljust(1 << 20, b"\n")
    struct.pack_into("<IQ", inner, 4, 0, len(text))
    extra = struct.pack("<II", 500, 8 + 500 * 64) + bytes(inner) * 500
    entry = make_entry(text, kind=256, packing="zstd", extra=extra)
    assert "times its size" in refused(library_with(make_fatbin(entry)), kernels=True)


def test_a_library_without_section_table_is_not_one_without_code() -> None:
    data = make_elf(sections=[Sec(".nv_fatbin", bytes(8))], section_table=False)
    assert "section table" in refused(data)


def test_a_compressed_section_is_not_guessed_at() -> None:
    assert "compressed" in refused(library_with(bytes(8), flags=ALLOC | 0x800))


def test_a_cubin_of_an_unknown_abi() -> None:
    cubin = bytearray(make_cubin())
    cubin[8] = 9
    data = library_with(make_fatbin(make_entry(bytes(cubin))))
    assert "ABI 0x41 version 9" in refused(data, kernels=True)
    host = library_with(make_fatbin(make_entry(make_elf())))
    assert "EM_X86_64" in refused(host, kernels=True)


# --- damage ------------------------------------------------------------------------------------

SEEDS = [observed(n) for n in ("lz4", "zstd", "concat", "odd")] + [
    library_with(
        make_fatbin(
            make_entry(make_cubin(), packing="zstd"),
            make_entry(make_cubin(80, abi=7), arch=80, version=(1, 7)),
            make_entry(make_ptx(), kind=1, version=(8, 4), packing="lz4"),
        )
    )
]


def section_of(data: bytes) -> tuple[int, int]:
    section = next(s for s in elf_of(data).sections if s.name == ".nv_fatbin")
    return section.offset, section.size


def read_or_refuse(data: bytes) -> tuple[FatbinEntry, ...]:
    try:
        return fatbins_of(data, kernels=True)
    except ArtifactError:
        return ()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.sampled_from(SEEDS),
    changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_no_damage_ends_in_another_error(seed: bytes, changes: list[tuple[float, int]]) -> None:
    offset, size = section_of(seed)
    data = bytearray(seed)
    for where, value in changes:
        data[offset + int(where * (size - 1))] = value
    for entry in read_or_refuse(bytes(data)):
        assert entry.unpacked <= 256 << 20


@settings(max_examples=200, deadline=None)
@given(
    seed=st.sampled_from(SEEDS),
    place=st.integers(0, 60),
    value=st.sampled_from([0, 1, 63, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 63, (1 << 64) - 1]),
)
def test_no_size_ends_in_another_error(seed: bytes, place: int, value: int) -> None:
    data = bytearray(seed)
    struct.pack_into("<Q", data, section_of(seed)[0] + 4 * place, value)
    read_or_refuse(bytes(data))


@settings(max_examples=100, deadline=None)
@given(seed=st.sampled_from(SEEDS), cut=st.floats(0, 1))
def test_no_cut_ends_in_another_error(seed: bytes, cut: float) -> None:
    offset, size = section_of(seed)
    fatbin = seed[offset : offset + int(size * cut)]
    read_or_refuse(library_with(fatbin))


@settings(max_examples=200, deadline=None)
@given(
    seed=st.sampled_from(
        [make_cubin(), make_cubin(abi=7), (DATA / "none.fatbin").read_bytes()[80:3064]]
    ),
    changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_no_damaged_cubin_ends_in_another_error(
    seed: bytes, changes: list[tuple[float, int]]
) -> None:
    data = bytearray(seed)
    for where, value in changes:
        data[int(where * (len(data) - 1))] = value
    try:
        read_cubin(Region.of(bytes(data), "x"))
    except ArtifactError:
        return
