"""``pinwheel clean``: what the cache holds and takes, and removing what was not used for long."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pinwheel.build.clean import Cleaning
    from pinwheel.console import Console


@click.command(
    "clean",
    epilog="""\b
Examples:
  pinwheel clean --dry-run        what the cache holds, what each part takes, what would go
  pinwheel clean                  remove what was not used for 30 days
  pinwheel clean --older-than 0   remove all that can be made again and is not in use

\b
Exit codes: 0 done, or there was nothing to do, 2 wrong usage, 17 a setting, 24 something may not
be removed by this user, 130 interrupted. All of them: docs/exit-codes.md. More: docs/build.md.""",
)
@click.option(
    "--older-than",
    type=click.IntRange(0, 36_500),
    default=30,
    show_default=True,
    metavar="DAYS",
    help="Remove what was not used for so many days; with 0 all that is not in use now.",
)
@click.option("--dry-run", is_flag=True, help="List everything with its size; remove nothing.")
@click.option("--recipes", type=click.Path(path_type=Path), help="Accepted; recipes are not read.")
@click.option("--cache", type=click.Path(path_type=Path), help="Cache directory.")
@click.option("--offline", is_flag=True, help="Accepted; no network is used.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="The last line, warnings and errors.")
@click.option("-v", "--verbose", count=True, help="Say more.")
def command(
    older_than: int,
    dry_run: bool,
    recipes: Path | None,
    cache: Path | None,
    offline: bool,
    as_json: bool,
    quiet: bool,
    verbose: int,
) -> None:
    """Show what the cache takes, and remove what was not used for long.

    What goes is made again when a build wants it: work directories, environments, build roots,
    toolkits, tools, and what commands that were killed left. Downloaded inputs and the compile
    cache are listed and never removed. What a running build uses, or could, stays.
    """
    from dataclasses import replace

    from pinwheel.build.clean import clean
    from pinwheel.console import Console
    from pinwheel.settings import load_settings

    settings = load_settings()
    if cache is not None:
        settings = replace(settings, cache=cache.absolute())
    console = Console(quiet=quiet, verbose=verbose)
    cleaning = clean(settings, older_than=older_than, dry_run=dry_run)
    if as_json:
        console.emit_json(cleaning.as_dict())
    else:
        _show(cleaning, console, dry_run=dry_run)


def _show(cleaning: Cleaning, console: Console, *, dry_run: bool) -> None:
    from pinwheel.files import human_bytes

    if cleaning.parts and not console.quiet:
        console.table(
            str(cleaning.cache),
            ("what", "name", "size", "fate", "why"),
            [
                (
                    part.kind.value,
                    str(part.path.relative_to(cleaning.cache)),
                    human_bytes(part.size),
                    part.fate.value,
                    part.reason,
                )
                for part in cleaning.parts
            ],
            right=("size",),
        )
    if not cleaning.parts:
        console.result(f"{cleaning.cache} holds nothing")
        return
    verb = "takes" if dry_run else "took"
    freed = f"{human_bytes(cleaning.freed)} {'would be freed' if dry_run else 'freed'}"
    console.result(
        f"{cleaning.cache} {verb} {human_bytes(cleaning.size)}, {freed} "
        "(files that parts share count once)"
    )
