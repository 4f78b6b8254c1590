// The scene from above: floors, memory, reference path and the paths of all agents up to a step.

import { setAttributes, svg } from "./dom.js";
import { boundingBox, pathLines } from "./geometry.js";
import { ageClass } from "./memory.js";

/** @typedef {import("./types.js").Scene} Scene */
/** @typedef {import("./memory.js").Moment} Moment */
/** @typedef {import("./geometry.js").Box} Box */

/**
 * @typedef {object} MapContent
 * @property {Scene} scene
 * @property {number[]} reference
 * @property {number[]} goals
 * @property {string[]} rooms names of kinds of rooms
 * @property {{number: number, path: number[]}[]} agents number of the result, viewpoints of its poses
 * @property {string} zoom `scene` or `path`
 * @property {{width: number, height: number}} size space for the map in pixels
 */

/**
 * @typedef {object} MapStep
 * @property {number} step
 * @property {Map<number, Moment>} memory
 * @property {number} order number of the episode in the scene
 * @property {{viewpoint: number, label: string, isRecalled: boolean, isChosen: boolean}[]} candidates
 * @property {number[][]} routes planned routes, the best first
 */

/** Size of a metre on the map in SVG units: at most, and at least. */
const [MAX_SCALE, MIN_SCALE] = [26, 9];
const GAP = 26;
const HEADING = 18;
const MARGIN = 130;
const SUCCESS_RADIUS = 300;
/** Width of the ground around edges, and of the floor of rooms, in centimetres. */
const [GROUND, ROOM] = [180, 210];
/** Width of a letter and height of a line of the names of rooms. */
const [LETTER, LINE] = [5.2, 11];
/** Marker of each agent at its position: corners of a polygon of radius 7; none is a disc. */
const MARKERS = ["-5,-5 5,-5 5,5 -5,5", "0,-7 6,4 -6,4", "", "0,-7 7,0 0,7 -7,0", "0,7 6,-4 -6,-4"];

/**
 * Return where floors are placed, in a row or in a column, whichever is larger: scale in units per centimetre, and for
 * every floor its box and its offset.
 * @param {MapContent} content
 */
export function layOutFloors(content) {
  const { scene } = content;
  const onPaths = [...content.reference, ...content.goals, ...content.agents.flatMap((agent) => agent.path)];
  /** @type {{floor: number, box: Box, x: number, y: number}[]} */
  const placed = [];
  scene.heights.forEach((_, floor) => {
    const members = scene.viewpoints.map((_, number) => number).filter((number) => scene.floors[number] === floor);
    const part = onPaths.filter((viewpoint) => scene.floors[viewpoint] === floor);
    const isPart = content.zoom === "path" && onPaths.length > 0;
    const box = boundingBox(scene, isPart ? part : members, isPart ? 3 * MARGIN : MARGIN);
    if (!box) return;
    const goals = content.goals.filter((viewpoint) => scene.floors[viewpoint] === floor);
    const circles = boundingBox(scene, goals, SUCCESS_RADIUS + 10);
    placed.push({ floor, box: circles ? union(box, circles) : box, x: 0, y: 0 });
  });
  const sizes = placed.map(({ box }) => ({ w: (box.east - box.west) / 100, h: (box.north - box.south) / 100 }));
  const sum = (/** @type {"w" | "h"} */ side) => sizes.reduce((total, size) => total + size[side], 0) || 1;
  const largest = (/** @type {"w" | "h"} */ side) => Math.max(1, ...sizes.map((size) => size[side]));
  const { width: roomX, height: roomY } = content.size;
  const [gaps, headings] = [GAP * (placed.length - 1), HEADING * placed.length];
  const inRow = Math.min((roomX - gaps) / sum("w"), (roomY - HEADING) / largest("h"));
  const inColumn = Math.min(roomX / largest("w"), (roomY - gaps - headings) / sum("h"));
  const isRow = inRow >= inColumn;
  const scale = Math.min(MAX_SCALE, Math.max(MIN_SCALE, inRow, inColumn)) / 100;
  let [x, y, width, height] = [0, HEADING, 0, 0];
  placed.forEach((entry, index) => {
    [entry.x, entry.y] = [x, y];
    const [w, h] = [100 * scale * sizes[index].w, 100 * scale * sizes[index].h];
    [width, height] = [Math.max(width, x + w), Math.max(height, y + h)];
    if (isRow) x += w + GAP;
    else y += h + GAP + HEADING;
  });
  return { scale, placed, width: Math.max(width, 200), height: Math.max(height, 100) };
}

