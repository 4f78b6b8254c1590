"""Scores of candidate routes given an instruction: by an agent that follows it, and by a speaker.

A scorer returns named columns with one row per route. To add a scorer, write a class with `columns` and
`score`, and add it to `SCORERS`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esceme.agents.base import State, TokenBatch
from esceme.errors import ConfigError
from esceme.memory.bank import Memory
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.planning.matcher import PooledViews, RouteMatcher, StepInputs, route_index, step_inputs
from esceme.planning.routes import RouteSet
from esceme.planning.speaker import Speaker, StepArrays
from esceme.world.geometry import COLUMNS

LAST_WORDS = 0.7
"""The last words of an instruction are those after this share of it."""
MIN_LOG_PROBABILITY = -30.0
NUM_LENGTHS = 3
"""Number of assumed lengths of a route whose end is unknown."""
CHUNK = 512
"""Number of routes that the speaker and the matcher score at a time."""


class Scorer(Protocol):
    """Scores routes given an instruction."""

    columns: ClassVar[tuple[str, ...]]
    """Names of the scores. The first score also has a weight of its own for routes to the frontier."""

    def score(self, routes: RouteSet, words: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the scores of R routes given L token ids, (R, columns)."""


class FollowerScorer:
    """Log-probabilities of an agent that rehearses all routes of a tree in the map.

    `walk` is that of the moves of a route. `stop` is that of STOP at its end, 0 at a frontier viewpoint.
    """

    columns: ClassVar[tuple[str, ...]] = ("walk", "stop")

    def __init__(self, navigator: Navigator, memory: Memory | None = None) -> None:
        """Use an agent and its reader, which recalls from `memory`."""
        self.navigator, self.memory = navigator, memory

    @torch.inference_mode()
    def score(self, routes: RouteSet, words: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return `walk` and `stop` of every route, (R, 2)."""
        if routes.parents is None:
            raise ConfigError("a follower rehearses a tree of routes; use other scorers for these routes")
        ids = torch.from_numpy(words)[None].to(self.navigator.device)
        start = torch.tensor(self._indices(routes)[:1], device=ids.device)
        state = self.navigator.begin(TokenBatch(ids, torch.ones_like(ids, dtype=torch.bool)), start)
        rehearse = self._in_one_pass if self.navigator.agent.supports_decide_tree else self._by_length
        logs, stops = rehearse(routes, state)
        # The parent of a route precedes it.
        found, parents = np.zeros((len(routes), 2)), routes.parents
        slots = routes.slots[np.arange(len(routes)), routes.num_moves - 1] if len(routes) > 1 else parents
        for row in range(1, len(routes)):
            found[row, 0] = found[parents[row], 0] + logs[parents[row], slots[row]]
        visited = np.flatnonzero(routes.is_visited)
        found[visited, 1] = logs[visited, stops[visited]]
        return found

    def _in_one_pass(self, routes: RouteSet, state: State) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return log-probabilities of all actions at visited ends, (R, C), and the index of STOP, (R,).

        `state` is the initial state of one agent.
        """
        assert routes.parents is not None
        visited = np.flatnonzero(routes.is_visited)
        observation = self._observe(routes, visited)
        order = np.full(len(routes) + 1, -1)  # the last entry is that of the parent -1
        order[visited] = np.arange(len(visited))
        taken = routes.slots[visited, routes.num_moves[visited] - 1] if len(visited) > 1 else np.array([-1])
        device = self.navigator.device
        decision = self.navigator.agent.decide_tree(
            state,
            observation,
            torch.from_numpy(order[routes.parents[visited]]).to(device),
            torch.from_numpy(taken).to(device),
        )
        found = _log_probabilities(decision.logits)
        logs, stops = np.zeros((len(routes), found.shape[1]), np.float32), np.zeros(len(routes), np.int64)
        logs[visited], stops[visited] = found, observation.num_candidates.cpu().numpy()
        return logs, stops

    def _by_length(self, routes: RouteSet, state: State) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the same as `_in_one_pass`, step by step; routes of equally many edges are a batch."""
        assert routes.parents is not None
        logs, stops = np.zeros((len(routes), 1), np.float32), np.zeros(len(routes), np.int64)
        level = np.array([0])
        while True:
            observation = self._observe(routes, level)
            decision = self.navigator.decide(state, observation)
            found = _log_probabilities(decision.logits)
            logs = np.pad(logs, ((0, 0), (0, max(0, found.shape[1] - logs.shape[1]))))
            logs[level, : found.shape[1]] = found
            stops[level] = observation.num_candidates.cpu().numpy()
            order = np.full(len(routes), -1)
            order[level] = np.arange(len(level))
            is_next = (routes.parents >= 0) & (order[routes.parents] >= 0) & routes.is_visited
            if not is_next.any():
                return logs, stops
            level = np.flatnonzero(is_next)
            rows = torch.from_numpy(order[routes.parents[level]]).to(self.navigator.device)
            actions = torch.from_numpy(routes.slots[level, routes.num_moves[level] - 1]).to(rows.device)
            state = (state if decision.state is None else decision.state).select(rows)
            state = self.navigator.advance(state, observation.select(rows), actions)

    def _observe(self, routes: RouteSet, rows: NDArray[np.int64]) -> Observation:
        """Return what the agent observes at the ends of routes, as remembered, after its reader."""
        longest = int(routes.num_moves[rows].max())
        previous = routes.places[rows, :longest].copy()
        previous[np.arange(longest) >= routes.num_moves[rows][:, None]] = -1
        nodes = routes.area.nodes
        observation = routes.area.scene_map.observe(
            nodes[routes.ends[rows]],
            routes.views[rows, routes.num_moves[rows]],
            np.where(previous < 0, -1, nodes[previous]),
            device=self.navigator.device,
        )
        return self.navigator.observe(observation, self.memory)

    @staticmethod
    def _indices(routes: RouteSet) -> list[int]:
        return routes.area.scene_map.indices(routes.area.nodes[routes.ends].tolist())


def _log_probabilities(logits: Tensor) -> NDArray[np.float32]:
    """Return the log-probabilities of actions, (R, C), none less than `MIN_LOG_PROBABILITY`."""
    logs = torch.log_softmax(logits.float(), 1).clamp(min=MIN_LOG_PROBABILITY)
    return logs.cpu().numpy()


class SpeakerScorer:
    """Log-probability of the instruction given a route, relative to that without the route.

    `speaker` counts all words, `speaker_last` the last words, and `speaker_end` the last words if they
    describe only the end of the route.
    """

    columns: ClassVar[tuple[str, ...]] = ("speaker", "speaker_last", "speaker_end")

    def __init__(self, speaker: Speaker) -> None:
        self.speaker = speaker

    def score(self, routes: RouteSet, words: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the three scores of every route, (R, 3).

        The end of a route to a frontier viewpoint is unknown. Its score is the mean over the usual numbers of
        edges, with the mean emission of all training steps at unknown viewpoints.
        """
        steps, index, ends = distinct_steps(routes)
        emissions = self.speaker.emissions(routes.area.scene_map, steps, words)  # (S, L)
        unknown = self.speaker.unknown_emissions(words)  # (2, L)
        found = np.zeros((len(routes), 3))
        for moves in np.unique(routes.num_moves).tolist():
            for is_visited in (True, False):
                rows = np.flatnonzero((routes.num_moves == moves) & (routes.is_visited == is_visited))
                for chunk in np.array_split(rows, max(1, -(-len(rows) // CHUNK))):
                    walked = emissions[index[chunk, :moves]]  # (r, moves, L)
                    if is_visited:
                        probabilities = np.concatenate([walked, emissions[ends[chunk]][:, None]], 1)
                        found[chunk] = self._scores(probabilities, unknown[:0], words)
                    elif len(chunk):
                        found[chunk] = self._unknown_scores(walked, unknown, words)
        return found

    def _unknown_scores(
        self, walked: NDArray[np.float64], unknown: NDArray[np.float64], words: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the scores of routes that continue beyond the known viewpoints, (r, 3)."""
        moves = walked.shape[1]
        least, greatest = (max(moves, usual) for usual in self.speaker.tables.num_moves)
        scores = []
        for total in np.unique(np.linspace(least, greatest, NUM_LENGTHS).round().astype(int)).tolist():
            rest = np.concatenate([np.repeat(unknown[:1], total - moves, 0), unknown[1:]])
            scores.append(self._scores(walked, rest, words))
        stacked: NDArray[np.float64] = np.logaddexp.reduce(scores, axis=0) - np.log(len(scores))
        return stacked

    def _scores(
        self, probabilities: NDArray[np.float64], rest: NDArray[np.float64], words: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the scores of routes, (r, 3), with steps (r, S, L) and then steps (U, L) common to all."""
        last, known = max(1, int(len(words) * LAST_WORDS)), probabilities.shape[1]
        weights = self.speaker.alignment(known + len(rest), len(words))
        aligned = np.einsum("rsl,sl->rl", probabilities, weights[:known]) + (rest * weights[known:]).sum(0)
        scores = self.speaker.word_scores(aligned, words)
        ends = rest[-1:, last:] if len(rest) else probabilities[:, -1, last:]
        end = self.speaker.word_scores(ends, words[last:]).sum(1)
        end = np.broadcast_to(end, len(scores))
        return np.stack([scores.sum(1), scores[:, last:].sum(1), end], 1)


class MatcherScorer:
    """Score of a route by a network that was trained to score described routes higher than others."""

    columns: ClassVar[tuple[str, ...]] = ("match",)

    def __init__(self, matcher: RouteMatcher) -> None:
        self.matcher = matcher

    @torch.inference_mode()
    def score(self, routes: RouteSet, words: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the score of every route, (R, 1)."""
        area, (steps, index, ends) = routes.area, distinct_steps(routes)
        used = np.zeros(len(area.nodes), dtype=bool)
        used[routes.places[routes.places >= 0]] = True
        visited = area.nodes[used & area.visited]
        row_of = np.full(len(area.scene_map.row_of), -1)
        row_of[visited] = np.arange(len(visited))
        inputs = step_inputs(area.scene_map, steps, row_of)
        numbers = torch.from_numpy(
            route_index(
                index,
                ends,
                routes.num_moves,
                routes.is_visited,
                unknown=len(steps.nodes),
                usual_steps=int(self.matcher.usual_steps),
            )
        )
        instruction = torch.from_numpy(words)[None]
        known = (
            instruction,
            torch.ones_like(instruction, dtype=torch.bool),
            PooledViews.of(area.scene_map.panoramas(visited)),
            StepInputs(*(tensor[None] for tensor in inputs)),
        )
        scores = torch.cat([self.matcher(*known, part[None])[0] for part in torch.split(numbers, CHUNK)])
        return scores.double().numpy()[:, None]


SCORERS: dict[str, type[Any]] = {
    "follower": FollowerScorer,
    "speaker": SpeakerScorer,
    "matcher": MatcherScorer,
}
"""Scorers by name."""


def distinct_steps(routes: RouteSet) -> tuple[StepArrays, NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct steps of routes, the number of each step (R, T), and that of the ends (R,).

    The end at a frontier viewpoint is no step; its number is 0.
    """
    nodes, columns = routes.area.nodes, routes.views % COLUMNS
    is_move = routes.places[:, 1:] >= 0
    num_slots = int(routes.slots.max(initial=-1)) + 2  # slot -1 is the end
    first = (routes.places * COLUMNS + columns) * num_slots
    moves = (first[:, :-1] + routes.slots + 1)[is_move]
    last = first[np.arange(len(routes)), routes.num_moves][routes.is_visited]
    keys = np.concatenate([moves, last])
    number = np.zeros(len(nodes) * COLUMNS * num_slots, np.int64)
    number[keys] = 1
    distinct = np.flatnonzero(number)
    number[distinct] = np.arange(len(distinct))
    index, ends = np.zeros(is_move.shape, np.int64), np.zeros(len(routes), np.int64)
    index[is_move], ends[routes.is_visited] = number[moves], number[last]
    places, slots = np.divmod(distinct, num_slots)
    steps = StepArrays(nodes[places // COLUMNS], places % COLUMNS, slots - 1)
    return steps, index, ends
