"""`esceme recipes`, and what else is said of a recipe's fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import fill
from typing import Any, Literal, get_args, get_origin

import tyro
from rich.markup import escape
from rich.table import Table

from esceme.cli.console import print_json, tables
from esceme.config import Experiment, settable, value_of
from esceme.recipes import PAPER, RECIPES, find_recipe

BY_DATA = ("agent.vocabulary", "agent.feature_width", "reader.width")
"""Fields that are as the data has it, unless they are set."""


def recipes(name: tyro.conf.Positional[str] = "", /, json: bool = False) -> int:
    """List the recipes that can be trained, or say all about one of them.

    A recipe is an experiment with a name: a row of the paper's tables as the released scripts have it, or a
    small one for two processor cores. Of one recipe this says where the paper and its script do not agree,
    what each field is set to, and the command that trains it.

    Examples:
        esceme recipes
        esceme recipes r2r-hamt-esceme
        esceme recipes r2r-small --json

    Args:
        name: the recipe to say all about; by default all are listed.
        json: print one json object instead of a table; null is a field that is as the data has it.
    """
    if not name and json:
        listed = [{"name": each, "about": recipe.about} for each, recipe in RECIPES.items()]
        print_json({"recipes": listed})
    elif not name:
        table = Table("recipe", "what it is")
        for each, recipe in RECIPES.items():
            table.add_row(each, escape(recipe.about), end_section=each == list(PAPER)[-1])
        tables().print(table)
    elif json:
        recipe = find_recipe(name)
        fields = {path: value for path, value, _ in fields_of(recipe)}
        told = {"name": name, "about": recipe.about, "differences": recipe.differences, "fields": fields}
        print_json({**told, "command": _command(name)})
    else:
        _describe(name, find_recipe(name))
    return 0


def fields_of(experiment: Experiment) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Every field that can be set: its full name, its value, and what it may be where that is a choice.

    The value is None where it will be as the data has it.
    """
    for path, kind in settable(experiment):
        name = ".".join(path)
        given: Mapping[str, Any] = getattr(experiment, f"{path[0]}_settings", {})
        left_to_data = name in BY_DATA and path[-1] not in given
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        yield name, None if left_to_data else value_of(experiment, path), choices


def field_list(experiment: Experiment) -> str:
    """The fields of an experiment as lines of options and their values."""
    rows = [
        (f"--{name.replace('_', '-')}", _shown(value, name), f"of {', '.join(choices)}" if choices else "")
        for name, value, choices in fields_of(experiment)
    ]
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "\n".join(f"    {a:<{first}}  {b:<{min(second, 24)}}  {c}".rstrip() for a, b, c in rows)


def _describe(name: str, recipe: Experiment) -> None:
    print(f"{name}: {recipe.about}\n\nFields:\n{field_list(recipe)}\n")
    if recipe.differences:
        print("Where the paper and the script do not agree:")
    for difference in recipe.differences:
        print(fill(difference, width=110, initial_indent="  - ", subsequent_indent="    "))
    print(f"{'' if not recipe.differences else chr(10)}To train it:\n    {_command(name)}")


def _command(name: str) -> str:
    """How a recipe is trained: the paper's with its data and pre-training, others on the embedded world."""
    if name in PAPER:
        return f"esceme train {name} --start PRETRAINED --data DATASETS --out runs/{name}"
    data = "DATA" if RECIPES[name].features else "embedded"
    return f"esceme train {name} --data {data} --out runs/{name}"


def _shown(value: Any, name: str) -> str:
    """A value as it is written on the command line."""
    if value is None:
        return "as the data" if name in BY_DATA else "none"
    if isinstance(value, bool):
        return str(value).lower()
    return (",".join(value) if isinstance(value, tuple) else str(value)) or '""'
