"""``platform-tag``: whether the platform tags of a wheel's name are true of its libraries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from packaging.tags import Tag

from pinwheel.errors import PlatformTagError
from pinwheel.inspect.platform import platform_of, require
from pinwheel.verify.library import ReadLibrary, shortened
from pinwheel.verify.model import Checked, Problem

RULE = "platform-tag"


def check_platform(
    libraries: Sequence[ReadLibrary], tags: Iterable[Tag], elsewhere: Sequence[str]
) -> Checked:
    """Hold every platform tag of the file name against the symbols the libraries need.

    Args:
        libraries: all ELF files of the wheel.
        tags: those of the file name.
        elsewhere: shell patterns of libraries that come from elsewhere.
    """
    host = [library.elf for library in libraries if library.host]
    platforms = sorted({tag.platform for tag in tags})
    if not host:
        return Checked(skipped={RULE: "the wheel holds no library"})
    problems = []
    looked = []
    for platform in platforms:
        if platform.startswith("linux_"):
            looked.append(f"{platform} promises nothing of the system")
            continue
        try:
            require(host, platform, elsewhere)
        except PlatformTagError as error:
            what = error.what
            if platform == "any":
                what = "the wheel is tagged for any platform and holds libraries of one"
            problems.append(
                Problem(
                    rule=RULE,
                    subject=platform,
                    what=what,
                    evidence=shortened(error.evidence),
                    next_step=error.next_step,
                )
            )
        else:
            looked.append(platform)
    facts: dict[str, Any]
    try:
        right = platform_of(host, elsewhere)
        facts = {"tag": right.tag, "because": list(shortened([str(r) for r in right.reasons]))}
    except PlatformTagError as error:
        facts = {"tag": None, "because": list(shortened(error.evidence))}
    return Checked(
        looked={RULE: ", ".join(looked)}, problems=tuple(problems), facts={"platform": facts}
    )