/** @type {MapContent} */
const EMPTY = {
  scene: { id: "", viewpoints: [], positions: [], floors: [], heights: [], neighbours: [], rooms: null, regions: null },
  rooms: [],
  reference: [],
  goals: [],
  agents: [],
  zoom: "scene",
  size: { width: 760, height: 520 },
};

/** Map of one episode. `show` draws an episode, `showStep` moves everything to a step. */
export class SceneMap {
  content = EMPTY;
  layout = layOutFloors(EMPTY);

  /** @param {(viewpoint: number | null) => void} onPoint called with the viewpoint under the pointer */
  constructor(onPoint) {
    this.element = svg("svg", { class: "map", role: "img", preserveAspectRatio: "xMidYMid meet" });
    this.element.addEventListener("pointerover", (event) => {
      const target = /** @type {Element} */ (event.target).closest("[data-viewpoint]");
      onPoint(target ? Number(target.getAttribute("data-viewpoint")) : null);
    });
    /** @type {Map<number, SVGElement>} */
    this.discs = new Map();
    /** @type {Map<string, SVGElement>} */
    this.edges = new Map();
    /** @type {{number: number, path: number[], walked: Map<number, SVGPathElement>, marker: SVGElement}[]} */
    this.agents = [];
    this.overlay = svg("g");
    this.routes = svg("g");
  }

