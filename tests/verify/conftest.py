"""What the tests of `verify` share: references read once, and every way to spoil one value of a file."""

from __future__ import annotations

import copy
import gzip
import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from esceme.files import write_json
from esceme.tasks.r2r import read_r2r
from esceme.verify import CHECKS
from esceme.verify.comparison import Report
from esceme.verify.fixtures import ReferenceData

Place = tuple[str | int, ...]
"""The keys and indices that lead to a value."""
Spoiled = Iterator[tuple[str, Any]]
"""What was done to which kind of value, and the whole file after it."""


@pytest.fixture(scope="session")
def real(data_root: Path) -> ReferenceData:
    return ReferenceData(data_root)


@pytest.fixture(scope="session")
def toy(toy_root: Path, tmp_path_factory: pytest.TempPathFactory) -> ReferenceData:
    """The toy world, and predictions that follow each instruction only so far."""
    root = tmp_path_factory.mktemp("references") / "data"
    shutil.copytree(toy_root, root, ignore=shutil.ignore_patterns("features", "RxR", "R4R"))
    episodes = read_r2r(root / "R2R" / "R2R_val_unseen.json")
    stops = [each.reference_path[: 1 + row % len(each.reference_path)] for row, each in enumerate(episodes)]
    write_json(
        root / "predictions" / "toy.json",
        [
            {"instr_id": each.episode_id, "trajectory": [[name, 0.0, 0.0] for name in walked]}
            for each, walked in zip(episodes, stops, strict=True)
        ],
    )
    return ReferenceData(root)


@pytest.fixture(scope="session")
def stored_at() -> Callable[[Path, Any], Path]:
    def store(path: Path, value: Any) -> Path:
        data = json.dumps(value).encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
        return path

    return store


@pytest.fixture
def judged(
    tmp_path: Path, stored_at: Callable[[Path, Any], Path]
) -> Callable[[str, Any, ReferenceData], Report]:
    """The report on one file of a name with this content."""
    compare_by_name = dict(zip(("sim_candidates.json.gz", "metrics"), CHECKS.values(), strict=False))

    def judge(name: str, value: Any, references: ReferenceData) -> Report:
        report = Report()
        compare = compare_by_name[name if name in compare_by_name else "metrics"]
        compare(name, stored_at(tmp_path / name, value), references, report)
        return report

    return judge


# -- spoiling --------------------------------------------------------------------------------------------


def _places(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Every value inside a value, itself last."""
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, inner in entries:
        yield from _places(inner, (*place, key))
    if place:
        yield place, value


def _kind(place: Place) -> str:
    """Where a value lies, whichever record or scene it belongs to."""
    steps = ["[]" if isinstance(step, int) else f".{step}" for step in place]
    if place[0] == "graph_stats" and len(place) > 1:
        steps[1] = ".*"
    return "".join(steps).removeprefix(".")


def _kinds(value: Any) -> dict[str, list[tuple[Place, Any]]]:
    kinds: dict[str, list[tuple[Place, Any]]] = defaultdict(list)
    for place, inner in _places(value):
        kinds[_kind(place)].append((place, inner))
    return kinds


def _with(value: Any, place: Place, new: Any) -> Any:
    spoiled = copy.deepcopy(value)
    inside = spoiled
    for step in place[:-1]:
        inside = inside[step]
    inside[place[-1]] = new
    return spoiled


def _changed(inner: Any, others: list[Any]) -> Iterator[tuple[str, Any]]:
    """The smallest lies that can be told instead of a value."""
    if isinstance(inner, bool) or inner is None:
        yield "negated", not inner
    elif isinstance(inner, int):
        yield "plus one", inner + 1
    elif isinstance(inner, float):
        yield "a little more", inner + (abs(inner) * 1e-3 if abs(inner) > 1e-2 else 1e-5)
    elif isinstance(inner, str):
        yield "another", next((other for other in others if other != inner), f"{inner}x")
    elif isinstance(inner, list):
        unlike = next((row for row in range(1, len(inner)) if inner[row] != inner[0]), None)
        if unlike is not None:
            yield "swapped", [inner[unlike], *inner[1:unlike], inner[0], *inner[unlike + 1 :]]
        if inner:
            yield "one fewer", inner[:-1]


@pytest.fixture(scope="session")
def lies() -> Callable[[Any], Spoiled]:
    """A file with one value changed a little, for every kind of value: its first, a middle and its last."""

    def spoil(value: Any) -> Spoiled:
        for kind, found in _kinds(value).items():
            others = [inner for _, inner in found]
            for pick in sorted({0, len(found) // 2, len(found) - 1}):
                place, inner = found[pick]
                for how, new in _changed(inner, others):
                    yield f"{kind}: {how}", _with(value, place, new)

    return spoil


JUNK: list[Any] = [None, True, 77, -1e300, 10**400, "x", [], [[None]], {"a": []}]


@pytest.fixture(scope="session")
def junk() -> Callable[[Any], Spoiled]:
    """A file with one value, section or record replaced by something that does not belong there."""

    def spoil(value: Any) -> Spoiled:
        for kind, found in _kinds(value).items():
            for new in JUNK:
                if new != found[0][1]:
                    yield kind, _with(value, found[0][0], new)

    return spoil


@pytest.fixture(scope="session")
def holes() -> Callable[[Any], Spoiled]:
    """A file with one key missing, for every kind of key."""

    def spoil(value: Any) -> Spoiled:
        for kind, found in _kinds(value).items():
            place = found[0][0]
            if isinstance(place[-1], str):
                spoiled = copy.deepcopy(value)
                inside = spoiled
                for step in place[:-1]:
                    inside = inside[step]
                del inside[place[-1]]
                yield kind, spoiled

    return spoil


@pytest.fixture(scope="session")
def novelties() -> Callable[[Any], Spoiled]:
    """A file with one key more, for every kind of object."""

    def spoil(value: Any) -> Spoiled:
        yield "novel", {**value, "novel": 1}
        for kind, found in _kinds(value).items():
            place, inner = found[-1]
            if isinstance(inner, dict):
                yield f"{kind}.novel", _with(value, place, {**inner, "novel": 1})

    return spoil
