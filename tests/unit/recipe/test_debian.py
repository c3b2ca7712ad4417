"""Control data, relationships and the closure of Debian packages."""

from __future__ import annotations

import hashlib
import lzma
import random
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinwheel.errors import HashMismatchError, ResolveError
from pinwheel.recipe import debian
from pinwheel.recipe.debian import (
    Package,
    Relation,
    check_file,
    closure,
    compare_versions,
    paragraphs,
    parse_packages,
    parse_relations,
    parse_release,
    unpack_index,
)
from pinwheel.recipe.lock import Role
from pinwheel.recipe.resolve import _debian_input

RELEASE = f"""\
Origin: Debian
Suite: oldstable
Codename: bookworm
Date: Sat, 11 Jul 2026 10:16:37 UTC
Acquire-By-Hash: yes
SHA256:
 {hashlib.sha256(b"index").hexdigest()} 5 main/binary-amd64/Packages.xz
 {"0" * 64}  17 main/binary-all/Packages.xz
"""


def package(name: str, version: str = "1", **fields: str) -> Package:
    essential = fields.pop("Essential", "") == "yes"
    priority = fields.pop("Priority", "optional")
    return Package(name, version, "amd64", f"pool/{name}", 1, "0" * 64, essential, priority, fields)


def index(*packages: Package) -> dict[str, Package]:
    return {p.name: p for p in packages}


def names(*args: Package, seeds: tuple[str, ...] = ("seed",)) -> list[str]:
    return [p.name for p in closure(index(*args), seeds, essential=True)]


# --- control data --------------------------------------------------------------------------


def test_paragraphs_keep_folded_lines_and_skip_comments() -> None:
    text = "A: 1\n# note\n two\n  three\n\n\nB: 2:3\n"
    assert list(paragraphs(text)) == [{"A": "1\ntwo\n three"}, {"B": "2:3"}]


@pytest.mark.parametrize("text", [" continued", "no colon", ": empty", "A : 1", "A: 1\nA: 2"])
def test_malformed_control_data_is_refused(text: str) -> None:
    with pytest.raises(ResolveError, match="line"):
        list(paragraphs(text))


FIELD = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":#"), min_size=1
)
VALUE = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20)


@given(
    st.lists(st.dictionaries(FIELD.filter(lambda f: f[0] != "-"), VALUE, min_size=1), max_size=5)
)
def test_paragraphs_read_back_what_was_written(data: list[dict[str, str]]) -> None:
    text = "\n".join("".join(f"{k}: {v}\n" for k, v in d.items()) for d in data)
    assert list(paragraphs(text)) == data


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        list(paragraphs(text))
        parse_relations(text)
    except ResolveError:
        pass


def test_release_gives_date_and_files() -> None:
    release = parse_release(RELEASE)
    assert release.timestamp == "20260711T101637Z"
    assert (release.codename, release.suite, release.by_hash) == ("bookworm", "oldstable", True)
    assert release.files["main/binary-all/Packages.xz"] == ("0" * 64, 17)
    assert release.valid_until is None
    until = parse_release("Valid-Until: Sat, 18 Jul 2026 10:16:37 UTC\n" + RELEASE).valid_until
    assert until == datetime(2026, 7, 18, 10, 16, 37, tzinfo=UTC)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Date: ", "Datum: "),
        ("SHA256:", "MD5Sum:"),
        ("0" * 64, "zz"),
        (" 17 ", " x "),
        ("Date: ", "Valid-Until: soon\nDate: "),
        ("Date: Sat, 11 Jul 2026 10:16:37 UTC", "Date: Fri, 31 Dec 9999 23:59:59 -2300"),
    ],
)
def test_release_without_what_is_needed_is_refused(old: str, new: str) -> None:
    with pytest.raises(ResolveError):
        parse_release(RELEASE.replace(old, new))


def test_index_must_be_the_one_the_release_names() -> None:
    release = parse_release(RELEASE)
    assert check_file(b"index", release, "main/binary-amd64/Packages.xz") == b"index"
    with pytest.raises(HashMismatchError, match=r"main/binary-amd64"):
        check_file(b"inDex", release, "main/binary-amd64/Packages.xz")
    with pytest.raises(ResolveError, match="lists no file"):
        check_file(b"index", release, "contrib/binary-amd64/Packages.xz")


def test_packages_keep_the_newest_and_drop_other_architectures() -> None:
    block = (
        "Package: {n}\nVersion: {v}\nArchitecture: {a}\nFilename: pool/{n}_{v}.deb\nSize: 7\n"
        "SHA256: AB12\nDepends: libc6 (>= 2.36),\n other\n\n"
    )
    text = "".join(
        block.format(n=n, v=v, a=a)
        for n, v, a in [("x", "1.9", "amd64"), ("x", "1.10", "all"), ("y", "1", "arm64")]
    )
    found = parse_packages(text, "amd64")
    assert list(found) == ["x"]
    assert (found["x"].version, found["x"].sha256) == ("1.10", "ab12")
    assert [[str(r) for r in g] for g in found["x"].needs()] == [["libc6 (>= 2.36)"], ["other"]]


def test_an_entry_without_hash_is_refused() -> None:
    text = "Package: x\nVersion: 1\nArchitecture: all\nFilename: f\nSize: 7\nMD5sum: 0\n"
    with pytest.raises(ResolveError, match="x is incomplete"):
        parse_packages(text, "amd64")


def test_unpack_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = lzma.compress(b"x" * 1000)
    assert unpack_index(data) == "x" * 1000
    monkeypatch.setattr(debian, "MAX_INDEX", 999)
    for bad in (data, data[:-20], b"no xz"):
        with pytest.raises(ResolveError, match="unpacked"):
            unpack_index(bad)


