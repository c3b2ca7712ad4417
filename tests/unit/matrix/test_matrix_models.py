from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matrix_kit import FLAGSHIP, PROJECT, SMALL

from pinwheel.errors import MatrixError
from pinwheel.matrix.models import Matrix, load_matrix, parse_matrix
from pinwheel.matrix.toml_lines import dotted, line_of


def line_in(text: str, needle: str) -> int:
    return text[: text.index(needle)].count("\n") + 1


def test_small_is_well_formed() -> None:
    matrix = parse_matrix(SMALL, "small.toml")
    assert matrix.releases["free"]["0.1.0"].torch is None
    assert matrix.torch["2.3.0+cu121"].cxx11_abi is None


def test_an_update_release_has_its_own_native_driver() -> None:
    known = 'nvcc = ["12.1.105"]\nreleases = { "12.1.1" = "12.1.105" }'
    newer = 'update-drivers = { "12.1.1" = "530.99.01" }'
    assert known in SMALL
    small = parse_matrix(SMALL, "small.toml").cuda["12.1"]
    assert small.native_driver_for("12.1.105") == small.native_driver
    assert small.native_driver_for("12.1.66") == small.native_driver
    updated = parse_matrix(SMALL.replace(known, f"{known}\n{newer}"), "small.toml").cuda["12.1"]
    assert updated.native_driver_for("12.1.105") == "530.99.01"
    # Which release brought this one is not written down: it may or may not be the update.
    assert updated.native_driver_for("12.1.66") is None


@pytest.mark.parametrize(
    ("old", "new", "key", "says"),
    [
        (
            'native-driver = "530.30.02"',
            'natve-driver = "530.30.02"',
            "natve-driver",
            "unknown key",
        ),
        ('native-driver = "530.30.02"', "native-driver = 530", "native-driver", "string"),
        (
            'native-driver = "530.30.02"',
            'native-driver = "R530"',
            "native-driver",
            "driver version",
        ),
        ("newest-gcc = 12", 'newest-gcc = "twelve"', "newest-gcc", "integer"),
        ("newest-gcc = 12", "newest-gcc = 1200", "newest-gcc", "less than"),
        ('nvcc = ["12.1.105"]', "nvcc = []", "nvcc", "at least 1"),
        ('nvcc = ["12.1.105"]', 'nvcc = ["12.1"]', "nvcc", "nvcc version"),
        ('targets = ["8.0", "9.0", "9.0a"]', 'targets = ["8.0", "8.0"]', "targets", "twice"),
        ('targets = ["8.0", "9.0", "9.0a"]', 'targets = ["sm_80"]', "targets", "compiler target"),
        ('variants = ["a"]', 'variants = ["x"]', "variants", "'a' or 'f'"),
        ('[cuda."12.4"]', '[cuda."12"]', "cuda", "CUDA line"),
        ('[cuda."12.4"]', '[cuda."12.44"]', "cuda", "CUDA line"),
        ('[capabilities."8.7"]', '[capabilities."8.7a"]', "capabilities", "no variant"),
        ('[torch."2.4.0+cu121"]', '[torch."2.4.0"]', "torch", "torch build"),
        ('[toolkits."tool-13.0.88"]', '[toolkits."tool"]', "toolkits", "provider"),
        ('python = ">=3.8,<3.13"', 'python = "three"', "python", "specifier"),
        ('[combos."cu121-torch2.3-pkg1.0"]', '[combos."cu121-pkg1.0"]', "combos", "no combo id"),
        ('[releases.free."0.1.0"]', '[releases.Free."0.1.0"]', "releases", "lower case"),
        ('source = "its own repository"', "", "source", "missing"),
        ("matrix-version = 1", "matrix-version = 2", "matrix-version", "1"),
        ("matrix-version = 1", "", "matrix-version", "missing"),
        ("matrix-version = 1", "matrix-version = 1\nextra = 1", "extra", "unknown key"),
        ("tegra = true", 'tegra = "perhaps"', "tegra", "boolean"),
    ],
)
def test_fault_names_file_line_and_key(old: str, new: str, key: str, says: str) -> None:
    assert old in SMALL
    text = SMALL.replace(old, new, 1)
    with pytest.raises(MatrixError) as caught:
        parse_matrix(text, "some/matrix.toml")
    said = " | ".join((caught.value.what, *caught.value.evidence))
    assert key in said
    assert says in said
    match = re.match(r"some/matrix\.toml:(\d+): ", caught.value.what)
    assert match
    line = text.splitlines()[int(match[1]) - 1]
    if says != "missing":
        assert new.splitlines()[-1] in line
    elif old.startswith("source"):
        assert line == '[releases.free."0.1.0"]'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("matrix-version = ", 1),
        ("a = 1\na = 2\n", 2),
        (SMALL + '\n[cuda."12.1"]\n', SMALL.count("\n") + 2),
        ("[a\n", 1),
        ('x = "\n', 1),
    ],
)
def test_syntax_error_names_the_line(text: str, line: int) -> None:
    with pytest.raises(MatrixError, match=rf"m\.toml:{line}: not valid TOML"):
        parse_matrix(text, "m.toml")