  /** @param {MapContent} content */
  show(content) {
    this.content = content;
    this.layout = layOutFloors(content);
    const { placed, scale, width, height } = this.layout;
    this.element.replaceChildren();
    setAttributes(this.element, { viewBox: `-6 -2 ${width + 12} ${height + 10}` });
    this.element.style.height = `${Math.max(280, Math.min(content.size.height, height + 10))}px`;
    this.discs.clear();
    this.edges.clear();
    const offsets = content.agents.map((_, index) => ((index + 1) * 4.2) / scale);
    this.agents = content.agents.map(({ number, path }) => ({
      number,
      path,
      walked: new Map(),
      marker: this.#marker(number),
    }));
    const lines = [pathLines(content.scene, content.reference, 0)];
    content.agents.forEach(({ path }, index) => lines.push(pathLines(content.scene, path, offsets[index])));
    for (const { floor, box, x, y } of placed) {
      const clip = `clip-${floor}`;
      const size = { width: (box.east - box.west) * scale, height: (box.north - box.south) * scale };
      const part = svg("g", { "clip-path": content.zoom === "path" ? `url(#${clip})` : null });
      this.element.append(
        svg("clipPath", { id: clip }, svg("rect", { x, y, ...size })),
        svg("text", { class: "floor-name", x, y: y - 6 }, this.#floorName(floor)),
        part,
      );
      this.#drawFloor(part, floor);
      this.#drawPaths(part, floor, lines);
    }
    this.routes = svg("g");
    this.overlay = svg("g");
    this.element.append(this.routes, this.overlay, ...this.agents.map(({ marker }) => marker), this.#scaleBar());
  }

  /** @param {MapStep} step */
  showStep({ step, memory, order, candidates, routes }) {
    for (const [viewpoint, disc] of this.discs) {
      const moment = memory.get(viewpoint);
      const name = moment ? `memory ${ageClass(moment, order)}` : "memory";
      if (disc.getAttribute("class") !== name) disc.setAttribute("class", name);
    }
    for (const [key, edge] of this.edges) {
      const [a, b] = key.split("-").map(Number);
      const name = memory.has(a) && memory.has(b) ? "edge remembered" : "edge";
      if (edge.getAttribute("class") !== name) edge.setAttribute("class", name);
    }
    for (const agent of this.agents) {
      for (const path of agent.walked.values()) {
        const parts = /** @type {any} */ (path).parts.filter((/** @type {any} */ part) => part.step <= step);
        path.setAttribute("d", parts.map((/** @type {any} */ part) => part.data).join(""));
      }
      const [x, y] = this.point(agent.path[Math.min(step, agent.path.length - 1)]);
      agent.marker.setAttribute("transform", `translate(${x} ${y})`);
    }
    this.overlay.replaceChildren(
      ...candidates.map(({ viewpoint, label, isRecalled, isChosen }) => {
        const [x, y] = this.point(viewpoint);
        const kind = `candidate${isRecalled ? " recalled" : ""}${isChosen ? " chosen" : ""}`;
        return svg(
          "g",
          { class: kind, transform: `translate(${x} ${y})`, "data-viewpoint": viewpoint },
          svg("circle", { r: 8 }),
          svg("text", { y: 3.4 }, label),
        );
      }),
    );
    this.routes.replaceChildren(
      ...routes.map((route, rank) => {
        const lines = pathLines(this.content.scene, route, 0).map(({ floor, line: [x1, y1, x2, y2] }) =>
          [this.#place(floor, x1, y1), this.#place(floor, x2, y2)].map((point) => point.join(",")).join("L"),
        );
        return svg("path", { class: rank ? "planned" : "planned best", d: lines.map((line) => `M${line}`).join("") });
      }),
    );
  }

  /**
   * Emphasize one planned route; null: the best.
   * @param {number | null} rank
   */
  emphasize(rank) {
    [...this.routes.children].forEach((route, index) => route.classList.toggle("best", index === (rank ?? 0)));
  }

  /**
   * Return the point of a viewpoint on the map.
   * @param {number} viewpoint
   * @returns {[number, number]}
   */
  point(viewpoint) {
    const { scene } = this.content;
    const [east, north] = [scene.positions[3 * viewpoint], scene.positions[3 * viewpoint + 1]];
    return this.#place(scene.floors[viewpoint], east, north);
  }

  /**
   * @param {number} floor
   * @param {number} east
   * @param {number} north
   * @returns {[number, number]}
   */
  #place(floor, east, north) {
    const { placed, scale } = this.layout;
    const entry = placed.find((candidate) => candidate.floor === floor) ?? placed[0];
    const round = (/** @type {number} */ value) => Math.round(10 * value) / 10;
    return [round(entry.x + (east - entry.box.west) * scale), round(entry.y + (entry.box.north - north) * scale)];
  }

  /** @param {number} floor */
  #floorName(floor) {
    const { scene } = this.content;
    if (scene.heights.length < 2) return "";
    const height = scene.heights[floor] / 100;
    return floor ? `Floor ${floor + 1} (${height >= 0 ? "+" : ""}${height.toFixed(1)} m)` : "Floor 1";
  }

  /**
   * @param {SVGElement} part
   * @param {number} floor
   */
  #drawFloor(part, floor) {
    const { scene } = this.content;
    const { scale } = this.layout;
    const ground = [];
    const edges = [];
    for (let a = 0; a < scene.viewpoints.length; a++)
      for (const b of scene.neighbours[a]) {
        if (b < a || (scene.floors[a] !== floor && scene.floors[b] !== floor)) continue;
        const [lineOnFloor] = pathLines(scene, [a, b], 0).filter((line) => line.floor === floor);
        const [x1, y1] = this.#place(floor, lineOnFloor.line[0], lineOnFloor.line[1]);
        const [x2, y2] = this.#place(floor, lineOnFloor.line[2], lineOnFloor.line[3]);
        ground.push(`M${x1},${y1}L${x2},${y2}`);
        const edge = svg("line", { class: "edge", x1, y1, x2, y2 });
        if (scene.floors[a] === scene.floors[b]) this.edges.set(`${a}-${b}`, edge);
        else edge.setAttribute("class", "edge stairs");
        edges.push(edge);
      }
    part.append(svg("path", { class: "ground", d: ground.join(""), "stroke-width": GROUND * scale }));
    const names = this.#drawRooms(part, floor);
    part.append(...edges);
    scene.viewpoints.forEach((name, number) => {
      if (scene.floors[number] !== floor) return;
      const [x, y] = this.point(number);
      const disc = svg("circle", { class: "memory", cx: x, cy: y, r: 6 });
      this.discs.set(number, disc);
      part.append(
        disc,
        svg("circle", { class: "viewpoint", cx: x, cy: y, r: 2 }),
        svg("circle", { class: "target", cx: x, cy: y, r: 9, "data-viewpoint": number }, svg("title", {}, name)),
      );
    });
    part.append(...names);
  }

