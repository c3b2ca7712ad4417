"""``pinwheel build``: a combo's wheel in dist/, from its lock alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pinwheel.cli.shared import combo_option, require_combo, toolkit_option

if TYPE_CHECKING:
    from pinwheel.build.order import Request
    from pinwheel.build.report import Report
    from pinwheel.console import Console
    from pinwheel.settings import Settings


@click.command(
    "build",
    epilog="""\b
Examples:
  pinwheel build --combo cu121-torch2.3-vllm0.6.3               every capability of the recipe
  pinwheel build --combo cu121-torch2.3-vllm0.6.3 --archs 8.0   one of them
  pinwheel build --combo cu121-torch2.3-vllm0.6.3 --dry-run     what there is, what it would take
  pinwheel build --combo cu121-torch2.3-vllm0.6.3 --offline     from the store alone

\b
Exit codes: 0 the wheel is in dist/ (--dry-run: nothing stands in the way), 1 --dry-run found
what would stop it, 2 wrong usage, 10-18 what a person wrote (14 a capability list, 16 a stale
lock), 20-25 inputs and disk, 30-34 build root, toolkit, environment, patches, 40 a source did
not compile, 41 memory, 42 another build of the same, 50-53 the finished wheel, 130 interrupted:
run it again. All of them: docs/exit-codes.md. More: docs/build.md.""",
)
@combo_option
@toolkit_option
@click.option(
    "--archs",
    metavar="LIST",
    help='Capabilities instead of the recipe\'s, of those it declares: "8.0", "8.0;9.0". '
    'Never "native".',
)
@click.option("--jobs", "-j", type=click.IntRange(1), help="Compilers at once; default what fits.")
@click.option("--replace", is_flag=True, help="Overwrite a wheel of the same name, other bytes.")
@click.option("--again", is_flag=True, help="Build although nothing has changed.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check everything, look at store, cache, disk and dist/, show the plan; write nothing.",
)
@click.option("--recipes", type=click.Path(path_type=Path), help="Directory of recipes.")
@click.option("--cache", type=click.Path(path_type=Path), help="Cache directory.")
@click.option("--offline", is_flag=True, help="Use the store alone; lists all that is missing.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON on stdout.")
@click.option(
    "-q", "--quiet", is_flag=True, help="One line of result, warnings and errors; no more."
)
@click.option("-v", "--verbose", count=True, help="Say more: --dry-run lists what is missing.")
@click.pass_context
def command(
    context: click.Context,
    combo: str | None,
    toolkit: str | None,
    archs: str | None,
    jobs: int | None,
    replace: bool,
    again: bool,
    dry_run: bool,
    recipes: Path | None,
    cache: Path | None,
    offline: bool,
    as_json: bool,
    quiet: bool,
    verbose: int,
) -> None:
    """Build the wheel of a combo into dist/COMBO/, and prove it.

    Inputs come from the lock by hash, everything compiles in the locked build root, and the wheel
    appears only after it was installed and loaded in a clean environment. A build that was
    stopped goes on where it was when the same command is run again.
    """
    import dataclasses

    from pinwheel.build.order import Request
    from pinwheel.build.pipeline import build
    from pinwheel.console import Console
    from pinwheel.settings import load_settings

    settings = load_settings()
    settings = dataclasses.replace(
        settings,
        cache=cache.absolute() if cache else settings.cache,
        recipes=(recipes.absolute(),) if recipes else settings.recipes,
        offline=offline or settings.offline,
    )
    console = Console(quiet=quiet, verbose=verbose)
    request = Request(
        combo=require_combo(combo, settings),
        toolkit=toolkit,
        archs=archs,
        jobs=jobs,
        replace=replace,
        again=again,
    )
    if dry_run:
        if not _show_plan(request, settings, console, as_json=as_json):
            context.exit(1)
        return
    report = build(request, settings, console)
    if as_json:
        console.emit_json(report.as_dict())
    else:
        _show(report, console)


def _show_plan(request: Request, settings: Settings, console: Console, *, as_json: bool) -> bool:
    """Show what the build would do; returns whether nothing stands in its way."""
    from pinwheel.build.pipeline import plan_build
    from pinwheel.build.plan import TAKEN, obstacles

    plan = plan_build(request, settings)
    found = obstacles(plan, settings)
    if as_json:
        stopped = {"would-stop": [error.as_dict() for error in found]}
        console.emit_json({**plan.as_dict(), **stopped})
        return not found
    if not console.quiet:
        console.table("", ("what", "value"), plan.rows())
        if console.verbose and plan.stock.missing:
            console.table(
                "to download",
                ("name", "version", "source", "path", "bytes", "sha256"),
                [
                    (i.name, i.version, i.source.value, i.path, i.size, i.sha256)
                    for i in plan.stock.missing
                ],
                right=("bytes",),
            )
    if plan.taken and not request.replace:
        console.warn(TAKEN)
    for error in found:
        console.warn(
            f"this would stop it ({error.rule}, exit code {error.exit_code}): {error.what}"
        )
        for line in error.evidence if console.verbose else ():
            console.warn(f"  {line}")
        console.warn(f"  next: {error.next_step}")
    verdict = plan.verdict()
    if found:
        codes = ", ".join(str(error.exit_code) for error in found)
        verdict = f"would not build {plan.order.version}: exit code {codes}"
    console.result(verdict)
    return not found


def _show(report: Report, console: Console) -> None:
    title = "unchanged" if report.unchanged else "built"
    if not console.quiet:
        console.table(title, ("what", "value"), report.rows())
    console.result(f"{title}: {report.wheel}")
