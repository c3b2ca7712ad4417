from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinwheel.build.diagnose import Cause, diagnose, first_error

# What the tools print when a compiler is ended or gets no memory. Status: as the step's own.
MEMORY = [
    ("Killed", 137),
    ("some line\nKilled\nninja: build stopped: subcommand failed.\n", 1),
    ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)\n", 9),
    ("nvcc error   : 'ptxas' died due to signal 9 (Kill signal)\n", 255),
    ("nvcc error   : 'cudafe++' died due to signal 9 (Kill signal)\n", 137),
    (
        "g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\n",
        1,
    ),
    ("g++: internal compiler error: Killed (program cc1plus)\n", 4),
    ("collect2: fatal error: ld terminated with signal 9 [Killed]\n", 1),
    ("cc1plus: out of memory allocating 1048576 bytes after a total of 8388608 bytes\n", 1),
    ("virtual memory exhausted: Cannot allocate memory\n", 1),
    ("/usr/bin/ld: final link failed: memory exhausted\n", 1),
    ("terminate called after throwing an instance of 'std::bad_alloc'\n", 134),
    ("  what():  std::bad_alloc\n", 134),
    ("LLVM ERROR: out of memory\n", 134),
    ("ptxas fatal   : Memory allocation failure\n", 255),
    ("FAILED: [code=137] CMakeFiles/_C.dir/x.cu.o\n", 1),
    ("make[2]: *** [build.make:76: x.o] Error 137\n", 2),
    ("subprocess.CalledProcessError: Command 'nvcc' died with <Signals.SIGKILL: 9>.\n", 1),
    ("Command failed with exit status 137\n", 1),
    ("(signal: 9, SIGKILL: kill)\n", 101),
    # Killed below sccache, as sccache 0.16.0 said it of each of nvcc's steps: cicc, ptxas and
    # cudafe++ with the first line, fatbinary and a whole compiler with the second alone.
    ("cicc terminated (signal: 9)sccache: Compiler killed by signal 9\n", 254),
    ("sccache: Compiler killed by signal 9\n", 254),
    ('sccache: caused by: "g++: fatal error: Killed signal terminated program cc1plus\\n"\n', 2),
    ("/bin/sh: line 1: 12345 Killed                  /opt/cuda/bin/nvcc -c x.cu\n", 1),
    ("gmake[2]: *** [build.make:928: x.o] Killed\n", 2),
    ("g++: Internal error: Killed (program cc1plus)\n", 4),
    ("clang: error: unable to execute command: Killed\n", 1),
    ("error: command '/opt/cuda/bin/nvcc' failed with exit code -9\n", 1),
    ("Command '['cmake', '--build', '.']' returned non-zero exit status -9.\n", 1),
    ("process exited with code 137\n", 1),
    ('"x.cu", line 3: catastrophic error: out of memory\n', 2),
    ("/usr/bin/ld.gold: fatal error: out of memory\n", 1),
    ("lto1: out of memory\n", 1),
    ("ptxas fatal   : Memory allocation error\n", 255),
    ("MemoryError\n", 1),
    ("Memory cgroup out of memory: Killed process 42 (cicc)\n", 1),
    ("slurmstepd: error: Detected 2 oom_kill events in StepId=1.\n", 1),
    ("Killed\r\nninja: build stopped: subcommand failed.\r\n", 1),
    ("ninja: build stopped: subcommand failed.\n", 137),
    ("ninja: build stopped: subcommand failed.\n", -9),
    ("", 137),
]

