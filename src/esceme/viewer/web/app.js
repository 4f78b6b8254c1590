// The page: list of episodes, map, panorama, choices, timelines and curves, all drawn from one state.

import { curveChart, effectChart, lineSwatch, memoryChart } from "./charts.js";
import { choiceTable, listChoices, memorySentence, percent, routeTable } from "./choices.js";
import { html } from "./dom.js";
import { FILTERS, SORTS, gainOf, listEpisodes, scoreOf } from "./episodes.js";
import { composeFigure, figureImage, figureText, saveFile, withInlineStyles } from "./figures.js";
import { directionTo, viewHeading } from "./geometry.js";
import { instructionElements, weightedParts } from "./instruction.js";
import { SceneMap } from "./map.js";
import { describeAge, describeMemory, memorySizes, remembered } from "./memory.js";
import { Panorama } from "./panorama.js";
import { DEFAULTS, decodeState, encodeState, isShown, toggleShown } from "./state.js";
import { memoryEffects, verdict } from "./verdict.js";

/** @typedef {import("./types.js").Data} Data */
/** @typedef {import("./types.js").Trajectory} Trajectory */
/** @typedef {import("./state.js").State} State */
/** @typedef {import("./memory.js").Moment} Moment */

const STEP_MILLISECONDS = 900;
const SERIES_MILLISECONDS = 500;
/** Delay before the state is written to the address; browsers limit how often that may happen. */
const ADDRESS_MILLISECONDS = 250;
/** Number of episodes that are listed at once; the others follow. */
const LIST_PART = 100;
/** @type {Record<string, string>} */
const LABELS = { ndtw: "nDTW" };
const HELP = [
  ["← →", "step back and forward"],
  ["Home End", "first and last step"],
  ["space", "play and pause"],
  ["j k", "next and previous episode of the list"],
  ["a", "next result"],
  ["m", "next step at which memory changes the first choice"],
  ["1 … 9", "candidate of the panorama"],
  ["shift ← →", "turn the panorama, where it has the focus"],
];

