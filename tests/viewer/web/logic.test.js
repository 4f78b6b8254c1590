// Unit tests of the page's logic, without a browser: state, list, memory, geometry, choices, text.

import assert from "node:assert/strict";
import { test } from "node:test";

import { ticks } from "../../../src/esceme/viewer/web/charts.js";
import { listChoices, movedShare, percent } from "../../../src/esceme/viewer/web/choices.js";
import { gainOf, listEpisodes, memoryChangedChoice } from "../../../src/esceme/viewer/web/episodes.js";
import { wrapWords } from "../../../src/esceme/viewer/web/figures.js";
import { boundingBox, directionTo, distance, headingView, pathLines, wrapDegrees } from "../../../src/esceme/viewer/web/geometry.js";
import { weightedParts } from "../../../src/esceme/viewer/web/instruction.js";
import { layOutFloors, star } from "../../../src/esceme/viewer/web/map.js";
import { separate } from "../../../src/esceme/viewer/web/panorama.js";
import { ageClass, describeAge, describeMemory, memorySizes, remembered } from "../../../src/esceme/viewer/web/memory.js";
import { describeOutcome, memoryEffects, partingStep } from "../../../src/esceme/viewer/web/verdict.js";
import { DEFAULTS, decodeState, encodeState, isShown, toggleShown } from "../../../src/esceme/viewer/web/state.js";

/** @typedef {import("../../../src/esceme/viewer/web/types.js").Step} Step */
/** @typedef {import("../../../src/esceme/viewer/web/types.js").Data} Data */

/** @type {import("../../../src/esceme/viewer/web/types.js").Scene} */
const scene = {
  id: "house",
  viewpoints: ["hall", "den", "bath", "attic"],
  positions: [0, 0, 0, 0, 300, 0, 400, 300, 0, 0, 600, 300],
  floors: [0, 0, 0, 1],
  heights: [0, 300],
  neighbours: [[1], [0, 2, 3], [1], [1]],
  rooms: null,
  regions: null,
};

/** @type {import("../../../src/esceme/viewer/web/types.js").History} */
const history = { episodes: [0, 1, 2], stored: [[0, 1], [2, 1], [3]], cleared: [], initial: [] };

/**
 * @param {number[]} sr success of the first and of the second result, episode by episode
 * @param {(Step | null)[] | null} [steps]
 * @returns {Data}
 */
function dataOf(sr, steps = null) {
  const result = (/** @type {number} */ number) => ({
    name: `result ${number}`,
    has_memory: number > 0,
    facts: {},
    means: {},
    trajectories: sr
      .filter((_, index) => index % 2 === number)
      .map((value, order) => ({
        visit: order + 1,
        order,
        poses: [0, 12, 1, 12],
        stopped: true,
        scores: [value > 0 ? 1 : 0, value],
        spans: null,
        steps: number ? steps : null,
      })),
    histories: [history],
  });
  return {
    version: "",
    task: "r2r",
    split: "val",
    measures: ["sr", "spl"],
    rooms: [],
    scenes: [scene],
    episodes: sr
      .filter((_, index) => index % 2 === 0)
      .map((_, number) => ({
        id: `${number}_0`,
        scene: 0,
        path: String(number >> 1),
        instruction: `Go to room ${number}. <script>alert(1)</script>`,
        reference: [0, 1],
        view: 12,
        goals: [1],
        instruction_number: (number & 1) + 1,
      })),
    results: [result(0), result(1)],
    curves: [],
    left_out: 0,
    pictures: {},
    live: null,
  };
}

test("a state survives the way into the address and back", () => {
  const state = { ...DEFAULTS, episode: "7_0 & <b>", step: 3, text: "red sofa", hidden: "0.2", theme: "dark" };
  assert.deepEqual(decodeState(encodeState(state)), state);
  assert.equal(encodeState({ ...DEFAULTS }), "");
});

test("unknown names and unsuitable numbers in the address are ignored", () => {
  const state = decodeState("step=-3&agent=x&nonsense=1&__proto__=2&step=1e9&text=%3Cb%3E");
  assert.deepEqual(state, { ...DEFAULTS, text: "<b>" });
});

test("results are hidden and shown", () => {
  const hidden = toggleShown({ ...DEFAULTS }, 1);
  assert.equal(isShown({ ...DEFAULTS, hidden }, 1), false);
  assert.equal(isShown({ ...DEFAULTS, hidden }, 0), true);
  assert.equal(toggleShown({ ...DEFAULTS, hidden }, 1), "");
});

