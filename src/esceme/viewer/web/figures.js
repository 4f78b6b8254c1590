// Figures for papers: the map and its legend as SVG or PNG, and a contact sheet of all steps.

import { svg } from "./dom.js";
import { wrapDegrees } from "./geometry.js";

const STYLES = [
  ..."paint-order fill fill-opacity stroke stroke-width stroke-dasharray stroke-linecap stroke-linejoin stroke-opacity".split(" "),
  ..."opacity font-size font-weight text-anchor".split(" "),
];

/**
 * Return a copy of a drawing in which computed styles are attributes, so that it needs no style sheet.
 * @param {SVGSVGElement} drawing an element of the document
 */
export function withInlineStyles(drawing) {
  const copy = /** @type {SVGSVGElement} */ (drawing.cloneNode(true));
  copy.removeAttribute("class");
  const originals = drawing.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((element, index) => {
    const style = getComputedStyle(originals[index]);
    for (const name of STYLES) {
      const value = style.getPropertyValue(name);
      if (value && value !== "none" && value !== "normal") element.setAttribute(name, value);
      else if (value === "none") element.setAttribute(name, "none");
    }
    element.removeAttribute("class");
    element.removeAttribute("data-viewpoint");
  });
  copy.querySelectorAll("[r='9'][fill='rgba(0, 0, 0, 0)']").forEach((target) => target.remove());
  return copy;
}

/**
 * Return lines of at most `length` letters.
 * @param {string} text
 * @param {number} length
 */
export function wrapWords(text, length) {
  /** @type {string[]} */
  const lines = [];
  for (const word of text.split(/\s+/).filter(Boolean)) {
    const last = lines.at(-1);
    if (last !== undefined && last.length + word.length < length) lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(word);
  }
  return lines;
}

/**
 * Panorama and choices of one step.
 * @typedef {object} CurrentView
 * @property {string | null} picture
 * @property {number} centre heading at its centre in degrees
 * @property {import("./panorama.js").PanoramaCandidate[]} candidates
 * @property {string} name of the result
 * @property {import("./choices.js").Choice[]} choices
 */

/**
 * Return a figure as an SVG element: title, instruction, panoramas (if there are any), map, legend.
 * @param {object} content
 * @param {SVGSVGElement} content.map with inline styles
 * @param {string} content.title
 * @param {string} content.instruction
 * @param {{name: string, colour: string, details: string}[]} content.legend
 * @param {{label: string, picture: string | null}[][]} [content.strips] panoramas of every agent
 * @param {CurrentView | null} [content.view]
 */
export function composeFigure({ map, title, instruction, legend, strips = [], view = null }) {
  const [margin, width, columns] = [12, 760, 4];
  const figure = svg("svg", { xmlns: "http://www.w3.org/2000/svg", "font-family": "Helvetica, Arial, sans-serif" });
  figure.append(svg("title", {}, title), svg("rect", { width: "100%", height: "100%", fill: "#fff" }));
  let y = margin + 12;
  const line = (/** @type {string} */ text, /** @type {Record<string, string | number>} */ font) => {
    figure.append(svg("text", { x: margin, y, fill: "#1a1a1a", ...font }, text));
    y += 15;
  };
  line(title, { "font-size": 13, "font-weight": "bold" });
  for (const text of wrapWords(instruction, 120)) line(text, { "font-size": 11, "font-style": "italic" });
  const box = map.viewBox.baseVal;
  const height = (width * box.height) / Math.max(box.width, 1);
  for (const [name, value] of Object.entries({ x: margin, y, width, height })) map.setAttribute(name, String(value));
  figure.append(map);
  y += height + 22;
  legend.forEach(({ name, colour, details }, number) => {
    figure.append(
      svg("line", { x1: margin, x2: margin + 26, y1: y - 4, y2: y - 4, stroke: colour, "stroke-width": 3 }),
      svg("text", { x: margin + 34, y, "font-size": 11, fill: "#1a1a1a" }, `${name} `, svg("tspan", { fill: "#5f6468" }, details)),
    );
    y += 18;
    const tiles = strips[number] ?? [];
    const tile = (width - 8 * (columns - 1)) / columns;
    tiles.forEach(({ label, picture }, index) => {
      const [x, top] = [margin + (index % columns) * (tile + 8), y + Math.floor(index / columns) * (tile / 2 + 10)];
      const box = { x, y: top, width: tile, height: tile / 2 };
      figure.append(
        picture
          ? svg("image", { href: picture, ...box, preserveAspectRatio: "none" })
          : svg("rect", { ...box, fill: "#eceeef" }),
        svg("circle", { cx: x + 11, cy: top + 11, r: 8, fill: "#fff", stroke: colour }),
        svg("text", { x: x + 11, y: top + 14.5, "font-size": 10, "font-weight": "bold", "text-anchor": "middle" }, label),
      );
    });
    if (tiles.length) y += Math.ceil(tiles.length / columns) * (tile / 2 + 10) + 10;
  });
  if (view) {
    const height = Math.max(190, 44 + 16 * view.choices.length);
    const part = svg("g", { transform: `translate(${margin} ${y})` }, ...viewElements(view));
    figure.append(part);
    y += height;
  }
  const size = { width: width + 2 * margin, height: y + margin };
  figure.setAttribute("viewBox", `0 0 ${size.width} ${size.height}`);
  for (const [name, value] of Object.entries(size)) figure.setAttribute(name, String(value));
  return figure;
}