/** The page of results, and the base of the live page. */
export class App {
  map = new SceneMap((viewpoint) => this.#point(viewpoint));
  panorama = new Panorama(
    (degrees) => this.set({ turn: degrees.toFixed(0) }),
    (viewpoint) => this.onPick(viewpoint),
  );
  agentsElement = html("fieldset", { class: "agents" });
  listElement = html("ol", { class: "episodes" });
  countElement = html("p", { class: "count", role: "status" });
  titleElement = html("h2", { id: "episode-title" });
  scoresElement = html("table", { class: "scores" });
  instructionElement = html("p", { class: "instruction", lang: "" });
  verdictElement = html("p", { class: "verdict" });
  placeElement = html("h3", { class: "place" });
  statusElement = html("p", { class: "status" });
  announcement = html("p", { class: "visually-hidden", role: "status" });
  decisionElement = html("div", { class: "decision" });
  memoryElement = html("p", { class: "memory-line" });
  stepRange = html("input", {
    type: "range",
    min: 0,
    "aria-label": "Step",
    oninput: (/** @type {any} */ event) => this.set({ step: Number(event.target.value) }),
  });
  stepLabel = html("output", { class: "step-label" });
  effectElement = html("div", { class: "effect-box" });
  playButton = this.#button("Play", "Play (space)", () => this.togglePlay());
  seriesText = html("p", { class: "hint" });
  seriesElement = html("div", { class: "growth-box" });
  seriesRange = html("input", {
    type: "range",
    min: 0,
    "aria-label": "Episode of this scene, in the order of the evaluation",
    oninput: (/** @type {any} */ event) => this.#goToOrder(Number(event.target.value)),
  });
  seriesLabel = html("output", { class: "step-label" });
  seriesButton = this.#button("Play", "Play all episodes of this scene", () => this.toggleSeries());
  curveElement = html("div", { class: "curve-box" });
  sideElement = html("div", { class: "live-box" });

  /** @param {Data} data */
  constructor(data) {
    this.data = data;
    /** @type {State} */
    this.defaults = {
      ...DEFAULTS,
      agent: data.live ? 0 : Math.max(0, data.results.length - 1),
      episode: data.episodes[0]?.id ?? "",
      measure: data.curves[0]?.measure ?? DEFAULTS.measure,
    };
    this.state = decodeState(location.hash.slice(1), this.defaults);
    /** @type {number[]} */
    this.list = [];
    this.timer = 0;
    this.addressTimer = 0;
    /** @type {Map<number, Moment>} Memory before the current step, and the number of the episode in its scene. */
    this.memory = new Map();
    this.order = 0;
    /** @type {ReturnType<typeof listChoices>} */
    this.choices = [];
    this.#build();
    addEventListener("hashchange", () => {
      this.state = decodeState(location.hash.slice(1), this.defaults);
      this.render();
    });
    addEventListener("keydown", (event) => this.#onKey(event));
    addEventListener("resize", () => this.set({ zoom: this.state.zoom }));
    this.render();
  }

  // -- what is shown -------------------------------------------------------------------------------------

  /** Number of the current episode. */
  get episodeNumber() {
    const number = this.data.episodes.findIndex((episode) => episode.id === this.state.episode);
    return Math.max(0, number);
  }

  get episode() {
    return this.data.episodes[this.episodeNumber];
  }

  get scene() {
    return this.data.scenes[this.episode.scene];
  }

  /** Number of the result whose decisions are shown. */
  get agent() {
    return Math.min(this.state.agent, this.data.results.length - 1);
  }

  /**
   * Trajectory of a result in the current episode; undefined if it has none.
   * @param {number} result
   * @returns {Trajectory | undefined}
   */
  trajectory(result) {
    return this.data.results[result]?.trajectories[this.episodeNumber];
  }

  /** Number of the last step of all results that are drawn. */
  get lastStep() {
    const lengths = this.data.results.map((_, number) =>
      isShown(this.state, number) ? (this.trajectory(number)?.poses.length ?? 2) / 2 : 1,
    );
    return Math.max(0, ...lengths.map((length) => length - 1));
  }

  get step() {
    return Math.min(this.state.step, this.lastStep);
  }

  /**
   * Name of a viewpoint: its room where that is known, else the beginning of its id.
   * @param {number} viewpoint
   */
  nameOf(viewpoint) {
    const room = this.scene.rooms?.[viewpoint] ?? -1;
    return room >= 0 ? this.data.rooms[room] : this.scene.viewpoints[viewpoint].slice(0, 8);
  }

  /**
   * Change the state, draw what depends on it, and write it to the address.
   * @param {Partial<State>} change
   */
  set(change) {
    const isEpisode = change.episode !== undefined && change.episode !== this.state.episode;
    this.state = { ...this.state, ...(isEpisode ? { step: 0, turn: "" } : {}), ...change };
    const keys = new Set(Object.keys(change));
    const has = (/** @type {string[]} */ ...names) => names.some((name) => keys.has(name));
    if (has("theme", "scene", "show", "text")) this.#renderTheme();
    if (has("scene", "show", "text", "sort")) this.renderList();
    else if (isEpisode) this.#markCurrent();
    if (has("hidden", "agent")) this.#renderAgents();
    if (has("episode", "hidden", "zoom")) this.#renderEpisode();
    if (has("episode", "agent")) this.#renderSeries();
    if (has("episode", "agent", "hidden")) this.#renderVerdict();
    if (has("measure", "axis", "hidden")) this.#renderCurves();
    if (has("episode", "step", "agent", "hidden", "zoom", "turn")) this.#renderStep();
    clearTimeout(this.addressTimer);
    this.addressTimer = window.setTimeout(() => this.#writeAddress(), ADDRESS_MILLISECONDS);
  }

  #writeAddress() {
    const text = encodeState(this.state, this.defaults);
    if (text !== location.hash.slice(1)) history.replaceState(null, "", `#${text}`);
  }

  /** Draw everything. */
  render() {
    this.#renderTheme();
    this.#renderAgents();
    this.renderList();
    this.#renderEpisode();
    this.#renderVerdict();
    this.#renderSeries();
    this.#renderCurves();
    this.#renderStep();
  }

  // -- elements ------------------------------------------------------------------------------------------

  #build() {
    const { data } = this;
    this.#buildAgents();
    const help = html(
      "dialog",
      { class: "help", "aria-label": "Keys" },
      html("h2", {}, "Keys"),
      html("dl", {}, ...HELP.flatMap(([keys, text]) => [html("dt", {}, keys), html("dd", {}, text)])),
      html("form", { method: "dialog" }, html("button", {}, "Close")),
    );
    document.body.append(
      html("a", { class: "skip", href: "#", onclick: (/** @type {Event} */ event) => this.#skip(event) }, "Skip to the episode"),
      html(
        "header",
        {},
        html("h1", {}, "ESceme ", html("small", {}, `${data.task} ${data.split}`)),
        this.agentsElement,
        html(
          "div",
          { class: "tools" },
          this.#select("Colours", "theme", { auto: "auto", light: "light", dark: "dark" }),
          this.#figureMenu(),
          this.#button("?", "Keys", () => help.showModal()),
        ),
      ),
      this.sideElement,
      html(
        "main",
        {},
        this.#listSection(),
        html("div", { class: "centre" }, this.#episodeSection(), this.#seriesSection()),
        this.#detailSection(),
      ),
      help,
      this.announcement,
    );
  }

  /** @param {Event} event */
  #skip(event) {
    event.preventDefault();
    this.stepRange.focus();
  }

  /**
   * @param {string} text
   * @param {string} label
   * @param {() => void} action
   */
  #button(text, label, action) {
    return html("button", { type: "button", "aria-label": label, title: label, onclick: action }, text);
  }

  /**
   * @param {string} label
   * @param {keyof State} name
   * @param {Record<string, string>} options
   */
  #select(label, name, options) {
    const select = html(
      "select",
      { "data-state": name, onchange: (/** @type {any} */ event) => this.set({ [name]: event.target.value }) },
      ...Object.entries(options).map(([value, text]) => html("option", { value }, text)),
    );
    select.value = String(this.state[name]);
    return html("label", {}, `${label} `, select);
  }

  #figureMenu() {
    return html(
      "details",
      { class: "menu" },
      html("summary", {}, "Figure"),
      html(
        "div",
        {},
        this.#button("SVG", "Save this view as SVG", () => void this.saveFigure("svg")),
        this.#button("PNG", "Save this view as PNG", () => void this.saveFigure("png")),
        this.#button("Contact sheet", "Save the panoramas of all steps as SVG", () => void this.saveFigure("sheet")),
      ),
    );
  }

