"""The command `esceme recipes`."""

from __future__ import annotations

from textwrap import fill
from typing import Annotated, Any

import tyro
from rich.markup import escape
from rich.table import Table

from esceme.cli.console import print_json, tables
from esceme.config import Experiment, as_json, flatten
from esceme.recipes import PUBLISHED, RECIPES, find_recipe


def recipes(name: Annotated[str, tyro.conf.arg(metavar="[RECIPE]")] = "", /, json: bool = False) -> int:
    """List the recipes that can be trained, or describe one of them.

    A recipe is a named training experiment: either a row of the paper's tables with the settings of the
    released scripts, or a small experiment for two processor cores. The description of a recipe lists the
    differences between the paper and its script, the values of all fields and the command that trains it.

    Examples:
        esceme recipes
        esceme recipes r2r-hamt-esceme
        esceme recipes r2r-small --json

    Args:
        name: the recipe to describe; by default all recipes are listed.
        json: print one JSON object instead of text; null stands for a size that is taken from the data.
    """
    if not name and json:
        print_json({"recipes": [{"name": key, "about": recipe.about} for key, recipe in RECIPES.items()]})
    elif not name:
        table = Table("recipe", "description")
        for key, recipe in RECIPES.items():
            table.add_row(key, escape(recipe.about), end_section=key == list(PUBLISHED)[-1])
        tables().print(table)
    elif json:
        recipe = find_recipe(name)
        about = {"name": name, "about": recipe.about, "differences": recipe.differences}
        print_json({**about, "fields": field_values(recipe), "command": _train_command(name)})
    else:
        _print_recipe(name, find_recipe(name))
    return 0


def field_values(experiment: Experiment) -> dict[str, Any]:
    """Return a dict from option name to value, with all fields of an experiment."""
    values = flatten(as_json(experiment))
    sizes = ("agent.vocabulary", "agent.feature_width", "agent.clause_ends", "reader.width")
    hidden = ("about", "differences", "feature_source", "origin", *sizes)
    named = {name.removeprefix("navigator.").removesuffix(".name"): value for name, value in values.items()}
    return {name: value for name, value in named.items() if name not in hidden}


def _print_recipe(name: str, recipe: Experiment) -> None:
    print(f"{name}: {recipe.about}\n\nFields:")
    for field, value in field_values(recipe).items():
        text = " ".join(value) if isinstance(value, list) else str(value)
        print(f"    {'--' + field.replace('_', '-'):<38}  {text or repr('')}")
    if recipe.differences:
        print("\nDifferences between the paper and the script:")
    for difference in recipe.differences:
        print(fill(difference, width=110, initial_indent="  - ", subsequent_indent="    "))
    print(f"\nTo train it:\n    {_train_command(name)}")


def _train_command(name: str) -> str:
    """Return the command line that trains a recipe. Small recipes use the generated world as data."""
    if name in PUBLISHED:
        return f"esceme train {name} --start PRETRAINED --data DATASETS --out runs/{name}"
    data = "DATA" if RECIPES[name].features else "embedded"
    return f"esceme train {name} --data {data} --out runs/{name}"
