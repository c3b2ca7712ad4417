"""``pinwheel verify``: what is inside a wheel, and does it fit what it is for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pinwheel.cli import complete

if TYPE_CHECKING:
    from pinwheel.errors import PinwheelError

_LONGEST = 100  # characters of a torch build; far more than any has


@click.command(
    "verify",
    epilog="""\b
Profiles, whose wheel it is; they decide what a broken rule means (columns of docs/rules.md):
  ours      built by pinwheel: held to all that `pinwheel build` promises
  release   ours, to be published: built whole, and proven to the last rule
  stranger  anyone else's: what would break it is an error, what is merely untidy warns
\b
Examples:
  pinwheel verify dist/*/*.whl                              each against its own manifest
  pinwheel verify some.whl                                  against METADATA and the matrix
  pinwheel verify some.whl --torch 2.4.0 --archs "8.0;9.0"  against what you say
  pinwheel verify some.whl --json --junit report.xml        for programs, and for a CI
\b
Exit codes: 0 every wheel fits, 1 one does not, or a rule could not be answered (UNKNOWN is never
fine), 2 wrong usage, 10-17 what it is held against, 23 disk full, 24 not writable, 60 the wheel
is damaged or misleads, 61 pinwheel's data of a torch build is. All of them: docs/exit-codes.md.
Rules, each with its reason, source and cure: docs/rules.md. What a wheel is held against, and
the report: docs/verify.md.""",
)
@click.argument(
    "wheels",
    nargs=-1,
    required=True,
    metavar="WHEEL...",
    type=click.Path(path_type=Path),
    shell_complete=complete.wheels,
)
@click.option(
    "--combo",
    metavar="ID",
    shell_complete=complete.combos,
    help="Hold it against this combo's recipe and lock.",
)
@click.option(
    "--toolkit",
    metavar="NAME",
    shell_complete=complete.toolkits,
    help="Which of the combo's locks; default the recipe's.",
)
@click.option(
    "--torch", metavar="BUILD", help="Torch build: 2.4.0+cu121, or 2.4.0 where there is one."
)
@click.option("--archs", metavar="LIST", help='Capabilities it must serve: "8.0;9.0".')
@click.option(
    "--profile",
    type=click.Choice(["ours", "stranger", "release"]),
    help="Whose wheel it is, see below; default ours when it carries our manifest.",
)
@click.option(
    "--official",
    metavar="WHEEL",
    shell_complete=complete.wheels,
    type=click.Path(path_type=Path),
    help="Upstream's own wheel of the release, to compare with.",
)
@click.option("--no-kernels", is_flag=True, help="Do not unpack device code; quicker, says less.")
@click.option(
    "--junit",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the report as JUnit XML too: a file, a pipe, /dev/stdout.",
)
@click.option("--recipes", type=click.Path(path_type=Path), help="Directory of recipes.")
@click.option("--cache", type=click.Path(path_type=Path), help="Cache directory.")
@click.option("--offline", is_flag=True, help="Use no network; this command never does.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but the summary and errors.")
@click.option("-v", "--verbose", count=True, help="Show all evidence.")
def command(
    wheels: tuple[Path, ...],
    combo: str | None,
    toolkit: str | None,
    torch: str | None,
    archs: str | None,
    profile: str | None,
    official: Path | None,
    no_kernels: bool,
    junit: Path | None,
    recipes: Path | None,
    cache: Path | None,
    offline: bool,
    as_json: bool,
    quiet: bool,
    verbose: int,
) -> None:
    """Read each WHEEL, answer every rule, and say whether it fits what it is for.

    A wheel may be anyone's: it is read, never run, and neither torch nor a GPU is needed. What it
    is held against comes from its manifest, or from METADATA and arch_matrix.toml; options win.
    """
    from dataclasses import replace

    from pinwheel.cli.main import show_error
    from pinwheel.console import Console
    from pinwheel.errors import PinwheelError
    from pinwheel.files import write_output
    from pinwheel.settings import load_settings
    from pinwheel.verify.junit import junit as as_junit
    from pinwheel.verify.model import Profile, Report
    from pinwheel.verify.run import Request, verify_wheel
    from pinwheel.verify.show import document, show

    if toolkit and not combo:
        raise click.UsageError("--toolkit names one of a combo's locks: give --combo too")
    if toolkit is not None and not toolkit.strip():
        raise click.UsageError("--toolkit is empty; leave it out for the recipe's default")
    if torch is not None and not 0 < len(torch.strip()) <= _LONGEST:
        raise click.UsageError("--torch names no build; leave it out, or name one: 2.4.0+cu121")
    if junit and any(_same(junit, path) for path in (*wheels, official) if path):
        raise click.UsageError(f"--junit {junit} would overwrite a wheel that is to be read")
    settings = load_settings()
    settings = replace(
        settings,
        cache=cache.absolute() if cache else settings.cache,
        recipes=(recipes.absolute(),) if recipes else settings.recipes,
    )
    console = Console(quiet=quiet, verbose=verbose)
    request = Request(
        combo=combo,
        toolkit=toolkit,
        torch=torch,
        archs=archs,
        profile=Profile(profile) if profile else None,
        official=official,
        kernels=not no_kernels,
    )
    reports: list[Report] = []
    errors: list[tuple[str, PinwheelError]] = []
    for wheel in wheels:
        try:
            reports.append(verify_wheel(wheel, request, settings, console))
        except PinwheelError as error:
            # One that cannot be read hides nothing of the others.
            errors.append((wheel.name, error))
    failed = [error for _, error in errors]
    if junit:
        try:
            write_output(junit.absolute(), as_junit(reports, errors))
        except PinwheelError as error:
            # Minutes of reading are not thrown away because their report has no place.
            failed.append(error)
    if errors and len(wheels) == 1:
        raise errors[0][1]
    if as_json:
        console.emit_json(document(reports, [(name, e.as_dict()) for name, e in errors]))
    else:
        for report in reports if not quiet else ():
            show(report, console)
            console.result("")
        for report in reports:
            console.result(report.summary())
    for failure in failed:
        show_error(failure, as_json=False)
    _leave([report.fits for report in reports], failed)


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False


def _leave(fits: list[bool], failed: list[PinwheelError]) -> None:
    if failed:
        raise click.exceptions.Exit(failed[0].exit_code)
    if not all(fits):
        raise click.exceptions.Exit(1)
