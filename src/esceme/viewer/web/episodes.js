// List of episodes: filters and orders.

/** @typedef {import("./types.js").Data} Data */
/** @typedef {import("./types.js").Step} Step */
/** @typedef {import("./types.js").Trajectory} Trajectory */
/** @typedef {import("./state.js").State} State */

/**
 * Return a measure of an episode in a result; null if it is not known.
 * @param {Data} data
 * @param {number} result
 * @param {number} episode
 * @param {string} measure
 */
export function scoreOf(data, result, episode, measure) {
  const column = data.measures.indexOf(measure);
  const trajectory = data.results[result]?.trajectories[episode];
  return column < 0 || !trajectory ? null : (trajectory.scores[column] ?? null);
}

/**
 * Return the difference in SPL between the last and the first result; 0 if one is not known.
 * @param {Data} data
 * @param {number} episode
 */
export function gainOf(data, episode) {
  const [first, last] = [0, data.results.length - 1].map((result) => scoreOf(data, result, episode, "spl"));
  return first === null || last === null ? 0 : last - first;
}

/**
 * Return the index of the largest number.
 * @param {number[]} values
 */
export function argmax(values) {
  return values.reduce((best, value, index) => (value > values[best] ? index : best), 0);
}

/**
 * Return whether the most probable action of a step differs if the memory recalls zeros.
 * @param {Step | null | undefined} step
 */
export function memoryChangedChoice(step) {
  return !!step && step[1] !== null && argmax(step[0]) !== argmax(step[1]);
}

/**
 * @param {Data} data
 * @param {number} episode
 * @param {(steps: (Step | null)[]) => boolean} test
 */
function someTrace(data, episode, test) {
  return data.results.some((result) => test(result.trajectories[episode]?.steps ?? []));
}

/**
 * @param {Data} data
 * @param {number} episode
 */
function successes(data, episode) {
  return data.results.map((_, result) => scoreOf(data, result, episode, "sr"));
}

/**
 * @param {Data} data
 * @returns {string} name of the last result
 */
function last(data) {
  return data.results.at(-1)?.name ?? "";
}

/** @type {Record<string, {label: (data: Data) => string, test: (data: Data, episode: number) => boolean, least?: number}>} */
export const FILTERS = {
  all: { label: () => "all episodes", test: () => true },
  helped: {
    least: 2,
    label: (data) => `helped: only ${last(data)} succeeds`,
    test: (data, episode) => {
      const values = successes(data, episode);
      return !!values.at(-1) && values.slice(0, -1).some((value) => value === 0);
    },
  },
  hurt: {
    least: 2,
    label: (data) => `hurt: ${last(data)} fails, another succeeds`,
    test: (data, episode) => {
      const values = successes(data, episode);
      return values.at(-1) === 0 && values.slice(0, -1).some((value) => !!value);
    },
  },
  changed: {
    least: 2,
    label: () => "results differ in success",
    test: (data, episode) => new Set(successes(data, episode)).size > 1,
  },
  choice: {
    label: () => "memory changed a choice",
    test: (data, episode) => someTrace(data, episode, (steps) => steps.some(memoryChangedChoice)),
  },
  success: { label: (data) => `${last(data)} succeeds`, test: (data, episode) => !!successes(data, episode).at(-1) },
  failure: { label: (data) => `${last(data)} fails`, test: (data, episode) => successes(data, episode).at(-1) === 0 },
  first: {
    label: () => "first instruction of a path",
    test: (data, episode) => data.episodes[episode].instruction_number === 1,
  },
};

/** @type {Record<string, {label: string, least?: number, key: (data: Data, episode: number) => number}>} */
export const SORTS = {
  run: { label: "evaluation order", key: (_, episode) => episode },
  gain: { label: "gain in SPL", least: 2, key: (data, episode) => -gainOf(data, episode) },
  loss: { label: "loss in SPL", least: 2, key: (data, episode) => gainOf(data, episode) },
  visit: {
    label: "visit to its scene",
    key: (data, episode) => data.results.at(-1)?.trajectories[episode]?.visit ?? episode,
  },
  steps: {
    label: "longest trajectory",
    key: (data, episode) => -(data.results.at(-1)?.trajectories[episode]?.poses.length ?? 0),
  },
};

/**
 * Return the numbers of the episodes in the list, in its order.
 * @param {Data} data
 * @param {State} state
 */
export function listEpisodes(data, state) {
  const words = state.text.toLowerCase().split(/\s+/).filter(Boolean);
  const { test } = FILTERS[state.show] ?? FILTERS.all;
  const { key } = SORTS[state.sort] ?? SORTS.run;
  /** @type {number[]} */
  const found = [];
  data.episodes.forEach((episode, number) => {
    if (state.scene && data.scenes[episode.scene].id !== state.scene) return;
    const text = `${episode.id} ${episode.instruction}`.toLowerCase();
    if (words.every((word) => text.includes(word)) && test(data, number)) found.push(number);
  });
  const keys = new Map(found.map((number) => [number, key(data, number)]));
  return found.sort((a, b) => /** @type {number} */ (keys.get(a)) - /** @type {number} */ (keys.get(b)) || a - b);
}
