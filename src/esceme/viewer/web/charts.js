// Charts: scores over the progress of the evaluation, and the growth of a scene's memory.

import { svg } from "./dom.js";

/** @typedef {import("./types.js").Curve} Curve */

const [WIDTH, HEIGHT] = [320, 176];
const [LEFT, RIGHT, TOP, BOTTOM] = [26, 12, 18, 30];

/**
 * Return about `count` round numbers between two numbers.
 * @param {number} low
 * @param {number} high
 * @param {number} count
 */
export function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5, 10].find((factor) => factor * power >= raw) ?? 10);
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-9; value += step)
    found.push(Math.abs(value) < step * 1e-9 ? 0 : value);
  return found;
}

/**
 * Return a chart with a line and a confidence band per result.
 * @param {Curve} curve
 * @param {string[]} names names of the results
 * @param {(number: number) => boolean} isShown
 */
export function curveChart(curve, names, isShown) {
  const lines = curve.lines.map((line, number) => ({ ...line, number })).filter(({ number }) => isShown(number));
  const xs = lines.flatMap(({ x }) => x);
  const ys = lines.flatMap(({ low, high, y }) => [...low, ...high, ...y]);
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  const [y0, y1] = [Math.min(...ys), Math.max(...ys)];
  const isLog = curve.axis === "visit" && x0 > 0;
  const scaleX = (/** @type {number} */ x) =>
    LEFT +
    (WIDTH - LEFT - RIGHT) * (isLog ? Math.log(x / x0) / (Math.log(x1 / x0) || 1) : (x - x0) / (x1 - x0 || 1));
  const scaleY = (/** @type {number} */ y) => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * ((y - y0) / (y1 - y0 || 1));
  const point = (/** @type {number} */ x, /** @type {number} */ y) => `${scaleX(x).toFixed(1)},${scaleY(y).toFixed(1)}`;
  const label = `${curve.y_label} by ${curve.x_label}. ${lines
    .map(({ number, y }) => `${names[number]}: ${y[0].toFixed(1)} to ${y[y.length - 1].toFixed(1)}.`)
    .join(" ")}`;
  const xTicks = isLog ? [1, 2, 5, 10, 20, 50, 100, 200, 500].filter((x) => x >= x0 && x <= x1) : ticks(x0, x1, 5);
  return svg(
    "svg",
    { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
    ...ticks(y0, y1, 6).map((y) =>
      svg(
        "g",
        { class: "tick" },
        svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: scaleY(y), y2: scaleY(y) }),
        svg("text", { x: LEFT - 4, y: scaleY(y) + 3, "text-anchor": "end" }, String(Number(y.toFixed(2)))),
      ),
    ),
    ...xTicks.map((x) =>
      svg("text", { class: "tick-label", x: scaleX(x), y: HEIGHT - BOTTOM + 12, "text-anchor": "middle" }, String(x)),
    ),
    svg("text", { class: "axis-label", x: 2, y: 10 }, `${curve.y_label}, with 95 % bands`),
    svg("text", { class: "axis-label x", x: (LEFT + WIDTH) / 2, y: HEIGHT - 3, "text-anchor": "middle" }, curve.x_label),
    ...lines.map(({ x, low, high, number }) =>
      svg("polygon", {
        class: `band agent-${number % 5}`,
        points: [...x.map((value, i) => point(value, low[i])), ...x.map((value, i) => point(value, high[i])).reverse()].join(
          " ",
        ),
      }),
    ),
    ...lines.map(({ x, y, number }) =>
      svg("polyline", { class: `line agent-${number % 5}`, points: x.map((value, i) => point(value, y[i])).join(" ") }),
    ),
  );
}

/**
 * Return a piece of the line of a result, for legends.
 * @param {number} number
 */
export function lineSwatch(number) {
  const line = svg("line", { class: `line agent-${number % 5}`, x1: 0, x2: 28, y1: 3, y2: 3 });
  return svg("svg", { class: "line-swatch", viewBox: "0 0 28 6", "aria-hidden": "true" }, line);
}

/**
 * Return a chart of the memory of a scene before every episode, with a tick for each success and failure.
 * @param {number[]} sizes number of remembered viewpoints before every episode, and at the end
 * @param {number} total number of viewpoints of the scene
 * @param {(boolean | null)[]} successes
 * @param {number} current number of the current episode
 */
export function memoryChart(sizes, total, successes, current) {
  const [width, height] = [420, 80];
  const count = Math.max(1, sizes.length - 1);
  const x = (/** @type {number} */ number) => (width * number) / count;
  const y = (/** @type {number} */ size) => height - 14 - ((height - 16) * size) / Math.max(1, total);
  const area = sizes.map((size, number) => `${x(number).toFixed(1)},${y(size).toFixed(1)}`);
  return svg(
    "svg",
    {
      class: "chart growth",
      viewBox: `0 0 ${width} ${height}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": `Memory before episode ${current + 1} of ${count}: ${sizes[current]} of ${total} viewpoints`,
    },
    svg("line", { class: "total", x1: 0, x2: width, y1: y(total), y2: y(total) }),
    svg("polygon", { class: "memory-area", points: `0,${y(0)} ${area.join(" ")} ${width},${y(0)}` }),
    ...successes.map((success, number) =>
      svg("rect", {
        class: success === null ? "unknown" : success ? "succeeded" : "failed",
        x: x(number),
        y: success ? height - 12 : height - 4,
        width: Math.max(0.8, x(1) - 0.8),
        height: success ? 12 : 4,
      }),
    ),
    svg("line", { class: "now", x1: x(current + 0.5), x2: x(current + 0.5), y1: 0, y2: height }),
  );
}

/**
 * Return a bar per step: the share of the probability that memory moved. Bars of steps at which the first choice changed
 * are emphasized.
 * @param {({moved: number, isChanged: boolean} | null)[]} effects
 * @param {number} last number of the last step
 * @param {(step: number) => void} onStep
 */
export function effectChart(effects, last, onStep) {
  const steps = Math.max(1, last);
  const width = Math.min(0.6, 0.03 * steps);
  const changed = effects.flatMap((effect, step) => (effect?.isChanged ? [step] : []));
  return svg(
    "svg",
    {
      class: "effects",
      viewBox: `0 0 ${steps} 1`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": `What memory moved at every step. ${changed.length ? `It changed the first choice at ${changed.map((step) => `step ${step}`).join(", ")}` : "It changed no first choice"}.`,
    },
    ...effects.map((effect, step) =>
      svg(
        "rect",
        {
          class: effect?.isChanged ? "effect changed" : "effect",
          x: step - width / 2,
          width,
          y: 1 - Math.max(0.04, effect?.moved ?? 0),
          height: Math.max(0.04, effect?.moved ?? 0),
          onclick: () => onStep(step),
        },
        svg("title", {}, `step ${step}: memory moves ${Math.round(100 * (effect?.moved ?? 0))} %`),
      ),
    ),
  );
}
