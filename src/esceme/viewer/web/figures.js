// Figures for papers: the map and its legend as SVG or PNG, and a contact sheet of all steps.

import { svg } from "./dom.js";

const STYLES = [
  ..."fill fill-opacity stroke stroke-width stroke-dasharray stroke-linecap stroke-linejoin stroke-opacity".split(" "),
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
 * Return a figure as an SVG element: title, instruction, panoramas (if there are any), map, legend.
 * @param {object} content
 * @param {SVGSVGElement} content.map with inline styles
 * @param {string} content.title
 * @param {string} content.instruction
 * @param {{name: string, colour: string, details: string}[]} content.legend
 * @param {{label: string, picture: string}[][]} [content.strips] panoramas of every agent
 */
export function composeFigure({ map, title, instruction, legend, strips = [] }) {
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
      figure.append(
        svg("image", { href: picture, x, y: top, width: tile, height: tile / 2, preserveAspectRatio: "none" }),
        svg("circle", { cx: x + 11, cy: top + 11, r: 8, fill: "#fff", stroke: colour }),
        svg("text", { x: x + 11, y: top + 14.5, "font-size": 10, "font-weight": "bold", "text-anchor": "middle" }, label),
      );
    });
    if (tiles.length) y += Math.ceil(tiles.length / columns) * (tile / 2 + 10) + 10;
  });
  const size = { width: width + 2 * margin, height: y + margin };
  figure.setAttribute("viewBox", `0 0 ${size.width} ${size.height}`);
  for (const [name, value] of Object.entries(size)) figure.setAttribute(name, String(value));
  return figure;
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