# Plain errors of a source that speaks of these things itself.
SOURCE = [
    ('a.cu(3): error: identifier "foo" is undefined\n    Killed\n    ^\n', 2),
    ("x.cpp:12:5: error: 'Killed' was not declared in this scope\n   12 |     Killed\n", 1),
    (
        "x.cpp:3:9: error: expected ';'\n    3 | catch (const std::bad_alloc &e) {\n",
        1,
    ),
    ("x.cpp:3:9: error: 'State::Killed' is not a member\n", 1),
    ("x.cpp:1:1: error: static assertion failed: Cannot allocate memory on this GPU\n", 1),
    ('x.cpp:9:2: error: #error "No space left on device is a string"\n', 1),
    ('x.cu(9): error: expected a ";"\n      puts("Killed signal terminated program");\n', 2),
    ("nvcc error   : 'cicc' died due to signal 11 (Invalid memory reference)\n", 139),
    ("sccache: Compiler killed by signal 11\n", 254),
    ("RuntimeError: CUDA error: out of memory\n", 1),  # the GPU's, of a program that was run
    ("make: *** [x.o] Error 1\nKilled processes: none\n", 2),
    ('x.cu(4): error: identifier "oom" is undefined, code 137\n', 2),
    ("FAILED: [code=1] x.o\nx.cpp:1: error: too many arguments, 137 given\n", 1),
    ("ninja: build stopped: subcommand failed.\n", 1),
    ("", 1),
]

DISK = [
    ("x.cpp: fatal error: error writing to /build/tmp/ccX.s: No space left on device\n", 1),
    ("/usr/bin/ld: final link failed: No space left on device\n", 1),
    ("OSError: [Errno 122] Disk quota exceeded: 'x'\n", 1),
    ("error: No space left on device\nKilled\n", 137),
]


@pytest.mark.parametrize(("log", "code"), MEMORY)
def test_out_of_memory_is_recognised(log: str, code: int) -> None:
    found = diagnose(log, code)
    assert found.cause is Cause.MEMORY
    assert found.evidence


@pytest.mark.parametrize(("log", "code"), SOURCE)
def test_what_a_source_says_is_no_kill(log: str, code: int) -> None:
    found = diagnose(log, code)
    assert found.cause is Cause.SOURCE
    assert found.evidence


@pytest.mark.parametrize(("log", "code"), DISK)
def test_a_full_disk_is_recognised(log: str, code: int) -> None:
    assert diagnose(log, code).cause is Cause.DISK


def test_the_evidence_is_the_line_itself() -> None:
    log = "one\n  nvcc error   : 'cicc' died due to signal 9 (Kill signal)  \nthree\n"
    assert diagnose(log, 1).evidence == "nvcc error   : 'cicc' died due to signal 9 (Kill signal)"
    assert diagnose("first\nx.cpp:1:2: fatal error: y.h: No such file\nlast\n", 1).evidence == (
        "x.cpp:1:2: fatal error: y.h: No such file"
    )


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("warning: x\nCMake Error at CMakeLists.txt:3 (find_package):\n", "CMake Error at"),
        ("a.cu(7): error: bad\n", "a.cu(7): error: bad"),
        ("nothing of that kind\nthe end\n\n", "the end"),
        ("\n \n", "nothing was printed"),
        ("errors happened\nlast", "last"),
    ],
)
def test_the_first_error_of_a_log(log: str, line: str) -> None:
    assert first_error(log).startswith(line)


@given(st.text(), st.integers(-64, 256))
@settings(deadline=None, max_examples=100)
def test_any_log_is_read(log: str, code: int) -> None:
    found = diagnose(log, code)
    assert found.evidence
    assert code not in (137, -9) or found.cause is not Cause.SOURCE


@given(st.lists(st.sampled_from([log for log, _ in MEMORY if log] + ["| x\n", "   y\n"])))
@settings(deadline=None, max_examples=50)
def test_a_kill_is_found_anywhere_in_a_log(lines: list[str]) -> None:
    log = "start\n" + "".join(line if line.endswith("\n") else line + "\n" for line in lines)
    kills = {log for log, code in MEMORY if log and log[-19:] != "subcommand failed.\n"}
    if any(line in kills for line in lines):
        assert diagnose(log, 1).cause is Cause.MEMORY


def test_a_large_log_takes_no_time() -> None:
    assert diagnose("x" * 2_000_000 + "\n" + " " * 1_000_000 + "|", 1).cause is Cause.SOURCE
