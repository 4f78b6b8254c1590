// What an agent could do at a step: probabilities with its memory, and with the memory masked.

import { html } from "./dom.js";

/**
 * @typedef {object} Choice
 * @property {string} name such as `1 kitchen` or `STOP`
 * @property {number | null} viewpoint null for STOP
 * @property {number} share probability, 0 to 1
 * @property {number | null} masked probability if the memory recalls zeros; null if there is no memory
 * @property {boolean} isChosen
 * @property {boolean} isRecalled
 * @property {boolean} isReference whether the reference path goes there
 */

/**
 * Return the choices of a decision.
 * @param {import("./types.js").Step} step
 * @param {number[]} candidates viewpoints of the candidates
 * @param {(viewpoint: number) => string} nameOf
 * @param {number | null} reference viewpoint to which the reference path goes from here; null if it stops or is off
 * @param {boolean} isReferenceEnd
 * @returns {Choice[]}
 */
export function listChoices(step, candidates, nameOf, reference, isReferenceEnd) {
  const [shares, masked, action, recalled, , routes] = step;
  const targets = [...candidates, null, ...routes];
  return targets
    .map((viewpoint, index) => ({
      name:
        viewpoint === null
          ? "STOP"
          : index < candidates.length
            ? `${index + 1} ${nameOf(viewpoint)}`
            : `go to ${nameOf(viewpoint)}`,
      viewpoint,
      share: (shares[index] ?? 0) / 10000,
      masked: masked ? (masked[index] ?? 0) / 10000 : null,
      isChosen: index === action,
      isRecalled: viewpoint !== null && recalled.includes(viewpoint),
      isReference: viewpoint === null ? isReferenceEnd : index < candidates.length && viewpoint === reference,
    }))
    .filter(({ viewpoint }) => viewpoint !== -1);
}

/**
 * Return the sum of the probabilities that memory moved from one choice to another, 0 to 1 (total variation).
 * @param {{share: number, masked: number | null}[]} choices
 */
export function movedShare(choices) {
  return choices.reduce((sum, { share, masked }) => sum + Math.abs(share - (masked ?? share)), 0) / 2;
}

/** @param {number} share */
export function percent(share) {
  return share > 0 && share < 0.005 ? "<1 %" : `${Math.round(100 * share)} %`;
}

/**
 * Return a bar with its number as a cell of a table.
 * @param {number} share
 * @param {string} kind
 */
function barCell(share, kind) {
  const bar = html("span", { class: `bar ${kind}` });
  bar.style.setProperty("--share", String(share));
  return html("td", { class: "share" }, bar, html("span", {}, percent(share)));
}

/**
 * Return the table of choices.
 * @param {Choice[]} choices
 * @param {(viewpoint: number | null) => void} onPoint
 * @param {(viewpoint: number) => string} describe when a recalled viewpoint was stored
 */
export function choiceTable(choices, onPoint, describe) {
  const hasMasked = choices.some(({ masked }) => masked !== null);
  return html(
    "table",
    { class: "choices" },
    html("caption", {}, hasMasked ? "Choices with memory, and with the memory masked" : "Choices"),
    html(
      "thead",
      {},
      html(
        "tr",
        {},
        html("th", { scope: "col" }, "choice"),
        hasMasked ? html("th", { scope: "col" }, "recalled from") : null,
        html("th", { scope: "col" }, hasMasked ? "with memory" : "probability"),
        hasMasked ? html("th", { scope: "col" }, "masked") : null,
      ),
    ),
    html(
      "tbody",
      {},
      ...choices.map((choice) =>
        html(
          "tr",
          {
            class: choice.isChosen ? "chosen" : null,
            onpointerenter: () => onPoint(choice.viewpoint),
            onpointerleave: () => onPoint(null),
          },
          html(
            "th",
            { scope: "row" },
            html("span", { class: "choice-name" }, choice.name),
            choice.isChosen ? html("span", { class: "mark chosen", title: "the agent's choice" }, "✓", html("span", { class: "visually-hidden" }, "chosen")) : null,
            choice.isReference ? html("span", { class: "mark", title: "the reference path goes there" }, "ref", html("span", { class: "visually-hidden" }, "erence path")) : null,
          ),
          hasMasked ? html("td", { class: "recalled-from" }, choice.isRecalled ? describe(choice.viewpoint ?? 0) : "") : null,
          barCell(choice.share, "with"),
          hasMasked ? barCell(choice.masked ?? 0, "without") : null,
        ),
      ),
    ),
  );
}

/**
 * Return a sentence about what memory did to the probabilities of a decision.
 * @param {Choice[]} choices
 */
export function memorySentence(choices) {
  const best = (/** @type {"share" | "masked"} */ key) =>
    choices.reduce((a, b) => ((b[key] ?? 0) > (a[key] ?? 0) ? b : a)).name;
  const [after, before] = [best("share"), best("masked")];
  const change = after === before ? `the first choice stays ${after}` : `the first choice changes from ${before} to ${after}`;
  return `Memory moves ${percent(movedShare(choices))} of the probability; ${change}.`;
}

/**
 * Return the routes that a planning agent compared, with their scores.
 * @param {import("./types.js").PlannedRoute[]} routes
 * @param {number} compared number of all routes that the agent compared
 * @param {(viewpoint: number) => string} nameOf
 * @param {(rank: number | null) => void} onRoute called with the route under the pointer or with the focus
 */
export function routeTable(routes, compared, nameOf, onRoute) {
  const number = (/** @type {number | undefined} */ value) => (value === undefined ? "–" : value.toFixed(2));
  return html(
    "table",
    { class: "routes" },
    html("caption", {}, `Best ${routes.length} of ${compared} compared routes`),
    html(
      "thead",
      {},
      html("tr", {}, ...["route", "belief", "utility"].map((name) => html("th", { scope: "col" }, name))),
    ),
    html(
      "tbody",
      {},
      ...routes.map((route, rank) => {
        const rooms = route.path.map(nameOf).filter((name, index, names) => name !== names[index - 1]);
        const facts = [
          `${route.path.length - 1} step${route.path.length === 2 ? "" : "s"}`,
          route.visited === false ? "end not visited before" : "",
          ...Object.entries(route.scores ?? {}).map(([name, value]) => `${name} ${number(value)}`),
        ];
        return html(
          "tr",
          {
            tabindex: 0,
            onpointerenter: () => onRoute(rank),
            onpointerleave: () => onRoute(null),
            onfocus: () => onRoute(rank),
            onblur: () => onRoute(null),
          },
          html("th", { scope: "row" }, `${rank + 1}. ${rooms.join(" → ")}`, html("small", {}, facts.filter(Boolean).join(" · "))),
          route.probability === undefined ? html("td", {}, "–") : barCell(route.probability, "with"),
          html("td", {}, number(route.utility)),
        );
      }),
    ),
  );
}