test("episodes are filtered by outcome, words and instruction number, and sorted by gain", () => {
  const data = dataOf([0, 1, 1, 0, 1, 0.5, 0, 0]); // helped, hurt, both succeed, both fail
  const list = (/** @type {object} */ change) => listEpisodes(data, { ...DEFAULTS, ...change });
  assert.deepEqual(list({}), [0, 1, 2, 3]);
  assert.deepEqual(list({ show: "helped" }), [0]);
  assert.deepEqual(list({ show: "hurt" }), [1]);
  assert.deepEqual(list({ show: "changed" }), [0, 1]);
  assert.deepEqual(list({ show: "success" }), [0, 2]);
  assert.deepEqual(list({ show: "failure" }), [1, 3]);
  assert.deepEqual(list({ show: "first" }), [0, 2]);
  assert.deepEqual(list({ show: "choice" }), []);
  assert.deepEqual(list({ show: "no such filter", sort: "gain" }), [0, 3, 2, 1]);
  assert.deepEqual(list({ sort: "loss" }), [1, 2, 3, 0]);
  assert.deepEqual(list({ text: "ROOM 2" }), [2]);
  assert.deepEqual(list({ scene: "castle" }), []);
  assert.equal(gainOf(data, 2), -0.5);
});

test("memory changed a choice if the most probable action differs", () => {
  /** @type {Step} */
  const changed = [[7000, 2000, 1000], [2000, 7000, 1000], 0, [1], null, [], null];
  assert.equal(memoryChangedChoice(changed), true);
  assert.equal(memoryChangedChoice([[7000, 3000], [6000, 4000], 0, [], null, [], null]), false);
  assert.equal(memoryChangedChoice([[7000, 3000], null, 0, [], null, [], null]), false);
  assert.equal(memoryChangedChoice(null), false);
  const data = dataOf([0, 1], [changed, null]);
  assert.deepEqual(listEpisodes(data, { ...DEFAULTS, show: "choice" }), [0]);
});

test("memory holds what was stored before a step, with its age", () => {
  assert.deepEqual([...remembered(history, 1, 1).keys()], [0, 1, 2]);
  assert.deepEqual(remembered(history, 1, 2).get(1), { episode: 0, step: 1 });
  assert.equal(remembered(history, 0, 0).size, 0);
  assert.deepEqual([...remembered({ ...history, cleared: [1] }, 2, 9).keys()], [2, 1, 3]);
  assert.deepEqual([...remembered({ ...history, initial: [3] }, 0, 0)], [[3, { episode: -1, step: 0 }]]);
  assert.deepEqual(memorySizes(history), [0, 2, 3, 4]);
  assert.deepEqual(memorySizes({ ...history, cleared: [0, 1, 2] }), [0, 0, 0, 1]);
  assert.equal(ageClass({ episode: 4, step: 0 }, 4), "age-now");
  assert.equal(ageClass({ episode: 0, step: 0 }, 5), "age-recent");
  assert.equal(ageClass({ episode: -1, step: 0 }, 2), "age-old");
  assert.equal(describeAge({ episode: 0, step: 1 }, 1), "1 episode ago");
  assert.equal(describeAge({ episode: 2, step: 0 }, 2), "step 0");
  assert.equal(describeAge({ episode: -1, step: 0 }, 2), "before");
  const memory = remembered({ ...history, initial: [1] }, 1, 1);
  assert.equal(describeMemory(memory, 4, 1), "3 of 4 viewpoints remembered: 1 in this episode, 1 in the last five, 1 earlier");
  assert.equal(describeMemory(new Map(), 4, 0), "0 of 4 viewpoints remembered");
});

test("what memory did is known at every step with a masked decision", () => {
  /** @type {Step} */
  const changed = [[7000, 3000], [2000, 8000], 0, [1], null, [], null];
  const [trajectory] = dataOf([0, 1], [changed, null, [[5000, 5000], null, 0, [], null, [], null]]).results[1].trajectories;
  assert.deepEqual(memoryEffects(trajectory), [{ moved: 0.5, isChanged: true }, null, null]);
  assert.deepEqual(memoryEffects(undefined), []);
  assert.deepEqual([partingStep([0, 1, 2], [0, 1, 3]), partingStep([0, 1], [0, 1]), partingStep([0, 1], [0])], [1, -1, 0]);
  const data = dataOf([0, 1]);
  assert.equal(describeOutcome(data, 1, 0), "reaches the goal (SPL 100)");
  assert.equal(describeOutcome(data, 0, 0), "stops elsewhere");
});

