// What happened in an episode, in one or two sentences: outcomes, where paths part, where memory changed a choice.

import { movedShare, percent } from "./choices.js";
import { html } from "./dom.js";
import { memoryChangedChoice, scoreOf } from "./episodes.js";

/** @typedef {import("./types.js").Data} Data */
/** @typedef {import("./types.js").Step} Step */
/** @typedef {import("./types.js").Trajectory} Trajectory */

/**
 * Return for every pose of a trajectory what memory did to its decision: the share of the probability that memory moved,
 * and whether the first choice changed; null without a decision or without a memory.
 * @param {Trajectory | undefined} trajectory
 * @returns {({moved: number, isChanged: boolean} | null)[]}
 */
export function memoryEffects(trajectory) {
  return (trajectory?.steps ?? []).map((step) => {
    const masked = step?.[1];
    if (!step || !masked) return null;
    const choices = step[0].map((share, index) => ({ share: share / 10000, masked: masked[index] / 10000 }));
    return { moved: movedShare(choices), isChanged: memoryChangedChoice(step) };
  });
}

/**
 * Return the number of the last common pose of two paths; -1 if they are equal.
 * @param {number[]} a
 * @param {number[]} b
 */
export function partingStep(a, b) {
  const length = Math.min(a.length, b.length);
  for (let pose = 0; pose < length; pose++) if (a[pose] !== b[pose]) return Math.max(0, pose - 1);
  return a.length === b.length ? -1 : length - 1;
}

/**
 * Describe the outcome of a result: `reaches the goal (SPL 93)`, `stops 3.1 m from the goal`, ...
 * @param {Data} data
 * @param {number} result
 * @param {number} episode
 */
export function describeOutcome(data, result, episode) {
  const [success, spl, error] = ["sr", "spl", "ne"].map((name) => scoreOf(data, result, episode, name));
  if (success === null) return "";
  if (success) return `reaches the goal (SPL ${(100 * (spl ?? 0)).toFixed(0)})`;
  const verb = data.results[result].trajectories[episode]?.stopped ? "stops" : "runs out of steps";
  return error === null ? `${verb} elsewhere` : `${verb} ${error.toFixed(1)} m from the goal`;
}

/**
 * Return the sentences about an episode as elements.
 * @param {Data} data
 * @param {number} episode
 * @param {number[]} shown numbers of the results that are drawn
 * @param {number} agent number of the result whose decisions are shown
 * @param {(step: number) => void} onStep called when a step is picked
 */
export function verdict(data, episode, shown, agent, onStep) {
  const stepButton = (/** @type {number} */ step) =>
    html("button", { type: "button", class: "link", onclick: () => onStep(step) }, `step ${step}`);
  /** @type {(string | HTMLElement)[]} */
  const parts = [];
  const outcomes = shown.map((number) => ({ number, text: describeOutcome(data, number, episode) })).filter(({ text }) => text);
  outcomes.forEach(({ number, text }, index) =>
    parts.push(index ? "; " : "", html("b", { class: `agent-${number % 5}` }, data.results[number].name), ` ${text}`),
  );
  if (outcomes.length) parts.push(". ");
  const paths = shown.map((number) => data.results[number].trajectories[episode]?.poses.filter((_, index) => index % 2 === 0));
  if (paths.length === 2 && paths[0] && paths[1]) {
    const step = partingStep(paths[0], paths[1]);
    if (step < 0) parts.push("Both take the same path. ");
    else parts.push("Their paths part at ", stepButton(step), ". ");
  }
  const effects = memoryEffects(data.results[agent]?.trajectories[episode]);
  const changed = effects.flatMap((effect, step) => (effect?.isChanged ? [step] : []));
  const moved = effects.map((effect) => effect?.moved ?? 0);
  const largest = moved.indexOf(Math.max(...moved));
  if (changed.length) {
    parts.push("Memory changes the first choice at ");
    changed.forEach((step, index) => parts.push(index ? ", " : "", stepButton(step)));
    parts.push(".");
  } else if (effects.some(Boolean))
    if (moved[largest] > 0)
      parts.push("Memory changes no first choice; it moves at most ", percent(moved[largest]), " of the probability, at ", stepButton(largest), ".");
    else parts.push("Memory changes nothing in this episode.");
  return parts;
}
