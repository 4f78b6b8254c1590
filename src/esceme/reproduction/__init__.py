"""Reproduction of the paper: targets, the runs that they need, a run manager, and reports."""

from esceme.reproduction.manager import run_plan
from esceme.reproduction.planned_runs import Plan, ReproductionConfig, make_plan
from esceme.reproduction.target_list import TARGETS, find_targets
from esceme.reproduction.target_report import write_target_report
from esceme.reproduction.targets import Row, Target

__all__ = [
    "TARGETS",
    "Plan",
    "ReproductionConfig",
    "Row",
    "Target",
    "find_targets",
    "make_plan",
    "run_plan",
    "write_target_report",
]