def test_every_fault_is_listed() -> None:
    text = SMALL.replace("newest-gcc = 12", "newest-gcc = 0").replace("newest-gcc = 15", "gcc = 1")
    with pytest.raises(MatrixError) as caught:
        parse_matrix(text, "m.toml")
    assert "newest-gcc" in caught.value.what
    assert any('cuda."13.0".gcc: unknown key' in line for line in caught.value.evidence)


class TestFiles:
    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(MatrixError, match="cannot be read") as caught:
            load_matrix(tmp_path / "arch_matrix.toml")
        assert "no such file" in caught.value.evidence

    def test_directory(self, tmp_path: Path) -> None:
        with pytest.raises(MatrixError, match="cannot be read"):
            load_matrix(tmp_path)

    def test_not_utf8(self, tmp_path: Path) -> None:
        path = tmp_path / "m.toml"
        path.write_bytes(b"a = '\xff'\n")
        with pytest.raises(MatrixError, match="cannot be read"):
            load_matrix(path)

    def test_too_large(self, tmp_path: Path) -> None:
        path = tmp_path / "m.toml"
        path.write_bytes(b"#" * (4 * 1024 * 1024 + 1))
        with pytest.raises(MatrixError, match="cannot be read") as caught:
            load_matrix(path)
        assert "larger" in caught.value.evidence[0]

    def test_empty(self, tmp_path: Path) -> None:
        path = tmp_path / "m.toml"
        path.write_text("")
        with pytest.raises(MatrixError, match="missing"):
            load_matrix(path)

    @pytest.mark.parametrize("text", ["a = " + "[" * 5000, "a = " + "{b=" * 5000])
    def test_deep_nesting(self, text: str) -> None:
        with pytest.raises(MatrixError):
            parse_matrix(text, "m.toml")

    @given(st.text(max_size=200))
    def test_junk_gives_a_matrix_error(self, text: str) -> None:
        with pytest.raises(MatrixError):
            parse_matrix(text, "m.toml")


class TestLines:
    def test_headers_keys_inline_and_strings(self) -> None:
        text = (
            'a.b = 1\n[x."y z"]\nk = { "q" = 1, r = 2 }\n"odd key" = """\nk2 = 3\n"""\nk2 = 4\n'
            "[[list]]\nn = 1\n[[list]]\nn = 2\n[list.sub]\nm = 1\n"
        )
        assert line_of(text, ("a", "b")) == 1
        assert line_of(text, ("x", "y z")) == 2
        assert line_of(text, ("x", "y z", "k", "r")) == 3
        assert line_of(text, ("x", "y z", "odd key")) == 4
        assert line_of(text, ("x", "y z", "k2")) == 7
        assert line_of(text, ("list", 1, "n")) == 11
        assert line_of(text, ("list", 1, "sub", "m")) == 13
        assert line_of(text, ("x", "y z", "absent")) == 2
        assert line_of(text, ("nowhere",)) == 1

    def test_dotted(self) -> None:
        assert dotted(("cuda", "12.4", "targets", 2)) == 'cuda."12.4".targets[3]'

    @given(st.text(max_size=80), st.lists(st.text(max_size=5) | st.integers(0, 3), max_size=3))
    def test_never_fails(self, text: str, path: list[str | int]) -> None:
        assert 1 <= line_of(text, path) <= max(1, len(text.splitlines()))


