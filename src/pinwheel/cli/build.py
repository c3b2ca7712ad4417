"""``pinwheel build``: a combo's wheel in dist/, from its lock alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pinwheel.build.order import Order
    from pinwheel.build.report import Report
    from pinwheel.console import Console


@click.command("build")
@click.option("--combo", required=True, metavar="ID", help="Combo, as `pinwheel matrix` lists.")
@click.option("--toolkit", metavar="NAME", help="One of the recipe's toolkits; default its own.")
@click.option(
    "--archs",
    metavar="LIST",
    help='Capabilities instead of the recipe\'s: "8.0", "8.0;9.0". Never "native".',
)
@click.option("--jobs", "-j", type=click.IntRange(1), help="Compilers at once; default what fits.")
@click.option("--replace", is_flag=True, help="Overwrite a wheel of the same name, other bytes.")
@click.option("--again", is_flag=True, help="Build although nothing has changed.")
@click.option("--dry-run", is_flag=True, help="Check everything and show the plan; write nothing.")
@click.option("--recipes", type=click.Path(path_type=Path), help="Directory of recipes.")
@click.option("--cache", type=click.Path(path_type=Path), help="Cache directory.")
@click.option("--offline", is_flag=True, help="Use the store alone; lists all that is missing.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but warnings and errors.")
@click.option("-v", "--verbose", count=True, help="Say more.")
def command(
    combo: str,
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

    from pinwheel.build.order import Request, take_order
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
        combo=combo, toolkit=toolkit, archs=archs, jobs=jobs, replace=replace, again=again
    )
    if dry_run:
        _show_plan(take_order(request, settings), console, as_json=as_json)
        return
    report = build(request, settings, console)
    if as_json:
        console.emit_json(report.as_dict())
    else:
        _show(report, console)


def _show_plan(order: Order, console: Console, *, as_json: bool) -> None:
    plan: dict[str, Any] = {
        "combo": str(order.loaded.combo),
        "version": order.version,
        "build-tag": order.build_tag,
        "toolkit": order.toolkit,
        "capabilities": [str(c) for c in order.capabilities],
        "lock": str(order.lock_path),
        "inputs": len(order.lock.inputs),
        "bytes": sum(i.size for i in order.lock.inputs),
        "patches": list(order.loaded.patch_names()),
        "features": {n: f.state for n, f in order.loaded.recipe.features.items()},
    }
    if as_json:
        console.emit_json(plan)
        return
    features = ", ".join(f"{name}: {state}" for name, state in plan["features"].items())
    rows = [
        (key, ", ".join(map(str, value)) if isinstance(value, list) else str(value))
        for key, value in {**plan, "features": features}.items()
    ]
    console.table("would build", ("what", "value"), rows)


def _show(report: Report, console: Console) -> None:
    title = "unchanged" if report.unchanged else "built"
    console.table(title, ("what", "value"), report.rows())
