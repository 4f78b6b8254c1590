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
 * @returns {"age-now" | "age-recent" | "age-old"}
 */
export function ageClass(moment, order) {
  if (moment.episode === order) return "age-now";
  return moment.episode >= 0 && order - moment.episode <= 5 ? "age-recent" : "age-old";
}

/**
 * Describe when a memory was stored: `step 2`, `3 episodes ago`, `before`.
 * @param {Moment} moment
 * @param {number} order
 */
export function describeAge(moment, order) {
  const age = order - moment.episode;
  if (moment.episode < 0) return "before";
  return age ? `${age} episode${age === 1 ? "" : "s"} ago` : `step ${moment.step}`;
}

/**
 * Describe how many viewpoints are in memory, and how old they are.
 * @param {Map<number, Moment>} memory
 * @param {number} total number of viewpoints of the scene
 * @param {number} order
 */
export function describeMemory(memory, total, order) {
  const counts = { "age-now": 0, "age-recent": 0, "age-old": 0 };
  for (const moment of memory.values()) counts[ageClass(moment, order)] += 1;
  const parts = [
    counts["age-now"] ? `${counts["age-now"]} in this episode` : "",
    counts["age-recent"] ? `${counts["age-recent"]} in the last five` : "",
    counts["age-old"] ? `${counts["age-old"]} earlier` : "",
  ].filter(Boolean);
  return `${memory.size} of ${total} viewpoints remembered${parts.length ? `: ${parts.join(", ")}` : ""}`;
}