class TestTheProjectsMatrix:
    def test_every_row_has_a_source(self, matrix: Matrix) -> None:
        for line in matrix.cuda.values():
            assert line.gcc_source
            assert line.targets_source
            assert line.driver_source

    @pytest.mark.parametrize(
        ("release", "torch", "cuda"),
        [
            ("0.2.7", "2.1.2", "12.1"),
            ("0.4.0", "2.1.2", "12.1"),
            ("0.4.1", "2.2.1", "12.1"),
            ("0.4.2", "2.3.0", "12.1"),
            ("0.4.3", "2.3.0", "12.1"),
            ("0.5.1", "2.3.0", "12.1"),
            ("0.5.3", "2.3.1", "12.1"),
            ("0.5.4", "2.4.0", "12.1"),
            ("0.6.3", "2.4.0", "12.1"),
            ("0.6.4", "2.5.1", "12.4"),
            ("0.7.3", "2.5.1", "12.4"),
            ("0.8.5.post1", "2.6.0", "12.4"),
            ("0.9.2", "2.7.0", "12.6"),
            ("0.10.1", "2.7.1", "12.6"),
            ("0.11.0", "2.8.0", "12.8"),
            ("0.13.0", "2.9.0", "12.8"),
            ("0.16.0", "2.9.1", "12.8"),
            ("0.19.1", "2.10.0", "12.8"),
            ("0.26.0", "2.11.0", "13.0"),
            ("0.32.0", "2.13.0", "13.0"),
            ("0.33.0", "2.14.0", "13.0"),
        ],
    )
    def test_pins(self, matrix: Matrix, release: str, torch: str, cuda: str) -> None:
        row = matrix.releases["vllm"][release]
        assert (row.torch, row.cuda) == (torch, cuda)

    @pytest.mark.parametrize(
        ("build", "abi"),
        [
            ("2.3.0+cu121", False),
            ("2.6.0+cu124", False),
            ("2.7.0+cu126", True),
            ("2.11.0+cu130", True),
        ],
    )
    def test_abi(self, matrix: Matrix, build: str, abi: bool) -> None:
        assert matrix.torch[build].cxx11_abi is abi

    def test_lookups(self, matrix: Matrix) -> None:
        combo = matrix.combo(FLAGSHIP)
        assert matrix.torch_of(combo).version == "2.3.0"
        assert matrix.toolkit("debian-12.4.131").line == "12.4"
        for bad in (lambda: matrix.toolkit("x-1"), lambda: matrix.line("12.7")):
            with pytest.raises(MatrixError, match="the matrix has no"):
                bad()

    def test_names_no_host(self) -> None:
        text = (PROJECT / "arch_matrix.toml").read_text()
        assert "://" not in text

    @pytest.mark.parametrize(
        "text",
        ["[" + "a." * 5000 + "a]\n", "".join(f"[t{n}]\na = 1\n" for n in range(5000))],
        ids=["deep", "many"],
    )
    def test_many_faults_take_little_time(self, text: str) -> None:
        before = time.process_time()
        with pytest.raises(MatrixError) as caught:
            parse_matrix(text, "m.toml")
        assert time.process_time() - before < 10  # seconds; it was minutes
        assert len(caught.value.evidence) <= 100
