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
            : `return to ${nameOf(viewpoint)}`,
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
 * @param {Choice[]} choices
 */
export function movedShare(choices) {
  return choices.reduce((sum, { share, masked }) => sum + Math.abs(share - (masked ?? share)), 0) / 2;
}

/** @param {number} share */
export function percent(share) {
  return share > 0 && share < 0.005 ? "<1 %" : `${Math.round(100 * share)} %`;
}

/**
 * Return the table of choices.
 * @param {Choice[]} choices
 * @param {(viewpoint: number | null) => void} onPoint
 */
export function choiceTable(choices, onPoint) {
  const hasMasked = choices.some(({ masked }) => masked !== null);
  const bar = (/** @type {number} */ share, /** @type {string} */ kind) =>
    html(
      "td",
      { class: "share" },
      html("meter", { class: kind, min: 0, max: 1, value: share, "aria-hidden": "true" }),
      html("span", {}, percent(share)),
    );
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
        html("th", { scope: "col" }, hasMasked ? "with memory" : "probability"),
        hasMasked ? html("th", { scope: "col" }, "masked") : null,
      ),
    ),
    html(
      "tbody",
      {},
      ...choices.map((choice) => {
        const kind = `${choice.isChosen ? "chosen" : ""}${choice.isRecalled ? " recalled" : ""}`;
        const marks = [
          choice.isChosen ? html("b", { title: "the agent's choice" }, "✓ chosen") : null,
          choice.isRecalled ? html("span", { class: "mark recalled" }, "recalled") : null,
          choice.isReference ? html("span", { class: "mark" }, "reference") : null,
        ];
        return html(
          "tr",
          {
            class: kind,
            onpointerenter: () => onPoint(choice.viewpoint),
            onpointerleave: () => onPoint(null),
          },
          html("th", { scope: "row" }, choice.name, " ", ...marks),
          bar(choice.share, "with"),
          hasMasked ? bar(choice.masked ?? 0, "without") : null,
        );
      }),
    ),
  );
}
