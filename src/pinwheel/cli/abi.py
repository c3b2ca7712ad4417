"""``pinwheel abi``: which torch builds a wheel fits, and which symbol breaks each of the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinwheel.console import Console
    from pinwheel.inspect.elf import Elf
    from pinwheel.verify.abi_table import Row, Table

_SHOWN = 3  # symbols that the table names for each reason


@click.command("abi")
@click.argument("wheel", type=click.Path(path_type=Path))
@click.option(
    "--torch",
    "builds",
    multiple=True,
    metavar="BUILD",
    help="Only this torch build, 2.4.0+cu121 say; may be given several times.",
)
@click.option("--all", "everything", is_flag=True, help="Name every missing symbol.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but results and errors.")
@click.option("-v", "--verbose", count=True, help="Say more.")
def command(
    wheel: Path,
    builds: tuple[str, ...],
    everything: bool,
    as_json: bool,
    quiet: bool,
    verbose: int,
) -> None:
    """Hold every library of WHEEL against the torch builds that pinwheel knows.

    The wheel may be anyone's. It is read, never loaded, and torch need not be installed. The exit
    code is 0 when it fits every build that was asked for, or any build when none was.
    """
    from pinwheel.console import Console
    from pinwheel.inspect.elf import read_elf
    from pinwheel.inspect.wheel import open_wheel
    from pinwheel.settings import load_settings
    from pinwheel.verify.abi_table import table
    from pinwheel.verify.snapshot import builds as known
    from pinwheel.verify.snapshot import load_all

    if unknown := [build for build in builds if build not in known()]:
        raise click.UsageError(
            f"torch build {unknown[0]} is not known; known are {', '.join(known())}"
        )
    console = Console(quiet=quiet, verbose=verbose)
    with open_wheel(wheel, load_settings().work) as reader:
        found = [read_elf(reader.library(name)) for name in reader.libraries]
    # Cubins may lie in a wheel as files of their own; the loader loads none of them.
    libraries = [elf for elf in found if elf.dynamic and elf.machine != "EM_CUDA"]
    result = table(libraries, load_all())
    rows = [row for row in result.rows if not builds or row.build in builds]
    if as_json:
        data = result.as_dict()
        console.emit_json(
            {
                "wheel": wheel.name,
                **data,
                "builds": [row.as_dict() for row in rows],
                "fits": [row.build for row in rows if row.fits],
            }
        )
    else:
        _show(result, rows, libraries, console, everything=everything)
    fits = [row.fits for row in rows]
    if not (all(fits) if builds else any(fits)):
        raise click.exceptions.Exit(1)


def _show(
    found: Table,
    rows: Sequence[Row],
    libraries: Sequence[Elf],
    console: Console,
    *,
    everything: bool,
) -> None:
    if not any(s.uses_torch for s in found.stable):
        console.say(f"none of its {len(libraries)} libraries uses torch")
    known = [row.build for row in found.rows]
    table = [line for row in rows for line in _lines(row, known, everything=everything)]
    console.table("", ("torch", "ABI flag", "fits", "why not", "missing"), table)
    for use in found.stable:
        if use.stable:
            floor = f"torch {use.since} or newer" if use.since else "no torch known is enough"
            functions = f"{len(use.functions)} functions of torch's stable ABI alone"
            console.result(f"{use.library}: {functions}, {floor}")
    for fit in rows[0].libraries if rows else ():
        for symbol in fit.preloaded:
            console.detail(
                f"{fit.library}: {symbol.name} of {symbol.library}, which it does not name as "
                "NEEDED, and which torch loads"
            )


def _lines(row: Row, known: Sequence[str], *, everything: bool) -> list[tuple[str, ...]]:
    """The lines of one build: its verdict, and each reason with the names it explains."""
    from pinwheel.inspect.region import printable

    head: tuple[str, ...] = (row.build, str(int(row.cxx11_abi)), "yes" if row.fits else "no")
    lines = []
    for what, names in row.reasons(known).items():
        shown = names if everything else names[:_SHOWN]
        more = [f"and {len(names) - len(shown)} more"] if len(shown) < len(names) else []
        lines.append((*head, what, "\n".join([*map(printable, shown), *more])))
        head = ("", "", "")
    return lines or [(*head, "", "")]
