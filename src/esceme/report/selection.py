"""Rules that select episodes for figures, so that no figure shows an episode chosen by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from esceme.errors import ConfigError, DataError
from esceme.evaluation.result import EpisodeResult, Result

SelectionRule = Literal["helped", "hurt", "failures"]
RULE_TEXTS: dict[SelectionRule, str] = {
    "helped": "episodes in which the last result is ahead most: by success, then by SPL; "
    "of several others, the better one counts",
    "hurt": "episodes in which the last result is behind most: by success, then by SPL; "
    "of several others, the better one counts",
    "failures": "episodes in which the last result fails, first those in which another result succeeds; "
    "then by distance to the goal, the farthest first",
}
"""Rule -> what it selects. All rules prefer episodes of different scenes, then of different paths."""


def select_by_rule(results: Sequence[Result], rule: SelectionRule, count: int) -> list[str]:
    """Return the ids of at most `count` episodes by a rule that compares the last result with the others.

    The first episode is the clearest case of the rule. Episodes of different scenes come first, then those of
    different paths. All results must have the same episodes. Raise `DataError` if there are no scores.
    """
    if rule not in RULE_TEXTS:
        raise ConfigError(f"rule '{rule}': expected one of {', '.join(RULE_TEXTS)}")
    *others, last = results
    if not others and rule != "failures":
        raise ConfigError(f"the rule '{rule}' compares results; give at least two")
    if not last.means:
        raise DataError("these results have no scores, because the goals are withheld; name the episodes")
    baselines = [{episode.id: episode.scores for episode in result.episodes} for result in others]

    def best(episode: EpisodeResult, metric: str) -> float:
        return max((scores[episode.id][metric] for scores in baselines), default=0.0)

    def rank(episode: EpisodeResult) -> tuple[float, ...]:
        gains = tuple(episode.scores[metric] - best(episode, metric) for metric in ("sr", "spl"))
        if rule == "failures":
            return (1 - episode.scores["sr"], best(episode, "sr"), episode.scores["ne"])
        return gains if rule == "helped" else tuple(-gain for gain in gains)

    def applies(episode: EpisodeResult) -> bool:
        return rank(episode)[0] > 0 if rule == "failures" else rank(episode) > (0.0, 0.0)

    shared = [episode for episode in last.episodes if all(episode.id in scores for scores in baselines)]
    ranked = sorted(filter(applies, shared), key=rank, reverse=True)
    best_of_scene = {episode.scene: episode.id for episode in reversed(ranked)}.values()
    best_of_path = {episode.path: episode.id for episode in reversed(ranked)}.values()
    ranked.sort(key=lambda episode: (episode.id not in best_of_scene, episode.id not in best_of_path))
    return [episode.id for episode in ranked[:count]]
