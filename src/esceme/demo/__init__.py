"""The demo: two agents learn side by side, one of them remembers, and both walk houses new to them."""

from esceme.demo.crew import News
from esceme.demo.outcome import Outcome
from esceme.demo.scoring import Scoring
from esceme.demo.show import show
from esceme.demo.wish import Wish

__all__ = ["News", "Outcome", "Scoring", "Wish", "show"]
