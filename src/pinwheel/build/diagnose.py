"""What a failed build's log means: out of memory, disk full, or the compiler's own complaint."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

# What the tools print when the kernel ends a compiler: the shell, make, gcc's and clang's drivers,
# nvcc's driver, collect2, Python, sccache, ninja (exit 137 is 128 + SIGKILL). Memory is what kills
# compilers in practice; the words they print when an allocation fails come with it.
_KILLED = re.compile(
    r"^Killed\r?$"
    r"|\bline \d+: +\d+ Killed\b|\*\*\* \[.*\] Killed\b"
    r"|Killed signal terminated program|unable to execute command: Killed"
    r"|died due to signal 9\b|killed by signal 9\b"
    r"|signal: 9\b|signal 9 [(\[]Kill|\(SIGKILL\)|died with <Signals\.SIGKILL"
    r"|[Ii]nternal (?:compiler )?error: Killed"
    r"|virtual memory exhausted|\bmemory exhausted$"
    r"|out of memory allocating|[Mm]emory allocation (?:failure|error)"
    r"|\b(?:catastrophic error|fatal error|cc1(?:plus)?|lto1|as): out of memory\b"
    r"|Cannot allocate memory|^MemoryError\b"
    r"|[Oo]ut of memory: Kill(?:ed)? process|\boom[-_]kill"
    r"|(?:instance of '|what\(\):\s+|^)std::bad_alloc"
    r"|LLVM ERROR: out of memory"
    r"|Error 137\b|\bexit(?:ed)?(?: with)?(?: (?:code|status))?:? (?:137|-9)\b|code=137\b",
    re.MULTILINE,
)
# Lines in which a compiler quotes the program it compiles, whose words say nothing about the
# machine: gcc's excerpts (`  12 | code`), nvcc's (indented code below a message), and messages
# that the program wrote itself.
_QUOTED = re.compile(
    r"^ *\d* \|.*$|^ {3,}(?! *what\(\)).*$|^.*(?:\bstatic assertion failed|#error)\b.*$",
    re.MULTILINE,
)
_DISK = re.compile(r"No space left on device|Disk quota exceeded")


class Cause(StrEnum):
    """Why a build failed."""

    MEMORY = "memory"
    DISK = "disk"
    SOURCE = "source"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A cause and the line of the log that shows it."""

    cause: Cause
    evidence: str


def diagnose(log: str, code: int) -> Diagnosis:
    """Read a failed step's log.

    Args:
        log: what the step printed.
        code: its exit status; 137 and -9 are a kill.
    """
    said = _QUOTED.sub("", log)
    for pattern, cause in ((_DISK, Cause.DISK), (_KILLED, Cause.MEMORY)):
        match = pattern.search(said)
        if match:
            start = said.rfind("\n", 0, match.start()) + 1
            end = said.find("\n", match.end())
            return Diagnosis(cause, said[start : end if end >= 0 else len(said)].strip())
    if code in (137, -9):
        return Diagnosis(Cause.MEMORY, f"the compiler was killed (exit {code})")
    return Diagnosis(Cause.SOURCE, first_error(log))


def first_error(log: str) -> str:
    """The first line that says ``error``, else the last line that says anything."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for line in lines:
        if re.search(r"\b(fatal )?error\b\s*[:#]|^CMake Error|\bFAILED:", line, re.IGNORECASE):
            return line
    return lines[-1] if lines else "nothing was printed"