  /**
   * Draw the rooms of a floor, where they are known; return their names, which do not cover each other.
   * @param {SVGElement} part
   * @param {number} floor
   */
  #drawRooms(part, floor) {
    const { scene, rooms } = this.content;
    const { scale } = this.layout;
    /** @type {Map<number, number[]>} */
    const members = new Map();
    scene.regions?.forEach((region, number) => {
      if (region >= 0 && scene.floors[number] === floor) members.set(region, [...(members.get(region) ?? []), number]);
    });
    const [names, boxes] = [/** @type {SVGElement[]} */ ([]), /** @type {number[][]} */ ([])];
    for (const [region, numbers] of [...members].sort((a, b) => b[1].length - a[1].length)) {
      const points = numbers.map((number) => this.point(number));
      const lines = numbers.flatMap((a) =>
        scene.neighbours[a].filter((b) => b > a && scene.regions?.[b] === region && scene.floors[b] === floor).map((b) => [a, b]),
      );
      const d = [
        ...points.map(([x, y]) => `M${x},${y}h0.01`),
        ...lines.map(([a, b]) => `M${this.point(a).join(",")}L${this.point(b).join(",")}`),
      ].join("");
      part.append(
        svg("path", { class: "room-wall", d, "stroke-width": ROOM * scale + 2 }),
        svg("path", { class: "room", d, "stroke-width": ROOM * scale }),
      );
      const name = rooms[scene.rooms?.[numbers[0]] ?? -1] ?? "";
      const x = points.reduce((sum, point) => sum + point[0], 0) / points.length;
      const y = Math.min(...points.map((point) => point[1])) - 10;
      const half = (name.length * LETTER) / 2;
      const isFree = boxes.every(([left, top, right]) => x + half < left || x - half > right || Math.abs(y - top) > LINE);
      if (!name || !isFree) continue;
      boxes.push([x - half, y, x + half]);
      names.push(svg("text", { class: "room-name", x: x.toFixed(1), y: y.toFixed(1) }, name));
    }
    return names;
  }

  /**
   * @param {SVGElement} part
   * @param {number} floor
   * @param {ReturnType<typeof pathLines>[]} lines of the reference path, then of the agents
   */
  #drawPaths(part, floor, lines) {
    const { scene, reference, goals } = this.content;
    const { scale } = this.layout;
    const parts = lines.map((line) =>
      line
        .filter((entry) => entry.floor === floor)
        .map(({ line: [x1, y1, x2, y2], step }) => {
          const [a, b] = [this.#place(floor, x1, y1), this.#place(floor, x2, y2)];
          return { step, data: `M${a.join(",")}L${b.join(",")}` };
        }),
    );
    const join = (/** @type {{data: string}[]} */ entries) => entries.map(({ data }) => data).join("");
    for (const goal of goals.filter((viewpoint) => scene.floors[viewpoint] === floor)) {
      const [cx, cy] = this.point(goal);
      part.append(svg("circle", { class: "success", cx, cy, r: SUCCESS_RADIUS * scale }));
    }
    part.append(svg("path", { class: "path reference", d: join(parts[0]) }));
    this.agents.forEach((agent, index) => {
      const walked = svg("path", { class: `path walked agent-${agent.number % 5}`, d: "" });
      /** @type {any} */ (walked).parts = parts[index + 1];
      agent.walked.set(floor, walked);
      part.append(svg("path", { class: `path ahead agent-${agent.number % 5}`, d: join(parts[index + 1]) }), walked);
    });
    if (reference.length && scene.floors[reference[0]] === floor) {
      const [cx, cy] = this.point(reference[0]);
      part.append(
        svg("circle", { class: "start", cx, cy, r: 5.5 }),
        svg("circle", { class: "start-dot", cx, cy, r: 2.2 }),
      );
    }
    for (const goal of goals.filter((viewpoint) => scene.floors[viewpoint] === floor)) {
      const [x, y] = this.point(goal);
      part.append(svg("polygon", { class: "goal", points: star(x, y, 9, 4) }));
    }
  }

  /** @param {number} number */
  #marker(number) {
    const corners = MARKERS[number % MARKERS.length];
    const shape = corners ? svg("polygon", { points: corners }) : svg("circle", { r: 6 });
    return svg("g", { class: `marker agent-${number % 5}` }, shape);
  }

  #scaleBar() {
    const { scale, width, height } = this.layout;
    const length = 200 * scale;
    const [x, y] = [width - length - 24, height + 2];
    return svg(
      "g",
      { class: "scale", transform: `translate(${x} ${y})` },
      svg("path", { d: `M0,-3V3M0,0H${length}M${length},-3V3` }),
      svg("text", { x: length + 4, y: 3 }, "2 m"),
    );
  }
}

/**
 * Return the points of a star with five corners.
 * @param {number} x
 * @param {number} y
 * @param {number} outer
 * @param {number} inner
 */
export function star(x, y, outer, inner) {
  const points = [];
  for (let corner = 0; corner < 10; corner++) {
    const angle = (Math.PI * corner) / 5 - Math.PI / 2;
    const radius = corner % 2 ? inner : outer;
    points.push(`${(x + radius * Math.cos(angle)).toFixed(1)},${(y + radius * Math.sin(angle)).toFixed(1)}`);
  }
  return points.join(" ");
}

/**
 * Return the smallest box around two boxes.
 * @param {Box} a
 * @param {Box} b
 * @returns {Box}
 */
function union(a, b) {
  return {
    west: Math.min(a.west, b.west),
    south: Math.min(a.south, b.south),
    east: Math.max(a.east, b.east),
    north: Math.max(a.north, b.north),
  };
}
