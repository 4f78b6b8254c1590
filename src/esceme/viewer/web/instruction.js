// The instruction, with the words that the agent attends to at a step.

import { html } from "./dom.js";

/**
 * Return a text in parts with weights from 0 to 1. Tokens of one word are joined, with the larger weight. The weight is
 * relative to the largest one of the step.
 * @param {string} text
 * @param {number[] | null | undefined} spans begin and end of every token; -1 where a token is not in the text
 * @param {number[] | null | undefined} attention weight of every token
 * @returns {{text: string, weight: number}[]}
 */
export function weightedParts(text, spans, attention) {
  if (!spans || !attention) return [{ text, weight: 0 }];
  /** @type {{begin: number, end: number, weight: number}[]} */
  const words = [];
  attention.forEach((weight, token) => {
    const [begin, end] = [spans[2 * token], spans[2 * token + 1]];
    if (begin === undefined || begin < 0) return;
    const last = words.at(-1);
    if (last && last.end === begin) Object.assign(last, { end, weight: Math.max(last.weight, weight) });
    else words.push({ begin, end, weight });
  });
  const largest = Math.max(1, ...words.map(({ weight }) => weight));
  const parts = [];
  let position = 0;
  for (const { begin, end, weight } of words) {
    if (begin > position) parts.push({ text: text.slice(position, begin), weight: 0 });
    parts.push({ text: text.slice(begin, end), weight: weight / largest });
    position = end;
  }
  if (position < text.length) parts.push({ text: text.slice(position), weight: 0 });
  return parts;
}

/**
 * Return the elements of an instruction. Weights are shown by five shades, and read by screen readers for the two
 * strongest.
 * @param {{text: string, weight: number}[]} parts
 */
export function instructionElements(parts) {
  return parts.map(({ text, weight }) => {
    const shade = Math.min(4, Math.floor(weight * 5));
    return shade ? html("mark", { class: `attention-${shade}` }, text) : html("span", {}, text);
  });
}
