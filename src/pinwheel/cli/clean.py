"""``pinwheel clean``: what the cache holds and takes, and removing what was not used for long."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pinwheel.build.clean import Cleaning
    from pinwheel.console import Console


@click.command("clean")
@click.option(
    "--older-than",
    type=click.IntRange(0, 36_500),
    default=30,
    show_default=True,
    metavar="DAYS",
    help="Remove what was not used for so many days; 0: all that is not in use.",
)
@click.option("--dry-run", is_flag=True, help="List everything with its size; remove nothing.")
@click.option("--recipes", type=click.Path(path_type=Path), help="Not used here.")
@click.option("--cache", type=click.Path(path_type=Path), help="Cache directory.")
@click.option("--offline", is_flag=True, help="Use no network; this command never does.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but results and errors.")
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
    """Remove from the cache what no build has used for some time, never what one uses now.

    Work directories, environments, build roots, toolkits and tools are made again when a build
    wants them. Inputs and the compile cache are listed and kept. While a build runs, what builds
    share is kept as well.
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

    if cleaning.parts:
        console.table(
            str(cleaning.cache),
            ("what", "name", "size", "", "why"),
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
    freed = "would be freed" if dry_run else "freed"
    console.result(
        f"{human_bytes(cleaning.size)} in {cleaning.cache}, {human_bytes(cleaning.freed)} {freed} "
        "(what several hold in common counts once here)"
    )
