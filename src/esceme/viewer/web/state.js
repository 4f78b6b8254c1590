// State of the page: what is shown, as the part of the address after `#`.

/**
 * @typedef {object} State
 * @property {string} episode id of the episode
 * @property {number} step number of the pose, from 0
 * @property {number} agent number of the result whose panorama, choices and memory are shown
 * @property {string} hidden numbers of the results that are not drawn, such as `0.2`
 * @property {string} scene id of the only scene in the list, or empty
 * @property {string} show filter of the list; see `FILTERS`
 * @property {string} text words that episodes in the list contain
 * @property {string} sort order of the list; see `SORTS`
 * @property {string} zoom `scene` or `path`
 * @property {string} turn heading at the centre of the panorama in degrees; empty: the direction of the agent
 * @property {string} measure measure of the curves
 * @property {string} axis x axis of the curves: `share` or `visit`
 * @property {string} theme `auto`, `light` or `dark`
 */

/** @type {State} */
export const DEFAULTS = {
  episode: "",
  step: 0,
  agent: 0,
  hidden: "",
  scene: "",
  show: "all",
  text: "",
  sort: "run",
  zoom: "scene",
  turn: "",
  measure: "spl",
  axis: "share",
  theme: "auto",
};

/**
 * Return a state as text; entries with default values are left out.
 * @param {State} state
 * @param {State} [defaults]
 */
export function encodeState(state, defaults = DEFAULTS) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(state))
    if (value !== /** @type {any} */ (defaults)[name]) parameters.set(name, String(value));
  return parameters.toString();
}

/**
 * Return the state in a text; unknown names and unsuitable numbers are ignored.
 * @param {string} text
 * @param {State} [defaults]
 * @returns {State}
 */
export function decodeState(text, defaults = DEFAULTS) {
  /** @type {any} */
  const state = { ...defaults };
  for (const [name, value] of new URLSearchParams(text)) {
    if (!(name in defaults)) continue;
    const isNumber = typeof (/** @type {any} */ (defaults)[name]) === "number";
    if (!isNumber) state[name] = value;
    else if (/^\d{1,6}$/.test(value)) state[name] = Number(value);
  }
  return state;
}

/**
 * Return whether result `number` is drawn.
 * @param {State} state
 * @param {number} number
 */
export function isShown(state, number) {
  return !state.hidden.split(".").includes(String(number));
}

/**
 * Return the text of `State.hidden` after one result is shown or hidden.
 * @param {State} state
 * @param {number} number
 */
export function toggleShown(state, number) {
  const numbers = new Set(state.hidden.split(".").filter((part) => part !== ""));
  if (!numbers.delete(String(number))) numbers.add(String(number));
  return [...numbers].sort().join(".");
}
