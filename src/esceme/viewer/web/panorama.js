// The panorama of a viewpoint: an equirectangular picture that can be dragged, with a button at every candidate.

import { html } from "./dom.js";
import { wrapDegrees } from "./geometry.js";

/**
 * @typedef {object} PanoramaContent
 * @property {string | null} picture address of the picture, or null
 * @property {number} heading heading of the agent in degrees
 * @property {string} label description for screen readers
 * @property {string} note text where there is no picture
 * @property {PanoramaCandidate[]} candidates
 */

/**
 * @typedef {object} PanoramaCandidate
 * @property {number} viewpoint
 * @property {string} name
 * @property {number} heading
 * @property {number} elevation
 * @property {string} share text such as `63 %`, or empty
 * @property {boolean} isRemembered
 * @property {boolean} isChosen
 */

const KEY_TURN = 15;
/** Least distance of two candidates in pixels. */
const DISTANCE = 34;

/** Draggable panorama. `onTurn` receives the heading at its centre, `onPick` the viewpoint of a chosen candidate. */
export class Panorama {
  /**
   * @param {(degrees: number) => void} onTurn
   * @param {(viewpoint: number) => void} onPick
   */
  constructor(onTurn, onPick) {
    this.onTurn = onTurn;
    this.onPick = onPick;
    this.centre = 0;
    this.size = { width: 0, height: 0 };
    /** @type {PanoramaContent | null} */
    this.content = null;
    this.layer = html("div", { class: "candidates" });
    this.note = html("p", { class: "no-picture" });
    this.element = html("div", { class: "panorama", role: "group", tabindex: 0 }, this.note, this.layer);
    this.element.addEventListener("keydown", (event) => {
      if (!event.shiftKey || !["ArrowLeft", "ArrowRight"].includes(event.key)) return;
      event.preventDefault();
      event.stopPropagation();
      this.turnTo(this.centre + (event.key === "ArrowLeft" ? -KEY_TURN : KEY_TURN), true);
    });
    this.#listenToDrags();
    new ResizeObserver(() => {
      this.#measure();
      this.#place();
    }).observe(this.element);
  }

  /**
   * @param {PanoramaContent} content
   * @param {number} centre heading at the centre in degrees
   */
  show(content, centre) {
    const isSame = this.content?.picture === content.picture;
    this.content = content;
    if (!isSame) this.element.style.backgroundImage = content.picture ? `url("${content.picture}")` : "";
    this.note.hidden = content.picture !== null;
    this.note.textContent = content.note;
    this.element.setAttribute("aria-label", content.label);
    const hasFocus = this.layer.contains(document.activeElement);
    this.layer.replaceChildren(
      ...content.candidates.map((candidate, index) => {
        const kind = `${candidate.isRemembered ? " remembered" : ""}${candidate.isChosen ? " chosen" : ""}`;
        const facts = [
          candidate.name,
          candidate.share,
          candidate.isRemembered ? "remembered" : "",
          candidate.isChosen ? "chosen" : "",
        ].filter(Boolean);
        return html(
          "button",
          {
            type: "button",
            class: `candidate${kind}`,
            title: facts.join(", "),
            "aria-label": `Candidate ${index + 1}: ${facts.join(", ")}`,
            onclick: () => this.onPick(candidate.viewpoint),
          },
          html("span", { class: "number" }, String(index + 1)),
          candidate.share ? html("span", { class: "share" }, candidate.share) : null,
        );
      }),
    );
    if (hasFocus) this.element.focus({ preventScroll: true }); // the candidate with the focus is gone
    this.turnTo(centre, false);
  }

  /**
   * @param {number} degrees
   * @param {boolean} isByUser
   */
  turnTo(degrees, isByUser) {
    this.centre = wrapDegrees(degrees);
    this.#place();
    if (isByUser) this.onTurn(this.centre);
  }

  /** Keep the size of the element: reading it makes the browser lay out the page. */
  #measure() {
    this.size = { width: this.element.clientWidth, height: this.element.clientHeight };
  }

  #place() {
    if (!this.size.width) this.#measure();
    const { width, height } = this.size;
    const turn = 2 * height; // width of a whole turn
    // The centre of the picture has heading 0.
    this.element.style.backgroundPosition = `${width / 2 - turn / 2 - (this.centre / 360) * turn}px 0`;
    const points = (this.content?.candidates ?? []).map(({ heading, elevation }) => ({
      x: width / 2 + (wrapDegrees(heading - this.centre) / 360) * turn,
      y: height * (0.5 - elevation / 180),
    }));
    separate(points, height).forEach(({ x, y }, index) => {
      const button = /** @type {HTMLElement} */ (this.layer.children[index]);
      button.style.left = `${x}px`;
      button.style.top = `${y}px`;
      button.hidden = x < -8 || x > width + 8;
    });
  }

  #listenToDrags() {
    /** @type {{x: number, centre: number} | null} */
    let drag = null;
    this.element.addEventListener("pointerdown", (event) => {
      if (/** @type {Element} */ (event.target).closest("button")) return;
      drag = { x: event.clientX, centre: this.centre };
      this.element.setPointerCapture(event.pointerId);
    });
    this.element.addEventListener("pointermove", (event) => {
      if (!drag) return;
      const turn = 2 * this.element.clientHeight;
      this.turnTo(drag.centre - ((event.clientX - drag.x) / turn) * 360, true);
    });
    for (const name of ["pointerup", "pointercancel"]) this.element.addEventListener(name, () => (drag = null));
  }
}

/**
 * Return points that do not overlap: a point that is too near to an earlier one moves down or up.
 * @param {{x: number, y: number}[]} points
 * @param {number} height
 */
export function separate(points, height) {
  /** @type {{x: number, y: number}[]} */
  const placed = [];
  for (const { x, y } of points) {
    const isFree = (/** @type {number} */ at) =>
      placed.every((other) => Math.abs(other.x - x) > DISTANCE || Math.abs(other.y - at) > DISTANCE);
    const rows = Array.from({ length: 20 }, (_, n) => (n % 2 ? y - (DISTANCE + 1) * ((n + 1) / 2) : y + (DISTANCE + 1) * (n / 2)));
    const inside = rows.filter((at) => at > DISTANCE / 2 && at < height - DISTANCE / 2);
    placed.push({ x, y: inside.find(isFree) ?? y });
  }
  return placed;
}
