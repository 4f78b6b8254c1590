"""Tables of the paper: numbers that were typed from the paper independently of the data file."""

from __future__ import annotations

import pytest

from esceme.errors import ConfigError
from esceme.metrics import METRICS, TOUR_METRICS
from esceme.report.paper import find_table, read_paper_tables
from esceme.tasks.catalogue import TASKS

TABLES = read_paper_tables()
NUM_ROWS = {
    "tab:r2r": 22,
    "tab:r4r": 14,
    "tab:cvdn": 9,
    "tab:r2r_abl": 3,
    "tab:r2r_arc": 6,
    "tab:order": 3,  # one row in the paper, with scores on three tasks
    "tab:r2r_abl_supp": 4,
    "tab:r2r_sm": 2,
    "tab:r4r_sm": 2,
    "tab:pre-exp": 5,
    "tab:reinit": 2,
    "tab:rxr": 2,
    "tab:ivln": 3,
}
COSTS = {"parameters_mb", "gpu_gb", "ms_per_step"}
PRINTED = """
tab:r2r | Seq2Seq | val_seen.tl 11.33 test.spl 18
tab:r2r | SF | val_seen.ne 3.36 val_unseen.sr 35 test.tl 14.82
tab:r2r | EnvDrop | val_seen.tl 11.00 val_unseen.spl 48 test.ne 5.23
tab:r2r | OAAM | val_unseen.tl 9.95 test.sr 53
tab:r2r | NvEM+SEvol | val_unseen.ne 3.99 test.tl 13.40
tab:r2r | TDSTP | val_seen.ne 2.34 val_unseen.sr 70 test.spl 61
tab:r2r | HAMT | val_seen.spl 72 val_unseen.spl 61 test.ne 3.93
tab:r2r | VLN-SIG | val_unseen.sr 68 test.spl 60
tab:r2r | KERM | val_seen.sr 80 test.tl 14.60
tab:r2r | GridMM | val_unseen.ne 2.83 test.sr 73
tab:r2r | ESceme | val_seen.tl 10.65 val_unseen.spl 64 test.tl 11.89 test.spl 63
tab:r4r | EnvDrop | val_unseen.sdtw 9
tab:r4r | EGP | val_unseen.ne 8.00 val_unseen.cls 44.4
tab:r4r | HAMT | val_unseen.spl 40.6 val_unseen.ndtw 50.3
tab:r4r | ESceme | val_unseen.ne 5.84 val_unseen.cls 62.7 val_unseen.sdtw 34.7
tab:cvdn | HOP | val_unseen.gp 4.41
tab:cvdn | MT-RCM+EnvAg | val_seen.gp 5.07 test.gp 3.91
tab:cvdn | ESceme | val_seen.gp 8.34 val_unseen.gp 5.42 test.gp 5.99
tab:r2r_abl | HAMT | val_unseen.tl 11.72±0.34 val_seen.sr 75.0±0.9
tab:r2r_abl | ESceme (mean pooling) | val_seen.ne 2.59±0.09 val_unseen.spl 62.3±0.5
tab:r2r_abl | ESceme (max pooling) | val_unseen.sr 67.4±0.5 val_unseen.spl 63.2±0.5
tab:r2r_arc | HAMT | parameters_mb 651.5 gpu_gb 8.5 ms_per_step 29.4
tab:r2r_arc | HAMT + ESceme | parameters_mb 6.8 ms_per_step 1.4
tab:r2r_arc | HAMT + ESceme* | val_unseen.spl 64.0±0.4 ms_per_step 32.2
tab:r2r_arc | TDSTP | val_seen.tl 13.09±0.37 parameters_mb 657.2 gpu_gb 10.5
tab:r2r_arc | TDSTP + ESceme | val_seen.spl 74.4±0.6 gpu_gb 0.1
tab:r2r_arc | TDSTP + ESceme* | val_unseen.spl 64.3±0.7 ms_per_step 50.5
tab:order | ESceme (R2R) | val_unseen.ne 3.39±0.03 val_unseen.spl 63.7±0.3
tab:order | ESceme (R4R) | val_unseen.spl 43.2±0.07 val_unseen.cls 62.7±0.1
tab:order | ESceme (CVDN) | val_unseen.gp 5.57±0.11
tab:r2r_abl_supp | ESceme (graph encoding, mean pooling) | val_seen.tl 11.20±0.18 val_unseen.spl 60.9±0.6
tab:r2r_abl_supp | ESceme (candidate enhancing, max pooling) | val_unseen.ne 3.44±0.03
tab:r2r_sm | ESceme* | val_unseen.tl 10.65 test.ne 3.69 test.sr 68 test.spl 64
tab:r4r_sm | ESceme | val_unseen.ndtw 55.7
tab:r4r_sm | ESceme* | val_unseen.spl 43.4 val_seen.gp 8.39 val_unseen.gp 5.72 test.gp 6.17
tab:pre-exp | Follower | val_seen.ne 3.68 val_unseen.tl 9.57
tab:pre-exp | Airbert | val_seen.ne 2.68 val_unseen.spl 56
tab:reinit | re-initialize | val_seen.tl 13.88 val_unseen.spl 51
tab:rxr | HAMT | val_seen.ndtw 65.3 val_unseen.spl 56.0
tab:rxr | ESceme | val_unseen.sr 62.0 val_unseen.sdtw 53.5
tab:ivln | IVLN | val_seen.ne 5.8 val_unseen.tl 10.0 val_unseen.spl 36
tab:ivln | ESceme | val_seen.sr 63 val_unseen.ne 4.6 val_unseen.spl 56
"""
"""Table, row, and some of its numbers, each with its spread if there is one."""


