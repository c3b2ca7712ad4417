"""``pinwheel abi``: which torch builds a wheel fits, and which symbol breaks each of the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pinwheel.cli import complete

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinwheel.console import Console
    from pinwheel.inspect.elf import Elf
    from pinwheel.verify.abi_table import Row, Table

_SHOWN = 3  # symbols that the table names for each reason


@click.command(
    "abi",
    epilog="""\b
Examples:
  pinwheel abi some.whl                                  every torch build there is data of
  pinwheel abi some.whl --torch 2.4.0                    that one decides the exit code
  pinwheel abi some.whl --torch 2.3.0 --torch 2.4.0      both
  pinwheel abi some.whl --torch 2.3.0 --all              every symbol that is missing
\b
Why not: "ABI flag mismatch" (built with the other _GLIBCXX_USE_CXX11_ABI), "torch version drift"
(built for another torch), "CUDA drift", "in no torch at all" (the package left out a source of
its own: torch is not to blame), NEEDED (a library that nothing brings).
\b
Exit codes: 0 it fits every build asked for, or any where none was, 1 it does not, 2 wrong usage,
60 the wheel is damaged or misleads, 61 pinwheel's data of a torch build is. All of them:
docs/exit-codes.md. How it is found out: docs/abi.md; the rules verify makes of it: docs/rules.md.
""",
)
@click.argument("wheel", type=click.Path(path_type=Path), shell_complete=complete.wheels)
@click.option(
    "--torch",
    "builds",
    multiple=True,
    metavar="BUILD",
    help="Only this torch build: 2.4.0+cu121, or 2.4.0 where there is one; may be given several "
    "times.",
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

    The wheel may be anyone's. It is read, never loaded; neither torch nor a project is needed.
    """
    from pinwheel.console import Console
    from pinwheel.inspect.elf import read_elf
    from pinwheel.inspect.loadable import check_library
    from pinwheel.inspect.wheel import open_wheel
    from pinwheel.settings import load_settings
    from pinwheel.verify.abi_table import table
    from pinwheel.verify.snapshot import builds as known
    from pinwheel.verify.snapshot import load_all

    builds = tuple(dict.fromkeys(_named(build, known()) for build in builds))
    console = Console(quiet=quiet, verbose=verbose)
    with open_wheel(wheel, load_settings().work) as reader:
        found = [read_elf(reader.library(name)) for name in reader.libraries]
    for elf in found:
        check_library(elf)
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


def _named(text: str, known: Sequence[str]) -> str:
    """The build that ``--torch`` names.

    Raises:
        click.UsageError: none, or more than one; lists them.
    """
    from pinwheel.inspect.region import printable
    from pinwheel.verify.torch_rules import builds_named

    found = builds_named(text, known)
    if len(found) == 1:
        return found[0]
    shown = printable(text, 60)
    if found:
        raise click.UsageError(f"torch {shown} may be any of {', '.join(found)}: name one")
    raise click.UsageError(f"torch build {shown!r} is not known; known are {', '.join(known)}")


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
    terminal = console.out.isatty()
    table = [
        line
        for row in rows
        for line in _lines(row, known, everything=everything, terminal=terminal)
    ]
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


def _lines(
    row: Row, known: Sequence[str], *, everything: bool, terminal: bool
) -> list[tuple[str, ...]]:
    """The lines of one build: its verdict, and each reason with the names it explains.

    On a terminal the verdict stands on the first alone, and each name on a line of its own.
    """
    from pinwheel.inspect.region import printable

    head: tuple[str, ...] = (row.build, str(int(row.cxx11_abi)), "yes" if row.fits else "no")
    lines = []
    for what, names in row.reasons(known).items():
        shown = names if everything else names[:_SHOWN]
        more = [f"and {len(names) - len(shown)} more"] if len(shown) < len(names) else []
        missing = ("\n" if terminal else " ").join([*map(printable, shown), *more])
        lines.append((*head, what, missing))
        head = ("", "", "") if terminal else head
    return lines or [(*head, "", "")]
