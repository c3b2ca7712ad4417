"""``pinwheel matrix``: show the axes and combos, or check every rule and every recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pinwheel.console import Console
    from pinwheel.matrix.findings import Finding
    from pinwheel.matrix.models import Matrix
    from pinwheel.settings import Settings

_AXES = ("combos", "cuda", "torch", "releases", "toolkits", "capabilities")


@click.command(
    "matrix",
    epilog="""\b
Examples:
  pinwheel matrix                    everything
  pinwheel matrix combos             what `pinwheel build --combo` takes
  pinwheel matrix cuda toolkits      drivers, compilers and targets
  pinwheel matrix --check            do matrix and recipes agree?
  pinwheel matrix cuda | cut -f1,2   off a terminal, cells stand between tabs

\b
Exit codes: 0 shown, or all agree, 2 wrong usage, 10 the matrix cannot be read, 12 a recipe
cannot, 15 --check found contradictions, 17 a setting. All of them: docs/exit-codes.md. More:
docs/matrix.md.""",
)
@click.argument("axes", nargs=-1, type=click.Choice(_AXES))
@click.option("--check", is_flag=True, help="Check every rule of the matrix and every recipe.")
@click.option("--recipes", type=click.Path(path_type=Path), help="Directory of recipes.")
@click.option("--cache", type=click.Path(path_type=Path), help="Cache directory; not used here.")
@click.option("--offline", is_flag=True, help="Use no network; this command never does.")
@click.option("--json", "as_json", is_flag=True, help="Write plain data to stdout.")
@click.option("-q", "--quiet", is_flag=True, help="Warnings, results and errors.")
@click.option("-v", "--verbose", count=True, help="Say more.")
def command(
    axes: tuple[str, ...],
    check: bool,
    recipes: Path | None,
    cache: Path | None,
    offline: bool,
    as_json: bool,
    quiet: bool,
    verbose: int,
) -> None:
    """Show the axes of the compatibility matrix and the combos offered.

    AXES limits what is shown, for example `pinwheel matrix combos cuda`.
    """
    from dataclasses import replace

    from pinwheel.console import Console
    from pinwheel.matrix.models import load_matrix
    from pinwheel.matrix.view import as_data, tables
    from pinwheel.settings import MATRIX, load_settings

    if check and axes:
        raise click.UsageError(
            f"--check checks every axis and every recipe together: leave out {' '.join(axes)}",
            click.get_current_context(),
        )
    console = Console(quiet=quiet, verbose=verbose)
    settings = load_settings()
    if recipes is not None:
        settings = replace(settings, recipes=(recipes.absolute(),))
    path = settings.project / MATRIX
    matrix = load_matrix(path)
    if check:
        _check(matrix, settings, console, as_json=as_json)
        return
    if as_json:
        data = as_data(matrix)
        if axes:
            data = {key: value for key, value in data.items() if key in (*axes, "schema")}
        console.emit_json(data)
        return
    for number, table in enumerate(t for t in tables(matrix) if not axes or t.axis in axes):
        if number:
            console.result("")
        console.table(table.title, table.columns, table.rows)


def _check(matrix: Matrix, settings: Settings, console: Console, *, as_json: bool) -> None:
    from pinwheel.build.recipes import require_recipes
    from pinwheel.matrix.check import check_matrix, raise_findings
    from pinwheel.matrix.view import SCHEMA
    from pinwheel.recipe.check import check_recipe
    from pinwheel.recipe.load import available_recipes, load_recipe

    # A directory without recipes is a finding for each combo; none at all is the wrong place.
    if not any(path.is_dir() for path in settings.recipes):
        require_recipes(settings)
    findings = check_matrix(matrix)
    recipes = available_recipes(settings)
    for name in recipes:
        console.detail(f"checking {recipes[name]}")
        findings += check_recipe(matrix, load_recipe(settings, name).recipe)
    findings += _without_recipe(matrix, set(recipes), settings)
    raise_findings(findings)
    if as_json:
        console.emit_json(
            {
                "schema": SCHEMA,
                "combos": sorted(matrix.combos),
                "recipes": sorted(recipes),
                "findings": [],
            }
        )
    else:
        console.result(
            f"matrix and recipes agree (combos: {len(matrix.combos)}, recipes: {len(recipes)})"
        )


def _without_recipe(matrix: Matrix, recipes: set[str], settings: Settings) -> list[Finding]:
    from pinwheel.matrix.findings import Finding, side

    where = ", ".join(str(directory) for directory in settings.recipes)
    return [
        Finding(
            "recipe-missing",
            name,
            "the matrix offers it, and no recipe answers to it",
            (side(f'combos."{name}"', "offered", row.source), f"{where}: no {name}/recipe.toml"),
            "Write its recipe, or drop the combo.",
        )
        for name, row in matrix.combos.items()
        if name not in recipes
    ]
