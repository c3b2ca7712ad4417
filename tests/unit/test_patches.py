"""Patches: the header, strict reading, exact application, and what the vLLM 0.6.3 series does."""

from __future__ import annotations

import difflib
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinwheel.errors import PatchError
from pinwheel.inputs.archive import unpack_sdist
from pinwheel.inputs.patches import ChangeKind, apply_series, read_patch, read_series

SERIES = Path(__file__).parents[2] / "patches/vllm-0.6.3/torch-2.3"
HEADER = "Subject: a\nWhy: b\n c\nUpstream: d\nChecked-by: e\n---\n"
EPOCH = 1_728_941_239
MODIFY = """\
--- a/src/one.txt
+++ b/src/one.txt
@@ -2,3 +2,3 @@
 two
-three
+THREE
 four
"""
CREATE = """\
diff --git a/new/two.txt b/new/two.txt
new file mode 100755
--- /dev/null
+++ b/new/two.txt
@@ -0,0 +1,2 @@
+x
+y
"""
DELETE = """\
--- a/gone.txt
+++ /dev/null
@@ -1,2 +0,0 @@
-a
-b
\\ No newline at end of file
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "src").mkdir(parents=True)
    (root / "src/one.txt").write_text("one\ntwo\nthree\nfour\nfive\n")
    (root / "src/one.txt").chmod(0o600)
    (root / "gone.txt").write_bytes(b"a\nb")
    return root


def write(directory: Path, body: str | bytes, name: str = "0001-a.patch", head: str = HEADER):
    path = directory / name
    path.write_bytes(head.encode() + (body.encode() if isinstance(body, str) else body))
    return path


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


# --- reading --------------------------------------------------------------------------------


def test_header_and_changes_are_read(tmp_path: Path):
    patch = read_patch(write(tmp_path, MODIFY + CREATE + DELETE))
    assert (patch.subject, patch.why, patch.upstream, patch.checked_by) == ("a", "b c", "d", "e")
    assert [(c.path, c.kind, c.mode) for c in patch.files] == [
        ("src/one.txt", ChangeKind.MODIFY, None),
        ("new/two.txt", ChangeKind.CREATE, 0o755),
        ("gone.txt", ChangeKind.DELETE, None),
    ]
    assert len(patch.sha256) == 64


@pytest.mark.parametrize(
    ("head", "says"),
    [
        ("", "has no Subject, Why, Upstream, Checked-by"),
        (HEADER.replace("Why: b\n c\n", ""), "has no Why"),
        (HEADER.replace("Upstream: d", "Upstream:"), "has no Upstream"),
        (HEADER.replace("Why:", "Because:"), "no field of its own"),
        (HEADER.replace("Upstream: d", "Subject: d"), "no field of its own"),
    ],
)
def test_header_is_enforced(tmp_path: Path, head: str, says: str):
    with pytest.raises(PatchError, match=says):
        read_patch(write(tmp_path, MODIFY, head=head))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("", "has no diff"),
        (MODIFY.replace("a/src/one.txt", "a/../one.txt"), "a/PATH and b/PATH"),
        (MODIFY.replace("/src/one.txt", "/../one.txt"), "outside the source tree"),
        (MODIFY.replace("/src/one.txt", "//etc/passwd"), "outside the source tree"),
        (MODIFY.replace("a/src/one.txt", "src/one.txt"), "a/PATH and b/PATH"),
        (MODIFY.replace("/src/one.txt", "/src\\one.txt"), "outside the source tree"),
        (MODIFY.replace("@@ -2,3 +2,3 @@", "@@ -2,3 +2,3"), "no part of a diff|cannot be parsed"),
        (MODIFY.replace("@@ -2,3 +2,3 @@", "@@ -2,9 +2,9 @@"), "cannot be parsed"),
        (MODIFY.replace("@@ -2,3", "@@ -" + "9" * 5000 + ",3"), "cannot be parsed"),
        (MODIFY + "-- \n2.39.5\n", "no part of a diff"),
        (MODIFY + "\n", "no part of a diff"),
        (MODIFY.rstrip("\n"), "in the middle of a line"),
        (MODIFY + MODIFY, "one file twice"),
        ("--- a/x\n+++ b/x\n@@ -3,0 +4,1 @@\n+new\n", "without context"),
        ("diff --git a/x b/y\nrename from x\nrename to y\n", "no part of a diff"),
        ("diff --git a/x b/x\nold mode 100644\nnew mode 100755\n", "no part of a diff"),
        ("diff --git a/x b/x\nnew file mode 100644\n", "without lines"),
        ("diff --git a/x b/x\nnew file mode 120000\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+y\n",
         "no part of a diff"),
        ("diff --git a/x b/x\nindex 1..2\nGIT binary patch\nliteral 1\nIcm\n\n", "binary"),
        ("diff --git a/x b/x\nBinary files a/x and b/x differ\n", "binary"),
        (CREATE.replace("+++ b/new/two.txt", "+++ b/new/three.txt"), "cannot be parsed|two ways"),
    ],
)  # fmt: skip
def test_what_would_be_skipped_over_is_refused(tmp_path: Path, body: str, says: str):
    with pytest.raises(PatchError, match=says):
        read_patch(write(tmp_path, body))


@pytest.mark.parametrize("name", ["fix.patch", "1-a.patch", "0001-A.patch", "0001-a.diff"])
def test_name_is_enforced(tmp_path: Path, name: str):
    with pytest.raises(PatchError, match=r"NNNN-title\.patch"):
        read_patch(write(tmp_path, MODIFY, name=name))


def test_series_is_read_by_number_and_numbers_are_unique(tmp_path: Path):
    paths = [write(tmp_path, MODIFY, name="0002-b.patch"), write(tmp_path, CREATE)]
    assert [p.name for p in read_series(paths)] == ["0001-a.patch", "0002-b.patch"]
    with pytest.raises(PatchError, match="number of another"):
        read_series([*paths, write(tmp_path, DELETE, name="0002-c.patch")])


# --- applying -------------------------------------------------------------------------------


def test_modify_create_delete(tmp_path: Path, tree: Path):
    done = apply_series(tree, [read_patch(write(tmp_path, MODIFY + CREATE + DELETE))], mtime=EPOCH)
    assert snapshot(tree) == {
        "src/one.txt": b"one\ntwo\nTHREE\nfour\nfive\n",
        "new/two.txt": b"x\ny\n",
    }
    assert done.paths == {"src/one.txt", "new/two.txt", "gone.txt"}
    assert done.as_dict()[0]["files"][0] == {
        "path": "src/one.txt", "change": "modify", "offsets": [0],
    }  # fmt: skip
    assert (tree / "src/one.txt").stat().st_mode & 0o777 == 0o600
    assert (tree / "new/two.txt").stat().st_mode & 0o777 == 0o755
    for path in ("src/one.txt", "src", "new/two.txt", "new", "."):
        assert (tree / path).stat().st_mtime == EPOCH


def test_later_patch_sees_the_earlier_one(tmp_path: Path, tree: Path):
    second = MODIFY.replace("-three\n+THREE", "-THREE\n+3").replace("@@ -2,3", "@@ -2,3")
    patches = [
        read_patch(write(tmp_path, MODIFY)),
        read_patch(write(tmp_path, second, name="0002-b.patch")),
    ]
    apply_series(tree, patches, mtime=EPOCH)
    assert (tree / "src/one.txt").read_text() == "one\ntwo\n3\nfour\nfive\n"


def test_offset_is_reported_and_fuzz_refused(tmp_path: Path, tree: Path):
    moved = read_patch(write(tmp_path, MODIFY.replace("-2,3 +2,3", "-1,3 +1,3")))
    assert apply_series(tree, [moved], mtime=EPOCH).patches[0].files[0].offsets == (1,)
    fuzzy = read_patch(write(tmp_path, MODIFY.replace(" four", " fourth")))
    with pytest.raises(PatchError, match=r"does not apply: hunk 1 of src/one\.txt"):
        apply_series(tree, [fuzzy], mtime=EPOCH)


def test_hunk_that_fits_in_two_places_is_refused(tmp_path: Path, tree: Path):
    (tree / "src/one.txt").write_text("x\ny\ntwo\nthree\nfour\ntwo\nthree\nfour\n")
    with pytest.raises(PatchError) as caught:
        apply_series(tree, [read_patch(write(tmp_path, MODIFY))], mtime=EPOCH)
    assert "its lines are in 2 places: [3, 6]" in caught.value.evidence


def test_d9_failure_names_patch_file_hunk_and_changes_nothing(tmp_path: Path, tree: Path):
    good = read_patch(write(tmp_path, CREATE + DELETE))
    two = MODIFY + "@@ -5,1 +5,1 @@\n-fife\n+5\n"
    bad = read_patch(write(tmp_path, two, name="0002-b.patch"))
    before = snapshot(tree)
    with pytest.raises(PatchError) as caught:
        apply_series(tree, [good, bad], mtime=EPOCH)
    error = caught.value
    assert error.what == "patch 0002-b.patch does not apply: hunk 2 of src/one.txt"
    assert "hunk 2: @@ -5,1 +5,1 @@" in error.evidence
    assert "expected 5: fife" in error.evidence
    assert "there 5: five" in error.evidence
    assert snapshot(tree) == before


def test_d9_a_file_that_is_gone_names_the_hunk_too(tmp_path: Path, tree: Path):
    bad = read_patch(write(tmp_path, MODIFY.replace("src/one.txt", "src/none.txt")))
    with pytest.raises(PatchError) as caught:
        apply_series(tree, [bad], mtime=EPOCH)
    assert "changes src/none.txt, which does not exist" in caught.value.what
    assert caught.value.evidence[0] == "file: src/none.txt"
    assert caught.value.evidence[1].startswith("hunk 1: @@ -")


def test_applied_twice_says_so(tmp_path: Path, tree: Path):
    patch = read_patch(write(tmp_path, MODIFY))
    apply_series(tree, [patch], mtime=EPOCH)
    with pytest.raises(PatchError) as caught:
        apply_series(tree, [patch], mtime=EPOCH)
    assert any("applied already" in line for line in caught.value.evidence)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (MODIFY.replace("src/one.txt", "src/none.txt"), "does not exist"),
        (CREATE.replace("new/two.txt", "src/one.txt"), "there already"),
        (DELETE.replace("\\ No newline at end of file\n", ""), "does not apply"),
        (MODIFY.replace("src/one.txt", "link/one.txt"), "plain file in a plain directory"),
        (MODIFY.replace("src/one.txt", "lone.txt"), "plain file in a plain directory"),
        (CREATE.replace("new/two.txt", "gone.txt/two.txt"), "plain file in a plain directory"),
    ],
)
def test_wrong_places_are_refused(tmp_path: Path, tree: Path, body: str, says: str):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "one.txt").write_text((tree / "src/one.txt").read_text())
    (tree / "link").symlink_to(outside)
    (tree / "lone.txt").symlink_to("src/one.txt")
    before = snapshot(tmp_path)
    patch = write(tmp_path, body)
    with pytest.raises(PatchError, match=says):
        apply_series(tree, [read_patch(patch)], mtime=EPOCH)
    patch.unlink()
    assert snapshot(tmp_path) == before


def test_carriage_returns_and_odd_bytes_are_kept(tmp_path: Path, tree: Path):
    (tree / "src/one.txt").write_bytes(b"a\r\n\xff\x0c\x85b\r\nc\rd\n")
    body = (
        b"--- a/src/one.txt\n+++ b/src/one.txt\n@@ -1,3 +1,3 @@\n"
        b" a\r\n-\xff\x0c\x85b\r\n+\xfe\r\n c\rd\n"
    )
    apply_series(tree, [read_patch(write(tmp_path, body))], mtime=EPOCH)
    assert (tree / "src/one.txt").read_bytes() == b"a\r\n\xfe\r\nc\rd\n"


LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "-- x\n", "++ y\n"]), max_size=12)


@settings(max_examples=200, deadline=None)
@given(old=LINES, new=LINES, context=st.integers(1, 3))
def test_whatever_difflib_writes_applies(tmp_path_factory, old, new, context):
    if not old or not new or old == new:
        return
    diff = "".join(difflib.unified_diff(old, new, "a/f", "b/f", n=context))
    root = tmp_path_factory.mktemp("p")
    (root / "t").mkdir()
    (root / "t/f").write_text("".join(old))
    apply_series(root / "t", [read_patch(write(root, diff))], mtime=EPOCH)
    assert (root / "t/f").read_text() == "".join(new)


# --- the series for vLLM 0.6.3 on torch 2.3 ---------------------------------------------------


def series() -> dict[str, list[str]]:
    """Lines each path of the series gets, by path."""
    added: dict[str, list[str]] = {}
    for patch in read_series(SERIES.glob("*.patch")):
        for change in patch.files:
            for hunk in change.hunks:
                added.setdefault(change.path, []).extend(line.decode() for line in hunk.new)
    return added


def test_the_series_pins_torch_for_the_build():
    added = series()
    assert 'set(TORCH_SUPPORTED_VERSION_CUDA "2.3.0")\n' in added["CMakeLists.txt"]
    assert '    "torch == 2.3.0",\n' in added["pyproject.toml"]
    assert "torch==2.3.0\r\n" in added["requirements-build.txt"]
    # METADATA is the recipe's, rewritten when the wheel is finished.
    assert "requirements-cuda.txt" not in added


def test_all_of_machete_gets_one_list():
    added = "".join(series()["CMakeLists.txt"])
    assert (
        "    set_gencode_flags_for_srcs(\n"
        "      SRCS csrc/quantization/machete/machete_pytorch.cu\n"
        '      CUDA_ARCHS "${MACHETE_ARCHS}")\n'
    ) in added


def fake_torch(monkeypatch, version="2.3.0+cu121", cuda="12.1", abi=False, **library):
    torch = ModuleType("torch")
    torch.__version__, torch.__file__ = version, "/site/torch/__init__.py"
    torch.version = SimpleNamespace(cuda=cuda)
    torch.library = SimpleNamespace(**library)
    torch.compiled_with_cxx11_abi = lambda: abi
    monkeypatch.setitem(sys.modules, "torch", torch)


@pytest.fixture
def guard(monkeypatch):
    """The guard's module as the patch creates it, and a ``vllm`` that says what it was built for.

    torch is a stand-in here; ``tests/e2e/guards.py`` has the real one.
    """
    namespace: dict[str, object] = {"__name__": "vllm._torch_guard"}
    exec("".join(series()["vllm/_torch_guard.py"]), namespace)
    package = ModuleType("vllm")
    package.__path__ = []
    monkeypatch.setitem(sys.modules, "vllm", package)
    built = ModuleType("vllm._pinwheel")
    built.TORCH, built.CUDA, built.CXX11_ABI = "2.3.0", "12.1", False
    monkeypatch.setitem(sys.modules, "vllm._pinwheel", built)
    return namespace


@pytest.mark.parametrize("version", ["2.3.0", "2.3.0+cu121"])
def test_the_guard_accepts_its_torch(monkeypatch, guard, version):
    fake_torch(monkeypatch, version)
    guard["check_torch"]()


@pytest.mark.parametrize(
    ("version", "cuda", "abi"),
    [
        ("2.3.1+cu121", "12.1", False),
        ("2.4.0", "12.1", False),
        ("2.3.0a0+git1", "12.1", False),
        ("2.3.0+cu118", "11.8", False),
        ("2.3.0+cpu", None, False),
        ("2.3.0", "12.1", True),
    ],
)
def test_the_guard_compares_version_cuda_and_abi(monkeypatch, guard, version, cuda, abi):
    fake_torch(monkeypatch, version, cuda, abi)
    with pytest.raises(ImportError) as caught:
        guard["check_torch"]()
    assert type(caught.value).__name__ == "TorchMismatchError"
    text = str(caught.value)
    assert "compiled for PyTorch 2.3.0 (CUDA 12.1, CXX11 ABI False)" in text
    assert f"(CUDA {cuda}, CXX11 ABI {abi}) at /site/torch/__init__.py" in text
    assert "Install torch==2.3.0" in text


def test_the_guard_checks_nothing_in_a_source_build(monkeypatch, guard):
    fake_torch(monkeypatch, "9.9")
    monkeypatch.delitem(sys.modules, "vllm._pinwheel")
    guard["check_torch"]()


def test_the_guard_refuses_a_statement_it_cannot_read(monkeypatch, guard):
    fake_torch(monkeypatch)
    del sys.modules["vllm._pinwheel"].CUDA
    with pytest.raises(ImportError, match="CUDA"):
        guard["check_torch"]()


@pytest.mark.parametrize("backend", ["flash_attn", "flashinfer"])
def test_backends_refuse_a_torch_without_custom_op(monkeypatch, backend):
    lines = series()[f"vllm/attention/backends/{backend}.py"]
    start = lines.index("import torch\n")
    code = "".join(lines[start : lines.index("from vllm import _custom_ops as ops\n")])
    fake_torch(monkeypatch)
    with pytest.raises(ImportError, match="VLLM_ATTENTION_BACKEND=XFORMERS"):
        exec(code, {})
    fake_torch(monkeypatch, "2.4.0", custom_op=print)
    exec(code, {})


@pytest.mark.parametrize(
    ("value", "on"), [(None, True), ("1", True), ("on", True), ("OFF", False), ("", False)]
)
def test_the_flash_attention_switch(monkeypatch, value, on):
    lines = series()["setup.py"]
    start = lines.index("def _build_flash_attn() -> bool:\n")
    code = "".join(lines[start : lines.index("def get_hipcc_rocm_version():\n")])
    monkeypatch.delenv("VLLM_BUILD_FLASH_ATTN", raising=False)
    if value is not None:
        monkeypatch.setenv("VLLM_BUILD_FLASH_ATTN", value)
    namespace = {"os": os}
    exec(code, namespace)
    assert namespace["_build_flash_attn"]() is on


@pytest.mark.skipif("PINWHEEL_VLLM_SDIST" not in os.environ, reason="no sdist of vLLM 0.6.3 given")
def test_the_series_applies_to_the_real_sdist_without_offset(tmp_path: Path):
    unpack_sdist(Path(os.environ["PINWHEEL_VLLM_SDIST"]), tmp_path / "src", epoch=EPOCH)
    done = apply_series(tmp_path / "src", read_series(SERIES.glob("*.patch")), mtime=EPOCH)
    assert {o for p in done.patches for f in p.files for o in f.offsets} == {0}
    for path in done.paths:
        if path.endswith(".py"):
            compile((tmp_path / "src" / path).read_bytes(), path, "exec")