/**
 * Return the panorama of the current step with its candidates, and the probabilities as bars.
 * @param {CurrentView} view
 */
function viewElements({ picture, centre, candidates, name, choices }) {
  const [width, height, left, bar] = [364, 182, 384, 90];
  const clip = svg("clipPath", { id: "view" }, svg("rect", { width, height }));
  // The centre of the picture has heading 0; two copies fill every turn.
  const shift = ((((-centre / 360) * width) % width) + width) % width;
  const pictures = [shift - width, shift].map((x) =>
    picture
      ? svg("image", { href: picture, x, y: 0, width, height, preserveAspectRatio: "none" })
      : svg("rect", { x, y: 0, width, height, fill: "#eceeef" }),
  );
  const marks = candidates.map(({ heading, elevation, isRemembered, isChosen }, index) => {
    const [x, y] = [width * (0.5 + wrapDegrees(heading - centre) / 360), height * (0.5 - elevation / 180)];
    return svg(
      "g",
      { transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` },
      svg("circle", { r: 7, fill: isRemembered ? "#f0e442" : "#fff", stroke: "#1a1a1a", "stroke-width": isChosen ? 2.4 : 1 }),
      svg("text", { y: 3.2, "font-size": 9, "font-weight": "bold", "text-anchor": "middle", fill: "#1a1a1a" }, String(index + 1)),
    );
  });
  const text = (/** @type {number} */ x, /** @type {number} */ y, /** @type {string} */ content, weight = "normal") =>
    svg("text", { x, y, "font-size": 10.5, "font-weight": weight, fill: "#1a1a1a" }, content);
  const hasMasked = choices.some(({ masked }) => masked !== null);
  const columns = hasMasked ? [left + 140, left + 270] : [left + 140];
  const rows = choices.flatMap(({ name: label, share, masked, isChosen, isRecalled }, row) => {
    const y = 34 + 16 * row;
    const bars = columns.flatMap((x, column) => {
      const value = column ? (masked ?? 0) : share;
      return [
        svg("rect", { x, y: y - 8, width: Math.max(0.5, bar * value), height: 9, fill: column ? "#9aa0a6" : "#0072b2" }),
        text(x + bar * value + 4, y, `${Math.round(100 * value)} %`),
      ];
    });
    return [
      ...(isRecalled ? [svg("circle", { cx: left + 4, cy: y - 3.5, r: 3.5, fill: "#f0e442", stroke: "#8a7f00" })] : []),
      text(left + 12, y, label.slice(0, 24), isChosen ? "bold" : "normal"),
      ...bars,
    ];
  });
  const heads = choices.length ? columns.map((x, column) => text(x, 14, column ? "memory masked" : name.slice(0, 22), "bold")) : [];
  return [clip, svg("g", { "clip-path": "url(#view)" }, ...pictures, ...marks), ...heads, ...rows];
}

/** @param {SVGSVGElement} figure */
export function figureText(figure) {
  return new XMLSerializer().serializeToString(figure);
}

/**
 * Return a figure as a PNG image with two pixels per unit.
 * @param {SVGSVGElement} figure
 * @returns {Promise<Blob>}
 */
export async function figureImage(figure) {
  const address = URL.createObjectURL(new Blob([figureText(figure)], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = 2 * Number(figure.getAttribute("width"));
    canvas.height = 2 * Number(figure.getAttribute("height"));
    canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((resolve, reject) =>
      canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("the picture is too large")))),
    );
  } finally {
    URL.revokeObjectURL(address);
  }
}

/**
 * Offer a file to the user.
 * @param {Blob} blob
 * @param {string} name
 */
export function saveFile(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = address;
  link.download = name.replace(/[^\w.-]+/g, "_");
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
