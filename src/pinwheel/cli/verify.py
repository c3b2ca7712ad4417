"""``pinwheel verify``: what is inside a wheel, and does it fit what it is for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pinwheel.errors import PinwheelError


@click.command("verify")
@click.argument(
    "wheels", nargs=-1, required=True, metavar="WHEEL...", type=click.Path(path_type=Path)
)
@click.option("--combo", metavar="ID", help="Hold it against this combo's recipe and lock.")
@click.option("--toolkit", metavar="NAME", help="Which of the combo's locks; default the recipe's.")
@click.option("--torch", metavar="BUILD", help="Torch build, such as 2.4.0+cu121.")
@click.option("--archs", metavar="LIST", help='Capabilities it must serve: "8.0;9.0".')
@click.option(
    "--profile",
    type=click.Choice(["ours", "stranger", "release"]),
    help="Whose wheel it is; default ours when it carries our manifest.",
)
@click.option(
    "--official",
    metavar="WHEEL",
    type=click.Path(path_type=Path),
    help="Upstream's own wheel of the release, to compare with.",
)
@click.option("--no-kernels", is_flag=True, help="Do not unpack device code; quicker, says less.")
@click.option(
    "--junit",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the report as JUnit XML too.",
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
    """Read each WHEEL and answer every rule: docs/rules.md.

    A wheel may be anyone's: it is read, never run, and neither torch nor a GPU is needed. What it
    is held against comes from its manifest, or from METADATA and arch_matrix.toml; options win.
    Exit code 0: it fits; 1: it does not; others: docs/exit-codes.md.
    """
    from dataclasses import replace

    from pinwheel.cli.main import show_error
    from pinwheel.console import Console
    from pinwheel.errors import PinwheelError
    from pinwheel.files import atomic_write
    from pinwheel.settings import load_settings
    from pinwheel.verify.junit import junit as as_junit
    from pinwheel.verify.model import Profile, Report
    from pinwheel.verify.run import Request, verify_wheel
    from pinwheel.verify.show import document, show

    if toolkit and not combo:
        raise click.UsageError("--toolkit names one of a combo's locks: give --combo too")
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
    if junit:
        atomic_write(junit.absolute(), as_junit(reports, errors))
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
    for _, failure in errors:
        show_error(failure, as_json=False)
    _leave([report.fits for report in reports], errors)


def _leave(fits: list[bool], errors: list[tuple[str, PinwheelError]]) -> None:
    if errors:
        raise click.exceptions.Exit(errors[0][1].exit_code)
    if not all(fits):
        raise click.exceptions.Exit(1)
