"""Planning in scene memory: compare whole routes in the map of a building, then walk one of them."""

from esceme.planning.belief import Belief
from esceme.planning.choice import Exploration
from esceme.planning.planner import Planner, PlanRequest, RoutePlan
from esceme.planning.planning_navigator import PlanningNavigator
from esceme.planning.routes import ROUTES, RouteLimits, RouteSet, shortest_routes
from esceme.planning.scoring import SCORERS, FollowerScorer, SpeakerScorer
from esceme.planning.speaker import Speaker

__all__ = [
    "ROUTES",
    "SCORERS",
    "Belief",
    "Exploration",
    "FollowerScorer",
    "RoutePlan",
    "PlanRequest",
    "Planner",
    "PlanningNavigator",
    "RouteLimits",
    "RouteSet",
    "Speaker",
    "SpeakerScorer",
    "shortest_routes",
]