@pytest.mark.parametrize("line", PRINTED.strip().splitlines())
def test_numbers_are_as_printed_in_the_paper(line: str) -> None:
    target, system, numbers = (part.strip() for part in line.split("|"))
    (row,) = (row for row in TABLES[target].rows if row.system == system)
    words = numbers.split()
    for column, number in zip(words[::2], words[1::2], strict=True):
        value, _, spread = number.partition("±")
        assert str(row.values[column]) == value
        assert str(row.spread.get(column, "")) == spread


def test_every_row_of_every_table_is_there() -> None:
    assert {target: len(table.rows) for target, table in TABLES.items()} == NUM_ROWS
    for table in TABLES.values():
        assert len({row.system for row in table.rows}) == len(table.rows)
    cells = sum(len(row.values) for table in TABLES.values() for row in table.rows)
    dashes = {"tab:r2r": 27, "tab:r4r": 9, "tab:cvdn": 2}
    printed = 22 * 12 + 14 * 6 + 9 * 3 + 3 * 8 + 6 * 9 + 5 + 4 * 8 + 2 * 12 + 2 * 9 + (5 + 2 + 2 + 3) * 8
    assert cells == printed - sum(dashes.values())


def test_columns_are_splits_and_measures_of_the_package() -> None:
    for table in TABLES.values():
        for task, columns in table.columns.items():
            for column in set(columns) - COSTS:
                split, measure = column.split(".")
                assert split in TASKS[task].split_sizes and measure in METRICS + TOUR_METRICS
        columns = [column for names in table.columns.values() for column in names]
        for row in table.rows:
            assert set(row.spread) <= set(row.values) <= set(columns) and row.source == "paper"


@pytest.mark.parametrize(("target", "similar"), [("tab:r2rabl", "tab:r2r_abl"), ("CVDN", "tab:cvdn")])
def test_unknown_table_names_similar_ones(target: str, similar: str) -> None:
    with pytest.raises(ConfigError, match=f"no table '{target}'.*did you mean {similar}"):
        find_table(target)
    with pytest.raises(ConfigError, match=r"no table 'fig:curves'.*tab:r2r, .*tab:ivln$"):
        find_table("fig:curves")
