// Memory of a scene before any step of an evaluation. The same rules as `evaluation/history.py`.

/** @typedef {import("./types.js").History} History */
/** @typedef {{episode: number, step: number}} Moment number of the episode in the scene (-1: before all), step */

/**
 * Return the viewpoints in memory before a step of an episode, each with the moment at which it was stored.
 * @param {History} history
 * @param {number} order number of the episode in the scene, from 0
 * @param {number} step
 * @returns {Map<number, Moment>}
 */
export function remembered(history, order, step) {
  /** @type {Map<number, Moment>} */
  const memory = new Map();
  const begin = Math.max(0, ...history.cleared.filter((number) => number <= order));
  if (!history.cleared.length) for (const viewpoint of history.initial) memory.set(viewpoint, { episode: -1, step: 0 });
  for (let episode = begin; episode <= order && episode < history.stored.length; episode++) {
    const stored = history.stored[episode];
    const end = episode === order ? Math.min(step, stored.length) : stored.length;
    for (let number = 0; number < end; number++)
      if (!memory.has(stored[number])) memory.set(stored[number], { episode, step: number });
  }
  return memory;
}

/**
 * Return the number of viewpoints in memory before each episode of a scene, and at the end.
 * @param {History} history
 * @returns {number[]}
 */
export function memorySizes(history) {
  /** @type {number[]} */
  const sizes = [];
  const cleared = new Set(history.cleared);
  let memory = new Set(history.cleared.length ? [] : history.initial);
  history.stored.forEach((stored, number) => {
    if (cleared.has(number)) memory = new Set();
    sizes.push(memory.size);
    for (const viewpoint of stored) memory.add(viewpoint);
  });
  return [...sizes, memory.size];
}

/**
 * Return the class of a viewpoint's age: stored in this episode, in one of the last five, or earlier.
 * @param {Moment} moment
 * @param {number} order number of the current episode
 */
export function ageClass(moment, order) {
  if (moment.episode === order) return "age-now";
  return moment.episode >= 0 && order - moment.episode <= 5 ? "age-recent" : "age-old";
}

/**
 * Describe the age of a memory.
 * @param {Moment} moment
 * @param {number} order
 */
export function describeAge(moment, order) {
  if (moment.episode < 0) return "remembered from before these episodes";
  if (moment.episode === order) return `remembered in this episode, at step ${moment.step + 1}`;
  const age = order - moment.episode;
  return `remembered ${age} episode${age === 1 ? "" : "s"} ago, at step ${moment.step + 1}`;
}
