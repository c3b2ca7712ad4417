"""``pinwheel compare``: what differs between two wheels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pinwheel.cli import complete

if TYPE_CHECKING:
    from pinwheel.console import Console
    from pinwheel.verify.differ import Comparison

_SHOWN = 3  # kernels of a line; -v and --json have all


@click.command(
    "compare",
    epilog="""\b
Examples:
  pinwheel compare official.whl ours.whl         what we have more, less and other
  pinwheel compare one.whl other.whl -v          name every kernel
  pinwheel compare one.whl other.whl --json      for programs
\b
Left out of the comparison of kernels is what belongs to one build alone: hashes of path and
contents in names that are local to a source, and the capability list in CUB's namespace.
\b
Exit codes: 0 nothing differs, 1 something does, 2 wrong usage, 23 disk full, 24 not writable,
50 or 60 one of them is damaged or misleads. All of them: docs/exit-codes.md. Whether a difference
is meant, only a recipe can say: rule parity of `pinwheel verify`, docs/rules.md, docs/verify.md.
""",
)
@click.argument(
    "first", metavar="A", type=click.Path(path_type=Path), shell_complete=complete.wheels
)
@click.argument(
    "second", metavar="B", type=click.Path(path_type=Path), shell_complete=complete.wheels
)
@click.option("--cache", type=click.Path(path_type=Path), help="Cache directory.")
@click.option("--offline", is_flag=True, help="Use no network; this command never does.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but the summary and errors.")
@click.option("-v", "--verbose", count=True, help="Name every kernel.")
def command(
    first: Path,
    second: Path,
    cache: Path | None,
    offline: bool,
    as_json: bool,
    quiet: bool,
    verbose: int,
) -> None:
    """Show what wheel B has more, less and other than wheel A; both are read, never run.

    Files by their bytes, libraries also by operators and by kernels of each capability,
    requirements and tags by their meaning. No project is needed.
    """
    from dataclasses import replace

    from pinwheel.console import Console
    from pinwheel.settings import load_settings
    from pinwheel.verify.differ import differ

    settings = load_settings()
    settings = replace(settings, cache=cache.absolute() if cache else settings.cache)
    console = Console(quiet=quiet, verbose=verbose)
    found = differ(first, second, settings.work, console)
    if as_json:
        console.emit_json(found.as_dict())
    else:
        if not quiet:
            _show(found, console)
        console.result(found.summary())
    if not found.equal:
        raise click.exceptions.Exit(1)


def _show(found: Comparison, console: Console) -> None:
    from pinwheel.inspect.region import printable

    where = {"missing": "only in A", "added": "only in B", "different": "differs"}
    rows = [
        (d.kind.value, where.get(d.change.value, d.change.value), printable(d.path))
        for d in found.differences
    ]
    for kernel in found.kernels:
        both = (("only in A", kernel.only_first), ("only in B", kernel.only_second))
        for side, names in both:
            if names:
                shown = names if console.verbose else names[:_SHOWN]
                more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
                what = f"{kernel.library} {kernel.target}: {', '.join(shown)}{more}"
                rows.append(("kernel", side, printable(what, 2000)))
        if kernel.images[0] != kernel.images[1]:
            what = f"{kernel.library} {kernel.target}: {kernel.images[0]} and {kernel.images[1]}"
            rows.append(("images", "differs", printable(what)))
    if rows:
        console.table(f"A: {found.first}, B: {found.second}", ("what", "where", "which"), rows)