  #listSection() {
    const { data } = this;
    const numbers = data.episodes.map((_, number) => number);
    const filters = Object.entries(FILTERS)
      .filter(([, { least = 1 }]) => data.results.length >= least)
      .map(([key, { label, test }]) => {
        const count = data.live ? "" : ` (${numbers.filter((number) => test(data, number)).length})`;
        return [key, `${label(data)}${count}`];
      });
    const sorts = Object.entries(SORTS)
      .filter(([, { least = 1 }]) => data.results.length >= least)
      .map(([key, { label }]) => [key, label]);
    const scenes = { "": "all scenes", ...Object.fromEntries(data.scenes.map(({ id }) => [id, id])) };
    return html(
      "section",
      { class: "list", "aria-label": "Episodes" },
      html(
        "form",
        { onsubmit: (/** @type {Event} */ event) => event.preventDefault() },
        this.#select("Scene", "scene", scenes),
        this.#select("Show", "show", Object.fromEntries(filters)),
        this.#select("Sort by", "sort", Object.fromEntries(sorts)),
        html(
          "label",
          {},
          "Search ",
          html("input", {
            type: "search",
            placeholder: "words, or an id",
            value: this.state.text,
            "data-state": "text",
            oninput: (/** @type {any} */ event) => this.set({ text: event.target.value }),
          }),
        ),
      ),
      this.countElement,
      this.listElement,
    );
  }

  #episodeSection() {
    const zoom = this.#select("Map", "zoom", { scene: "whole scene", path: "around the paths" });
    return html(
      "section",
      { class: "episode", "aria-labelledby": "episode-title" },
      html(
        "div",
        { class: "episode-head" },
        this.#button("‹", "Previous episode of the list (k)", () => this.moveInList(-1)),
        this.#button("›", "Next episode of the list (j)", () => this.moveInList(1)),
        this.titleElement,
        zoom,
      ),
      this.instructionElement,
      this.verdictElement,
      html("div", { class: "map-box" }, this.map.element, this.statusElement),
      this.#legend(),
      html(
        "div",
        { class: "timeline steps", role: "group", "aria-label": "Steps of the episode" },
        this.#button("|◀", "First step (Home)", () => this.set({ step: 0 })),
        this.#button("◀", "Step back (←)", () => this.move(-1)),
        this.playButton,
        this.#button("▶", "Step forward (→)", () => this.move(1)),
        this.#button("▶|", "Last step (End)", () => this.set({ step: this.lastStep })),
        html("div", { class: "scrub" }, this.effectElement, this.stepRange),
        this.stepLabel,
      ),
    );
  }

  #legend() {
    const entries = [
      ["start", "start"],
      ["goal", "goal"],
      ["circle", "3 m around it"],
      ["reference", "reference path"],
      ["age-now", "remembered in this episode"],
      ["age-recent", "in one of the last 5"],
      ["age-old", "earlier"],
      ["effect", "memory changes the first choice"],
    ];
    return html(
      "ul",
      { class: "legend" },
      ...entries.map(([kind, text]) => html("li", {}, html("span", { class: `swatch ${kind}` }), text)),
    );
  }

  #detailSection() {
    return html(
      "section",
      { class: "detail", "aria-label": "What the agent saw, and its choices" },
      this.scoresElement,
      this.placeElement,
      this.panorama.element,
      this.memoryElement,
      this.decisionElement,
    );
  }

  #seriesSection() {
    const measures = Object.fromEntries(this.data.curves.map(({ measure, y_label }) => [measure, y_label]));
    const series = html(
      "div",
      { class: "series", role: "group", "aria-label": "Episodes of this scene" },
      html("h2", {}, "Memory of this scene"),
      this.seriesText,
      this.seriesElement,
      html("div", { class: "timeline" }, this.seriesButton, this.seriesRange, this.seriesLabel),
    );
    const curves = html(
      "div",
      { class: "curves" },
      html("h2", {}, "Scores over the evaluation"),
      html(
        "div",
        { class: "curve-options" },
        this.#select("Measure", "measure", measures),
        this.#select("Over", "axis", { share: "share of episodes", visit: "visit" }),
      ),
      this.curveElement,
    );
    return html("section", { class: "overview", "aria-label": "Overview" }, series, this.data.curves.length ? curves : null);
  }

  // -- drawing -------------------------------------------------------------------------------------------

  #renderTheme() {
    const { theme } = this.state;
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    for (const element of /** @type {NodeListOf<HTMLInputElement>} */ (document.querySelectorAll("[data-state]"))) {
      const value = String(this.state[/** @type {keyof State} */ (element.dataset.state)]);
      if (element.value !== value) element.value = value;
    }
  }

  #buildAgents() {
    const { data } = this;
    this.agentsElement.append(
      html("legend", { class: "visually-hidden" }, "Results"),
      ...data.results.map((result, number) => {
        const { spl, sr } = result.means;
        const details = spl === undefined ? "" : `SPL ${(100 * spl).toFixed(1)}, SR ${(100 * (sr ?? 0)).toFixed(1)}`;
        const facts = Object.entries(result.facts).map(([name, value]) => `${name}: ${value}`);
        return html(
          "span",
          { class: `agent agent-${number % 5}` },
          html("input", {
            type: "checkbox",
            "aria-label": `Draw ${result.name}`,
            onchange: () => this.set({ hidden: toggleShown(this.state, number) }),
          }),
          html(
            "button",
            {
              type: "button",
              title: ["Show its panorama, choices and memory.", ...facts].join("\n"),
              onclick: () => this.set({ agent: number }),
            },
            html("b", {}, result.name),
            details ? html("small", {}, details) : null,
          ),
        );
      }),
    );
  }

  #renderAgents() {
    this.agentsElement.querySelectorAll(".agent").forEach((element, number) => {
      element.classList.toggle("current", number === this.agent);
      /** @type {HTMLInputElement} */ (element.querySelector("input")).checked = isShown(this.state, number);
      element.querySelector("button")?.setAttribute("aria-pressed", String(number === this.agent));
    });
  }

  /** Draw the list of episodes. */
  renderList() {
    const { data, state } = this;
    this.list = listEpisodes(data, state);
    const left = data.left_out ? `; ${data.left_out} are not in every result` : "";
    this.countElement.textContent = `${this.list.length} of ${data.episodes.length} episodes${left}`;
    this.listElement.replaceChildren();
    if (!this.list.length) {
      const showAll = () => this.set({ scene: "", show: "all", text: "" });
      this.listElement.append(
        html("li", { class: "empty" }, "No episode matches. ", html("button", { type: "button", onclick: showAll }, "Show all")),
      );
    }
    this.#appendItems(this.list, 0);
  }

  /**
   * Append a part of the list; later parts follow when the browser has time.
   * @param {number[]} list
   * @param {number} begin
   */
  #appendItems(list, begin) {
    if (list !== this.list) return; // another list is shown by now
    const end = begin + (begin ? 4 * LIST_PART : LIST_PART);
    this.listElement.append(...list.slice(begin, end).map((number) => this.#listItem(number)));
    this.#markCurrent();
    if (end < list.length) setTimeout(() => this.#appendItems(list, end), 30);
  }

  /** @param {number} number */
  #listItem(number) {
    const { data } = this;
    const episode = data.episodes[number];
    const outcomes = data.results.map((result, index) => {
      const success = scoreOf(data, index, number, "sr");
      const [mark, text] = success === null ? ["·", "no scores"] : success ? ["✓", "success"] : ["✗", "no success"];
      return { mark, text: `${result.name}: ${text}`, index };
    });
    const marks = outcomes.map(({ mark, text, index }) =>
      html("span", { class: `outcome agent-${index % 5}`, title: text }, mark),
    );
    const label = [`Episode ${episode.id}`, ...outcomes.map(({ text }) => text), episode.instruction].join(". ");
    const gain = data.results.length > 1 ? gainOf(data, number) : 0;
    const difference = Math.abs(gain) < 0.005 ? "" : `${gain > 0 ? "+" : "−"}${Math.abs(100 * gain).toFixed(0)}`;
    return html(
      "li",
      { "data-episode": number },
      html(
        "button",
        { type: "button", "aria-label": label, onclick: () => this.set({ episode: episode.id }) },
        html("span", { class: "episode-id" }, `${episode.id} `, ...marks, html("span", { class: "gain" }, difference)),
        html("span", { class: "preview" }, episode.instruction.slice(0, 120)),
      ),
    );
  }

  #markCurrent() {
    this.listElement.querySelector("[aria-current]")?.removeAttribute("aria-current");
    const item = this.listElement.querySelector(`[data-episode="${this.episodeNumber}"] button`);
    item?.setAttribute("aria-current", "true");
    if (item && this.listElement.scrollHeight > this.listElement.clientHeight) {
      const row = /** @type {HTMLElement} */ (item.parentElement);
      const top = row.offsetTop - this.listElement.offsetTop;
      if (top < this.listElement.scrollTop || top > this.listElement.scrollTop + this.listElement.clientHeight - 60)
        this.listElement.scrollTop = top - 60;
    }
  }

  /** Numbers of the results that are drawn. */
  get shown() {
    return this.data.results.map((_, number) => number).filter((number) => isShown(this.state, number));
  }

  /** Whether the reference path, the goal and the other results are hidden: a person walks. */
  get isGame() {
    return false;
  }

  /** Number of the result whose memory is shown over the episodes. */
  get remembering() {
    return this.agent;
  }

  #renderVerdict() {
    if (!this.episode) return;
    const goTo = (/** @type {number} */ step) => this.set({ step, turn: "" });
    this.verdictElement.replaceChildren(...(this.isGame ? [] : verdict(this.data, this.episodeNumber, this.shown, this.agent, goTo)));
    const effects = memoryEffects(this.trajectory(this.agent));
    this.effectElement.replaceChildren(...(effects.some(Boolean) ? [effectChart(effects, this.lastStep, goTo)] : []));
  }

  #renderEpisode() {
    const { data, state, episode } = this;
    if (!episode) return;
    const shown = this.isGame ? [this.agent] : this.shown;
    this.titleElement.textContent = `${this.scene.id}, episode ${episode.id}`;
    this.map.show({
      scene: this.scene,
      rooms: data.rooms,
      reference: this.isGame ? episode.reference.slice(0, 1) : episode.reference,
      goals: this.isGame ? [] : episode.goals,
      agents: shown
        .filter((number) => this.trajectory(number))
        .map((number) => ({ number, path: viewpointsOf(/** @type {Trajectory} */ (this.trajectory(number))) })),
      zoom: state.zoom,
      size: { width: this.map.element.clientWidth || 760, height: innerWidth < 736 ? 0.75 * innerHeight : Math.max(320, innerHeight - 340) },
    });
    this.#renderScores(shown);
  }

  /** @param {number[]} shown numbers of results */
  #renderScores(shown) {
    const { data } = this;
    const names = ["sr", "spl", "ne", "tl", "ndtw", ...(data.task === "cvdn" ? ["gp"] : [])];
    const measures = data.measures.filter((name) => names.includes(name));
    const inMetres = ["ne", "tl", "gp"];
    this.scoresElement.hidden = !measures.length || !shown.some((number) => this.trajectory(number));
    const format = (/** @type {string} */ name, /** @type {number | null} */ value) =>
      value === null ? "–" : inMetres.includes(name) ? value.toFixed(1) : (100 * value).toFixed(0);
    this.scoresElement.replaceChildren(
      html("caption", { class: "visually-hidden" }, "Scores of this episode"),
      html(
        "tr",
        {},
        html("td", {}),
        ...measures.map((name) =>
          html("th", { scope: "col" }, LABELS[name] ?? name.toUpperCase(), html("small", {}, inMetres.includes(name) ? " m" : " %")),
        ),
      ),
      ...shown
        .filter((number) => this.trajectory(number))
        .map((number) =>
          html(
            "tr",
            { class: `agent-${number % 5}` },
            html("th", { scope: "row" }, data.results[number].name),
            ...measures.map((name) => html("td", {}, format(name, scoreOf(data, number, this.episodeNumber, name)))),
          ),
        ),
    );
  }

  #renderSeries() {
    const { data, episode, remembering } = this;
    const result = data.results[remembering];
    const history = episode && result?.histories[episode.scene];
    const order = this.trajectory(remembering)?.order ?? history?.episodes.length ?? 0;
    /** @type {HTMLElement} */ (this.seriesRange.parentElement).hidden = !history?.episodes.length;
    if (!history?.episodes.length) {
      this.seriesElement.replaceChildren();
      this.seriesText.textContent = "No episode of this scene was run yet.";
      return;
    }
    const successes = history.episodes.map((number) => {
      const success = number < 0 ? null : scoreOf(data, remembering, number, "sr");
      return success === null ? null : success > 0;
    });
    const sizes = memorySizes(history);
    const total = this.scene.viewpoints.length;
    this.seriesText.textContent = result.has_memory
      ? `${sizes[order]} of ${total} viewpoints in memory before this episode. High ticks are successes.`
      : "This agent has no memory. High ticks are successes.";
    this.seriesElement.replaceChildren(memoryChart(sizes, total, successes, order));
    this.seriesRange.max = String(history.episodes.length - 1);
    this.seriesRange.value = String(order);
    this.seriesLabel.textContent = `${Math.min(order + 1, history.episodes.length)} of ${history.episodes.length}`;
  }

  #renderCurves() {
    const { data, state } = this;
    const curve = data.curves.find(({ measure, axis }) => measure === state.measure && axis === state.axis);
    const names = data.results.map(({ name }) => name);
    const shown = (/** @type {number} */ number) => isShown(state, number);
    const hasLines = curve && curve.lines.some((_, number) => shown(number));
    const legend = data.results.flatMap((result, number) =>
      shown(number) ? [html("li", {}, lineSwatch(number), result.name)] : [],
    );
    this.curveElement.replaceChildren(
      ...(hasLines ? [curveChart(curve, names, shown), html("ul", { class: "legend" }, ...legend)] : []),
    );
  }

  #renderStep() {
    const { data, state, episode, step } = this;
    if (!episode) return;
    const result = data.results[this.agent];
    const trajectory = this.trajectory(this.agent);
    const history = result?.histories[episode.scene];
    const order = (this.order = trajectory?.order ?? history?.episodes.length ?? 0);
    const poses = trajectory ? trajectory.poses.length / 2 : 1;
    const pose = Math.min(step, poses - 1);
    const viewpoint = trajectory ? trajectory.poses[2 * pose] : episode.reference[0];
    const heading = viewHeading(trajectory ? trajectory.poses[2 * pose + 1] : episode.view);
    this.memory = history ? remembered(history, order, Math.min(step, poses)) : new Map();
    const decision = trajectory?.steps?.[pose] ?? null;
    const next = trajectory && pose + 1 < poses ? trajectory.poses[2 * pose + 2] : null;
    const choices = (this.choices = decision ? this.#choices(decision, viewpoint) : []);
    const neighbours = this.scene.neighbours[viewpoint];
    const isPlanned = !!decision?.[6]?.routes?.length; // then routes have probabilities, and choices do not
    const shares = new Map((isPlanned ? [] : choices).slice(0, neighbours.length).map((choice) => [choice.viewpoint, percent(choice.share)]));
    const isAtEnd = step > poses - 1;
    this.map.showStep({
      step,
      memory: this.memory,
      order,
      candidates: isAtEnd
        ? []
        : neighbours.map((target, index) => ({
            viewpoint: target,
            label: String(index + 1),
            isRecalled: decision ? decision[3].includes(target) : this.memory.has(target),
            isChosen: target === next,
          })),
      routes: (decision?.[6]?.routes ?? []).slice(0, 5).map((route) => route.path),
    });
    this.panorama.show(
      {
        picture: this.pictureOf(episode.scene, viewpoint),
        heading,
        label: `Panorama of ${this.nameOf(viewpoint)}, step ${pose}`,
        note: Object.keys(data.pictures).length ? "no picture of this viewpoint" : "this page has no panoramas",
        candidates: neighbours.map((target) => ({
          viewpoint: target,
          name: this.nameOf(target),
          ...directionTo(this.scene, viewpoint, target),
          share: shares.get(target) ?? "",
          isRemembered: this.memory.has(target),
          isChosen: target === next,
        })),
      },
      state.turn === "" || !Number.isFinite(Number(state.turn)) ? heading : Number(state.turn),
    );
    this.stepRange.max = String(this.lastStep);
    this.stepRange.value = String(step);
    this.stepLabel.textContent = `step ${step} of ${this.lastStep}`;
    this.instructionElement.replaceChildren(
      ...instructionElements(weightedParts(episode.instruction, trajectory?.spans, decision?.[4])),
    );
    this.#renderDecision(decision, choices, trajectory, pose);
    const chosen = choices.find(({ isChosen }) => isChosen);
    const text = `${result?.name ?? ""}: step ${pose}, at ${this.nameOf(viewpoint)}`;
    const choice = chosen ? `, chooses ${chosen.name} (${percent(chosen.share)})` : "";
    const count = describeMemory(this.memory, this.scene.viewpoints.length, order);
    this.placeElement.replaceChildren(
      html("span", { class: `agent-${this.agent % 5}` }, result?.name ?? ""),
      ` · step ${pose} · ${this.nameOf(viewpoint)}`,
    );
    this.map.element.setAttribute("aria-label", `Map of ${this.scene.id}. ${text}. ${count}.`);
    if (!this.timer) this.announcement.textContent = `${text}${choice}. ${result?.has_memory ? count : ""}`;
    this.memoryElement.textContent = result?.has_memory ? count : data.live ? "" : "This agent has no memory.";
  }

  /**
   * @param {import("./types.js").Step} decision
   * @param {number} viewpoint
   */
  #choices(decision, viewpoint) {
    const { reference } = this.episode;
    const position = reference.indexOf(viewpoint);
    const target = position >= 0 && position + 1 < reference.length ? reference[position + 1] : null;
    const isEnd = position === reference.length - 1 && reference.length > 1;
    return listChoices(decision, this.scene.neighbours[viewpoint], (number) => this.nameOf(number), target, isEnd);
  }

  /**
   * @param {import("./types.js").Step | null} decision
   * @param {ReturnType<typeof listChoices>} choices
   * @param {Trajectory | undefined} trajectory
   * @param {number} pose
   */
  #renderDecision(decision, choices, trajectory, pose) {
    if (!decision) {
      this.decisionElement.replaceChildren(html("p", { class: "hint" }, this.#noDecision(trajectory, pose)));
      return;
    }
    const describe = (/** @type {number} */ viewpoint) => {
      const moment = this.memory.get(viewpoint);
      return moment ? describeAge(moment, this.order) : "memory";
    };
    const routes = decision[6]?.routes ?? [];
    this.decisionElement.replaceChildren(
      ...(routes.length
        ? [
            routeTable(
              routes,
              decision[6]?.compared ?? routes.length,
              (viewpoint) => this.nameOf(viewpoint),
              (rank) => this.map.emphasize(rank),
            ),
          ]
        : [choiceTable(choices, (viewpoint) => this.#point(viewpoint), describe)]),
      ...(decision[1] ? [html("p", { class: "moved" }, memorySentence(choices))] : []),
    );
  }

  /**
   * Say why there are no probabilities at a pose.
   * @param {Trajectory | undefined} trajectory
   * @param {number} pose
   */
  #noDecision(trajectory, pose) {
    if (!trajectory) return "No walk yet.";
    if (!trajectory.steps) return this.data.live ? "" : "No probabilities: evaluate with --trace to see them.";
    if (pose < trajectory.poses.length / 2 - 1) return "The agent passes here without a decision, on a route that it chose before.";
    return trajectory.stopped || trajectory.scores.length ? "The agent's walk ends here." : "The agent decides next.";
  }

  /** @param {number | null} viewpoint */
  #point(viewpoint) {
    if (viewpoint === null || viewpoint < 0) {
      this.statusElement.textContent = "";
      return;
    }
    const moment = this.memory.get(viewpoint);
    const age = moment ? `remembered: ${describeAge(moment, this.order)}` : "not remembered";
    this.statusElement.textContent = `${this.scene.viewpoints[viewpoint]}: ${this.nameOf(viewpoint)}, ${age}`;
  }

  /**
   * Address of the panorama of a viewpoint; null if there is none.
   * @param {number} scene
   * @param {number} viewpoint
   * @returns {string | null}
   */
  pictureOf(scene, viewpoint) {
    const picture = this.data.pictures[`${scene}/${viewpoint}`];
    return picture ? `data:image/jpeg;base64,${picture}` : null;
  }

  /**
   * The panorama of a viewpoint as data, for figures; null if there is none.
   * @param {number} scene
   * @param {number} viewpoint
   * @returns {Promise<string | null>}
   */
  async embeddedPicture(scene, viewpoint) {
    return this.pictureOf(scene, viewpoint);
  }

  /**
   * Called when a candidate in the panorama is picked.
   * @param {number} viewpoint
   */
  onPick(viewpoint) {
    this.#point(viewpoint);
  }

  // -- movement ------------------------------------------------------------------------------------------

  /** @param {number} change */
  move(change) {
    this.set({ step: Math.min(this.lastStep, Math.max(0, this.step + change)), turn: "" });
  }

  /** @param {number} change */
  moveInList(change) {
    if (!this.list.length) return;
    const position = this.list.indexOf(this.episodeNumber);
    const next = this.list[Math.min(this.list.length - 1, Math.max(0, position + change))];
    this.set({ episode: this.data.episodes[next].id });
  }

  /** @param {number} order */
  #goToOrder(order) {
    const history = this.data.results[this.remembering]?.histories[this.episode.scene];
    const number = history?.episodes[order] ?? -1;
    if (number >= 0) this.set({ episode: this.data.episodes[number].id });
  }

  /** Play the steps of the episode, or pause. */
  togglePlay() {
    if (this.timer) return this.#stop();
    if (this.step >= this.lastStep) this.set({ step: 0 });
    this.#label(this.playButton, "Pause");
    this.timer = window.setInterval(() => {
      if (this.step >= this.lastStep) this.#stop();
      else this.move(1);
    }, STEP_MILLISECONDS);
  }

  /** Play all episodes of the scene, each at its last step, or pause. */
  toggleSeries() {
    if (this.timer) return this.#stop();
    const length = () => this.data.results[this.remembering]?.histories[this.episode.scene]?.episodes.length ?? 0;
    const order = () => this.trajectory(this.remembering)?.order ?? 0;
    if (order() >= length() - 1) this.#goToOrder(0);
    this.#label(this.seriesButton, "Pause");
    this.timer = window.setInterval(() => {
      if (order() >= length() - 1) return this.#stop();
      this.#goToOrder(order() + 1);
      this.set({ step: this.lastStep });
    }, SERIES_MILLISECONDS);
  }

  #stop() {
    clearInterval(this.timer);
    this.timer = 0;
    this.#label(this.playButton, "Play");
    this.#label(this.seriesButton, "Play");
  }

  /**
   * @param {HTMLButtonElement} button
   * @param {"Play" | "Pause"} text
   */
  #label(button, text) {
    button.textContent = text;
    button.setAttribute("aria-label", button === this.playButton ? `${text} (space)` : `${text} all episodes of this scene`);
  }

  /** Go to the next step at which memory changed the first choice. */
  #goToChange() {
    const changed = memoryEffects(this.trajectory(this.agent)).flatMap((effect, step) => (effect?.isChanged ? [step] : []));
    const next = changed.find((step) => step > this.step) ?? changed[0];
    if (next !== undefined) this.set({ step: next, turn: "" });
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    const target = /** @type {Element} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, select, textarea, dialog[open]")) return;
    if (event.key === " " && target.closest("button, summary, a")) return;
    /** @type {Record<string, () => void>} */
    const actions = {
      ArrowLeft: () => this.move(-1),
      ArrowRight: () => this.move(1),
      Home: () => this.set({ step: 0 }),
      End: () => this.set({ step: this.lastStep }),
      " ": () => this.togglePlay(),
      j: () => this.moveInList(1),
      k: () => this.moveInList(-1),
      m: () => this.#goToChange(),
      a: () => this.set({ agent: (this.agent + 1) % Math.max(1, this.data.results.length) }),
    };
    const candidate = this.panorama.content?.candidates[Number(event.key) - 1];
    if (/^[1-9]$/.test(event.key) && candidate) this.onPick(candidate.viewpoint);
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }

  // -- figures -------------------------------------------------------------------------------------------

  /**
   * Return the current view as a figure in light colours.
   * @param {boolean} hasStrips whether the panoramas of all steps are part of it, or that of the current step
   */
  async figure(hasStrips) {
    const { data, episode } = this;
    const before = document.documentElement.dataset.theme;
    document.documentElement.dataset.theme = "light";
    const map = withInlineStyles(this.map.element);
    const shown = this.shown.filter((number) => this.trajectory(number));
    const colours = shown.map((number) => colourOf(number));
    if (before === undefined) delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = before;
    const details = (/** @type {number} */ number) =>
      ["sr", "spl", "ne"]
        .filter((name) => data.measures.includes(name))
        .map((name) => `${name.toUpperCase()} ${scoreOf(data, number, this.episodeNumber, name)?.toFixed(2) ?? "–"}`)
        .join(", ");
    const strips = shown.map((number) =>
      Promise.all(
        viewpointsOf(/** @type {Trajectory} */ (this.trajectory(number))).map(async (viewpoint, step) => ({
          label: String(step),
          picture: await this.embeddedPicture(episode.scene, viewpoint),
        })),
      ),
    );
    const { content, centre } = this.panorama;
    const viewpoint = this.trajectory(this.agent)?.poses[2 * Math.min(this.step, this.lastStep)] ?? episode.reference[0];
    return composeFigure({
      map,
      title: `${this.scene.id}, episode ${episode.id}${hasStrips ? "" : `, step ${this.step}`}`,
      instruction: episode.instruction,
      legend: [
        { name: "reference path", colour: "#1a1a1a", details: "" },
        ...shown.map((number, index) => ({ name: data.results[number].name, colour: colours[index], details: details(number) })),
      ],
      strips: hasStrips ? [[], ...(await Promise.all(strips))] : [],
      view:
        hasStrips || !content
          ? null
          : {
              picture: await this.embeddedPicture(episode.scene, viewpoint),
              centre,
              candidates: content.candidates,
              name: data.results[this.agent].name,
              choices: this.choices,
            },
    });
  }

  /** @param {"svg" | "png" | "sheet"} kind */
  async saveFigure(kind) {
    const figure = await this.figure(kind === "sheet");
    const name = `${this.scene.id}-${this.episode.id}`;
    if (kind === "png") saveFile(await figureImage(figure), `${name}.png`);
    else saveFile(new Blob([figureText(figure)], { type: "image/svg+xml" }), `${name}${kind === "sheet" ? "-steps" : ""}.svg`);
  }
}

/**
 * Return the viewpoints of all poses.
 * @param {Trajectory} trajectory
 */
export function viewpointsOf(trajectory) {
  return trajectory.poses.filter((_, index) => index % 2 === 0);
}

/** @param {number} number */
function colourOf(number) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--agent-${number % 5}`).trim() || "#000";
}
