from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pinwheel.errors import ContradictionError, ToolchainError, ToolkitError
from pinwheel.process import Result
from pinwheel.toolkit.check import check_gcc, check_nvcc, header_gcc_limit

HEADER = """
#if defined(__GNUC__)
#if __GNUC__ > 13
#error -- unsupported GNU version! gcc versions later than 13 are not supported!
#endif /* __GNUC__ > 13 */
"""


def test_d3_gcc_14_with_cuda_12_4_is_refused_and_a_fitting_one_named() -> None:
    with pytest.raises(ToolchainError) as caught:
        check_gcc("14.2.0", line="12.4", newest=13)
    assert "14.2.0" in caught.value.what
    assert "12.4" in caught.value.what
    assert "g++-13" in caught.value.next_step


@pytest.mark.parametrize(
    ("gcc", "newest", "fits"),
    [
        ("12.2.0", 13, True),
        ("13", 13, True),
        ("13.3.0", 13, True),
        ("14", 13, False),
        ("15.1", 15, True),
        ("9.5.0", 15, True),
        ("12.2.0", 11, False),
    ],
)
def test_limits(gcc: str, newest: int, fits: bool) -> None:
    if fits:
        check_gcc(gcc, line="1.2", newest=newest)
    else:
        with pytest.raises(ToolchainError):
            check_gcc(gcc, line="1.2", newest=newest)


@pytest.mark.parametrize("gcc", ["", "gcc", "(Debian) 12"])
def test_an_unknown_version_is_never_fine(gcc: str) -> None:
    with pytest.raises(ToolchainError):
        check_gcc(gcc, line="12.4", newest=13)


def test_matrix_and_toolkit_must_agree(tmp_path: Path) -> None:
    header = tmp_path / "include" / "crt" / "host_config.h"
    header.parent.mkdir(parents=True)
    header.write_text(HEADER)
    assert header_gcc_limit(HEADER) == 13
    check_gcc("12", line="12.4", newest=13, cuda_home=tmp_path)
    with pytest.raises(ContradictionError) as caught:
        check_gcc("12", line="12.4", newest=12, cuda_home=tmp_path)
    assert len(caught.value.evidence) == 2
    header.write_text("no limit here")
    check_gcc("12", line="12.4", newest=12, cuda_home=tmp_path)


@pytest.mark.parametrize(
    ("code", "output", "fits"),
    [
        (0, "Cuda compilation tools, release 12.4, V12.4.131\n", True),
        (0, "Cuda compilation tools, release 12.4, V12.4.99\n", False),
        (0, "Cuda compilation tools, release 12.4, V12.4.1310\n", False),
        (127, "V12.4.131", False),
        (0, "", False),
    ],
)
def test_d8_only_the_toolkits_own_nvcc_is_asked(code: int, output: str, fits: bool) -> None:
    asked: list[str] = []

    def run(argv: Sequence[str], *, cwd: str) -> Result:
        asked.append(argv[0])
        return Result(code, output, 0.0, 0.0)

    if fits:
        assert check_nvcc("/opt/cuda", version="12.4.131", run=run) == "12.4.131"
    else:
        with pytest.raises(ToolkitError):
            check_nvcc("/opt/cuda", version="12.4.131", run=run)
    assert asked == ["/opt/cuda/bin/nvcc"]