# --- relationships -------------------------------------------------------------------------


def test_relations_as_policy_writes_them() -> None:
    text = "a (>= 1:2.0~rc1), b:any | c [amd64 !i386] <!nocheck>, libstdc++6 (<< 3)"
    assert parse_relations(text) == (
        (Relation("a", ">=", "1:2.0~rc1"),),
        (Relation("b"), Relation("c")),
        (Relation("libstdc++6", "<<", "3"),),
    )


@pytest.mark.parametrize("text", ["A", "a (1)", "a (>= )", "a |", "a b", "a (=> 1)", "-a"])
def test_a_relation_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ResolveError, match="relationship"):
        parse_relations(text)


NAME = st.from_regex(r"[a-z0-9][a-z0-9+.\-]{1,8}", fullmatch=True)
RELATION = st.builds(
    Relation,
    NAME,
    st.sampled_from(["<<", "<=", "=", ">=", ">>"]),
    st.from_regex(r"([0-9]:)?[0-9][a-z0-9.+~]{0,6}(-[0-9])?", fullmatch=True),
) | st.builds(Relation, NAME)


@given(st.lists(st.lists(RELATION, min_size=1, max_size=3), max_size=4))
def test_relations_read_back_what_was_written(groups: list[list[Relation]]) -> None:
    text = ", ".join(" | ".join(map(str, group)) for group in groups)
    assert parse_relations(text) == tuple(map(tuple, groups))


@pytest.mark.parametrize(
    ("low", "high"), [("1.9", "1.10"), ("1.0~rc1", "1.0"), ("2.0", "1:1.0"), ("1-1", "1-1+b1")]
)
def test_version_order(low: str, high: str) -> None:
    assert compare_versions(low, high) == -1
    assert compare_versions(high, low) == 1
    assert Relation("x", ">>", low).accepts(high)
    assert not Relation("x", "<=", low).accepts(high)


# --- closure -------------------------------------------------------------------------------


def test_closure_takes_essential_and_both_kinds_of_dependency() -> None:
    found = names(
        package("seed", Depends="a", **{"Pre-Depends": "b"}),
        package("a"),
        package("b", Depends="c"),
        package("c", Recommends="not"),
        package("base", Essential="yes"),
        package("not"),
    )
    assert found == ["a", "b", "base", "c", "seed"]


def test_first_alternative_that_exists_wins_unless_one_is_chosen() -> None:
    alternatives = [package("b"), package("c")]
    assert names(package("seed", Depends="a | b | c"), *alternatives) == ["b", "seed"]
    assert names(package("seed", Depends="b | c"), *alternatives, seeds=("seed", "c")) == [
        "c",
        "seed",
    ]


def test_an_alternative_of_the_wrong_version_does_not_exist() -> None:
    assert names(package("seed", Depends="b (>= 2) | c"), package("b"), package("c")) == [
        "c",
        "seed",
    ]


def test_virtual_packages_by_priority_then_name() -> None:
    providers = [
        package("gawk", Provides="awk"),
        package("mawk", Provides="awk", Priority="required"),
        package("zawk", Provides="awk", Priority="required"),
    ]
    assert names(package("seed", Depends="awk"), *providers) == ["mawk", "seed"]


def test_unversioned_provides_meets_no_versioned_dependency() -> None:
    with pytest.raises(ResolveError, match="depends on what is not there"):
        names(package("seed", Depends="v (>= 1)"), package("p", Provides="v"))
    good = package("p", Provides="v (= 2)")
    assert names(package("seed", Depends="v (>= 1)"), good) == ["p", "seed"]


def test_missing_seed_and_missing_dependency_are_named() -> None:
    with pytest.raises(ResolveError, match="seed"):
        names()
    with pytest.raises(ResolveError) as caught:
        names(package("seed", Depends="gone (>= 2) | lost"))
    assert caught.value.evidence == ("gone (>= 2) | lost",)


def test_packages_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(ResolveError, match="exclude each other"):
        names(package("seed", Depends="a", Conflicts="a"), package("a"))
    # A package that replaces a virtual one provides it and conflicts with it: not with itself.
    assert names(package("seed", Provides="mta", Conflicts="mta")) == ["seed"]
    assert names(package("seed", Depends="a", Breaks="a (<< 1)"), package("a")) == ["a", "seed"]


@given(st.randoms(use_true_random=False))
def test_closure_does_not_depend_on_the_order_of_the_index(chance: random.Random) -> None:
    everything = [
        package("seed", Depends="a | b, v, w"),
        package("a", Depends="v"),
        package("b"),
        package("x", Provides="v, w"),
        package("y", Provides="w"),
        package("z", Provides="v"),
    ]
    expected = names(*everything)
    chance.shuffle(everything)
    assert names(*everything) == expected == ["a", "seed", "x"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("Filename", "../../etc/passwd"),
        ("Filename", "/etc/passwd"),
        ("Size", "-1"),
        ("Size", "9" * 30),
        ("SHA256", "zz"),
        ("Package", "\x1b[2J"),
    ],
)
def test_what_no_lock_may_hold_is_the_mirrors_fault(field: str, value: str) -> None:
    fields = {
        "Package": "a",
        "Version": "1",
        "Architecture": "amd64",
        "Filename": "pool/a.deb",
        "Size": "1",
        "SHA256": "0" * 64,
        field: value,
    }
    text = "".join(f"{name}: {content}\n" for name, content in fields.items())
    (found,) = parse_packages(text, "amd64").values()
    with pytest.raises(ResolveError, match="what no lock may hold"):
        _debian_input(found, Role.ROOT)


def test_a_version_that_is_none() -> None:
    with pytest.raises(ResolveError, match="no Debian version"):
        compare_versions("1:@", "1")
