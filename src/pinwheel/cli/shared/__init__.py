"""What several subcommands ask for in the same way: a combo, a toolkit, and how much to say."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from pinwheel.cli import complete

if TYPE_CHECKING:
    from pinwheel.settings import Settings

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

combo_option: Decorator = click.option(
    # Not `required`: click would name the option and not what to write there.
    "--combo",
    metavar="ID",
    shell_complete=complete.combos,
    help="Combo, as `pinwheel matrix combos` lists them.  [required]",
)


def _not_empty(_: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.strip():
        # An unset variable of a script must not become the default without a word.
        raise click.BadParameter(
            "it is empty; leave the option out for the recipe's default", param=parameter
        )
    return value


toolkit_option: Decorator = click.option(
    "--toolkit",
    metavar="NAME",
    callback=_not_empty,
    shell_complete=complete.toolkits,
    help="One of the toolkits that the recipe offers; default the recipe's own.",
)


def require_combo(combo: str | None, settings: Settings) -> str:
    """The combo that was named.

    Raises:
        click.UsageError: none was; lists those there are recipes for.
    """
    if combo is not None:
        return combo
    from pinwheel.recipe.load import available_recipes

    context = click.get_current_context()
    names = list(available_recipes(settings))
    listed = f" There are: {', '.join(names)}." if names else " `pinwheel matrix` lists them."
    example = f" Next: {context.command_path} --combo {names[0]}" if names else ""
    raise click.UsageError(f"Missing option '--combo'.{listed}{example}", context)