test("directions follow the simulator: north is 0, east is 90", () => {
  assert.equal(directionTo(scene, 0, 1).heading, 0);
  assert.equal(directionTo(scene, 1, 2).heading, 90);
  assert.ok(Math.abs(directionTo(scene, 1, 3).elevation - 45) < 1e-9);
  assert.equal(distance(scene, 1, 2), 4);
  assert.deepEqual([0, 90, -30, 345.1, -179].map(headingView), [12, 15, 23, 12, 18]);
  assert.deepEqual([wrapDegrees(190), wrapDegrees(-180), wrapDegrees(720)], [-170, 180, 0]);
});

test("paths are drawn per floor, and aside by the same side in both directions", () => {
  const there = pathLines(scene, [0, 1], 10);
  const back = pathLines(scene, [1, 0], 10);
  assert.deepEqual(there[0].line, [10, 0, 10, 300]);
  assert.deepEqual(back[0].line, [10, 300, 10, 0]);
  const stairs = pathLines(scene, [1, 3], 0);
  assert.deepEqual(
    stairs.map(({ floor, line }) => [floor, line]),
    [
      [0, [0, 300, 0, 450]],
      [1, [0, 450, 0, 600]],
    ],
  );
  assert.deepEqual(pathLines(scene, [2, 2], 0), []);
  assert.equal(boundingBox(scene, [], 5), null);
});

test("all floors fit side by side, or only the part around the paths", () => {
  const size = { width: 760, height: 500 };
  const content = { scene, rooms: [], reference: [0, 1], goals: [1], agents: [], zoom: "scene", size };
  const wide = layOutFloors(content).placed;
  assert.ok(wide.length === 2 && wide[0].y === wide[1].y && wide[0].x < wide[1].x);
  const narrow = layOutFloors({ ...content, size: { width: 300, height: 600 } }).placed;
  assert.ok(narrow[0].x === narrow[1].x && narrow[0].y < narrow[1].y);
  assert.equal(layOutFloors({ ...content, zoom: "path" }).placed.length, 1);
  assert.equal(star(0, 0, 2, 1).split(" ").length, 10);
});

test("choices list candidates, STOP and returns, with and without memory", () => {
  /** @type {Step} */
  const step = [[5000, 1000, 500, 1500, 2000], [1000, 5000, 500, 1500, 2000], 0, [2], null, [-1, 0], null];
  const choices = listChoices(step, [2, 3], (viewpoint) => scene.viewpoints[viewpoint], 3, false);
  assert.deepEqual(
    choices.map(({ name }) => name),
    ["1 bath", "2 attic", "STOP", "go to hall"],
  );
  assert.deepEqual([choices[0].isChosen, choices[0].isRecalled, choices[1].isReference], [true, true, true]);
  assert.ok(Math.abs(movedShare(choices) - 0.4) < 1e-9);
  const same = listChoices([[9000, 1000], [9000, 1000], 0, [], null, [], null], [1], String, null, true);
  assert.equal(movedShare(same), 0);
  assert.equal(same[1].isReference, true);
  assert.deepEqual([percent(0), percent(0.001), percent(0.634)], ["0 %", "<1 %", "63 %"]);
});

test("attention joins the pieces of a word and keeps every letter of the text", () => {
  const text = "Turn slightly <b>left</b>.";
  const spans = [-1, -1, 0, 4, 5, 11, 11, 13, 17, 21, -1, -1];
  const parts = weightedParts(text, spans, [100, 10, 20, 40, 80, 0]);
  assert.equal(parts.map((part) => part.text).join(""), text);
  assert.deepEqual(
    parts.filter(({ weight }) => weight).map(({ text: word, weight }) => [word, weight]),
    [
      ["Turn", 0.125],
      ["slightly", 0.5],
      ["left", 1],
    ],
  );
  assert.deepEqual(weightedParts(text, null, [1]), [{ text, weight: 0 }]);
});

test("candidates in one direction do not cover each other", () => {
  const points = separate([...Array(5)].map(() => ({ x: 50, y: 100 })), 240);
  assert.equal(new Set(points.map(({ y }) => y)).size, 5);
  assert.ok(points.every(({ y }) => y > 0 && y < 240));
});

test("axes have round numbers, and captions are wrapped", () => {
  assert.deepEqual(ticks(0, 100, 5), [0, 20, 40, 60, 80, 100]);
  assert.deepEqual(ticks(3, 3, 5), [3]);
  assert.deepEqual(wrapWords("one two three", 8), ["one two", "three"]);
});
