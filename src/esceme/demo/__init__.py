"""The demo: train an agent without memory and an agent with memory, and compare them in unseen houses."""

from esceme.demo.demo_config import DemoConfig
from esceme.demo.demo_report import DemoResult, SplitScores
from esceme.demo.run_demo import run_demo

__all__ = ["DemoConfig", "DemoResult", "SplitScores", "run_demo"]
