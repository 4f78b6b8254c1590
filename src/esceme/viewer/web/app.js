// The page: list of episodes, map, panorama, choices, timelines and curves, all drawn from one state.

import { curveChart, memoryChart } from "./charts.js";
import { choiceTable, listChoices, movedShare, percent } from "./choices.js";
import { html } from "./dom.js";
import { FILTERS, SORTS, gainOf, listEpisodes, scoreOf } from "./episodes.js";
import { composeFigure, figureImage, figureText, saveFile, withInlineStyles } from "./figures.js";
import { directionTo, viewHeading } from "./geometry.js";
import { instructionElements, weightedParts } from "./instruction.js";
import { SceneMap } from "./map.js";
import { describeAge, memorySizes, remembered } from "./memory.js";
import { Panorama } from "./panorama.js";
import { DEFAULTS, decodeState, encodeState, isShown, toggleShown } from "./state.js";

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
const HELP = [
  ["← →", "step back and forward"],
  ["Home End", "first and last step"],
  ["space", "play and pause"],
  ["j k", "next and previous episode of the list"],
  ["a", "next result"],
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
  playButton = this.#button("Play", "Play (space)", () => this.togglePlay());
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
      agent: Math.max(0, data.results.length - 1),
      episode: data.episodes[0]?.id ?? "",
      measure: data.curves[0]?.measure ?? DEFAULTS.measure,
    };
    this.state = decodeState(location.hash.slice(1), this.defaults);
    /** @type {number[]} */
    this.list = [];
    this.timer = 0;
    this.addressTimer = 0;
    /** @type {Map<number, Moment>} */
    this.memory = new Map();
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
    if (has("theme")) this.#renderTheme();
    if (has("scene", "show", "text", "sort")) this.renderList();
    else if (isEpisode) this.#markCurrent();
    if (has("hidden", "agent")) this.#renderAgents();
    if (has("episode", "hidden", "zoom")) this.#renderEpisode();
    if (has("episode", "agent")) this.#renderSeries();
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
    this.#renderSeries();
    this.#renderCurves();
    this.#renderStep();
  }

  // -- elements ------------------------------------------------------------------------------------------

  #build() {
    const { data } = this;
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
          this.#select("Colours", "theme", { auto: "as the system", light: "light", dark: "dark" }),
          this.#figureMenu(),
          this.#button("?", "Keys", () => help.showModal()),
        ),
      ),
      this.sideElement,
      html("main", {}, this.#listSection(), this.#episodeSection(), this.#detailSection(), this.#seriesSection()),
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
    const labels = (/** @type {Record<string, {label: string}>} */ entries) =>
      Object.fromEntries(Object.entries(entries).map(([key, { label }]) => [key, label]));
    const scenes = { "": "all scenes", ...Object.fromEntries(data.scenes.map(({ id }) => [id, id])) };
    return html(
      "section",
      { class: "list", "aria-label": "Episodes" },
      html(
        "form",
        { onsubmit: (/** @type {Event} */ event) => event.preventDefault() },
        this.#select("Scene", "scene", scenes),
        this.#select("Show", "show", labels(FILTERS)),
        this.#select("Sort by", "sort", labels(SORTS)),
        html(
          "label",
          {},
          "Search ",
          html("input", {
            type: "search",
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
      html("div", { class: "episode-head" }, this.titleElement, zoom),
      this.instructionElement,
      html("div", { class: "map-box" }, this.map.element),
      this.#legend(),
      this.statusElement,
      html(
        "div",
        { class: "timeline", role: "group", "aria-label": "Steps of the episode" },
        this.#button("|◀", "First step (Home)", () => this.set({ step: 0 })),
        this.#button("◀", "Step back (←)", () => this.move(-1)),
        this.playButton,
        this.#button("▶", "Step forward (→)", () => this.move(1)),
        this.#button("▶|", "Last step (End)", () => this.set({ step: this.lastStep })),
        this.stepRange,
        this.stepLabel,
      ),
    );
  }

  #legend() {
    const entries = [
      ["start", "start"],
      ["goal", "goal, 3 m around it"],
      ["age-now", "remembered in this episode"],
      ["age-recent", "in one of the last 5"],
      ["age-old", "earlier"],
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
      html("h2", {}, "Memory of this scene, episode by episode"),
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
    for (const element of document.querySelectorAll("[data-state]")) {
      const name = /** @type {keyof State} */ (element.getAttribute("data-state"));
      /** @type {HTMLInputElement} */ (element).value = String(this.state[name]);
    }
  }

  #renderAgents() {
    const { data, state } = this;
    this.agentsElement.replaceChildren(
      html("legend", { class: "visually-hidden" }, "Results"),
      ...data.results.map((result, number) => {
        const spl = result.means.spl;
        const details = spl === undefined ? "" : `SPL ${(100 * spl).toFixed(1)}, SR ${(100 * (result.means.sr ?? 0)).toFixed(1)}`;
        return html(
          "span",
          { class: `agent agent-${number % 5}${number === this.agent ? " current" : ""}` },
          html("input", {
            type: "checkbox",
            checked: isShown(state, number),
            "aria-label": `Draw ${result.name}`,
            onchange: () => this.set({ hidden: toggleShown(this.state, number) }),
          }),
          html(
            "button",
            {
              type: "button",
              "aria-pressed": String(number === this.agent),
              title: "show the panorama, the choices and the memory of this result",
              onclick: () => this.set({ agent: number }),
            },
            html("b", {}, result.name),
            html("small", {}, details),
          ),
        );
      }),
    );
  }

  /** Draw the list of episodes. */
  renderList() {
    const { data, state } = this;
    this.list = listEpisodes(data, state);
    const left = data.left_out ? `; ${data.left_out} are not in every result` : "";
    this.countElement.textContent = `${this.list.length} of ${data.episodes.length} episodes${left}`;
    this.listElement.replaceChildren();
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
    const marks = data.results.map((result, index) => {
      const success = scoreOf(data, index, number, "sr");
      const text = success === null ? "·" : success ? "✓" : "✗";
      const title = `${result.name}: ${success ? "success" : "no success"}`;
      return html("span", { class: `outcome agent-${index % 5}`, title }, text);
    });
    const gain = data.results.length > 1 ? gainOf(data, number) : 0;
    const difference = Math.abs(gain) < 0.005 ? "" : `${gain > 0 ? "+" : "−"}${Math.abs(100 * gain).toFixed(0)}`;
    return html(
      "li",
      { "data-episode": number },
      html(
        "button",
        { type: "button", onclick: () => this.set({ episode: episode.id }) },
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

  #renderEpisode() {
    const { data, state, episode } = this;
    if (!episode) return;
    this.titleElement.textContent = `${this.scene.id}, episode ${episode.id}`;
    const shown = data.results.map((_, number) => number).filter((number) => isShown(state, number));
    this.map.show({
      scene: this.scene,
      reference: episode.reference,
      goals: episode.goals,
      agents: shown
        .filter((number) => this.trajectory(number))
        .map((number) => ({ number, path: viewpointsOf(/** @type {Trajectory} */ (this.trajectory(number))) })),
      zoom: state.zoom,
      size: { width: this.map.element.clientWidth || 760, height: this.map.element.clientHeight || 520 },
    });
    this.#renderScores(shown);
  }

  /** @param {number[]} shown numbers of results */
  #renderScores(shown) {
    const { data } = this;
    const names = ["sr", "spl", "ne", "tl", "ndtw", ...(data.task === "cvdn" ? ["gp"] : [])];
    const measures = data.measures.filter((name) => names.includes(name));
    this.scoresElement.hidden = !measures.length;
    const format = (/** @type {string} */ name, /** @type {number | null} */ value) =>
      value === null ? "–" : ["ne", "tl", "gp"].includes(name) ? value.toFixed(1) : (100 * value).toFixed(0);
    this.scoresElement.replaceChildren(
      html("caption", { class: "visually-hidden" }, "Scores of this episode"),
      html("tr", {}, html("th", {}, ""), ...measures.map((name) => html("th", { scope: "col" }, `${name.toUpperCase()} ${["ne", "tl", "gp"].includes(name) ? "m" : "%"}`))),
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
    const { data, episode } = this;
    const result = data.results[this.agent];
    const history = episode && result?.histories[episode.scene];
    const trajectory = this.trajectory(this.agent);
    if (!history || !trajectory || !history.episodes.length) {
      this.seriesElement.replaceChildren();
      return;
    }
    const successes = history.episodes.map((number) => {
      const success = number < 0 ? null : scoreOf(data, this.agent, number, "sr");
      return success === null ? null : success > 0;
    });
    const sizes = memorySizes(history);
    this.seriesElement.replaceChildren(memoryChart(sizes, this.scene.viewpoints.length, successes, trajectory.order));
    this.seriesRange.max = String(history.episodes.length - 1);
    this.seriesRange.value = String(trajectory.order);
    this.seriesLabel.textContent = `${trajectory.order + 1} of ${history.episodes.length}`;
  }

  #renderCurves() {
    const { data, state } = this;
    const curve = data.curves.find(({ measure, axis }) => measure === state.measure && axis === state.axis);
    const names = data.results.map(({ name }) => name);
    const shown = (/** @type {number} */ number) => isShown(state, number);
    const hasLines = curve && curve.lines.some((_, number) => shown(number));
    this.curveElement.replaceChildren(...(hasLines ? [curveChart(curve, names, shown)] : []));
  }

  #renderStep() {
    const { data, state, episode, step } = this;
    if (!episode) return;
    const result = data.results[this.agent];
    const trajectory = this.trajectory(this.agent);
    const order = trajectory?.order ?? 0;
    const poses = trajectory ? trajectory.poses.length / 2 : 1;
    const pose = Math.min(step, poses - 1);
    const viewpoint = trajectory ? trajectory.poses[2 * pose] : episode.reference[0];
    const heading = trajectory ? viewHeading(trajectory.poses[2 * pose + 1]) : 0;
    const history = result?.histories[episode.scene];
    this.memory = history ? remembered(history, order, Math.min(step, poses)) : new Map();
    const decision = trajectory?.steps?.[pose] ?? null;
    const next = trajectory && pose + 1 < poses ? trajectory.poses[2 * pose + 2] : null;
    const choices = decision ? this.#choices(decision, viewpoint) : [];
    const neighbours = this.scene.neighbours[viewpoint];
    const shares = new Map(choices.slice(0, neighbours.length).map((choice) => [choice.viewpoint, percent(choice.share)]));
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
    const count = `${this.memory.size} of ${this.scene.viewpoints.length} viewpoints remembered`;
    this.map.element.setAttribute("aria-label", `Map of ${this.scene.id}. ${text}. ${count}.`);
    if (!this.timer) this.announcement.textContent = `${text}${choice}`;
    this.memoryElement.textContent = result?.has_memory ? count : "this agent has no memory";
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
      const isLast = trajectory && pose === trajectory.poses.length / 2 - 1 && !trajectory.stopped;
      const text = trajectory?.steps
        ? isLast
          ? "The number of steps was used up here."
          : "The agent only passed here, on its way back."
        : "No probabilities: evaluate with --trace to see them.";
      this.decisionElement.replaceChildren(html("p", { class: "hint" }, trajectory ? text : ""));
      return;
    }
    /** @type {HTMLElement[]} */
    const parts = [choiceTable(choices, (viewpoint) => this.#point(viewpoint))];
    if (decision[1]) {
      const [moved, others] = [movedShare(choices), choices.filter(({ masked }) => masked !== null)];
      const best = (/** @type {"share" | "masked"} */ key) =>
        others.reduce((a, b) => ((b[key] ?? 0) > (a[key] ?? 0) ? b : a)).name;
      const [withMemory, without] = [best("share"), best("masked")];
      const change =
        withMemory === without ? `the first choice stays ${withMemory}` : `the first choice changes from ${without} to ${withMemory}`;
      parts.push(html("p", { class: "moved" }, `Memory moves ${percent(moved)} of the probability; ${change}.`));
    }
    const routes = decision[6]?.routes ?? [];
    if (routes.length) parts.push(this.#routeList(routes, decision[6]?.compared ?? routes.length));
    this.decisionElement.replaceChildren(...parts);
  }

  /**
   * @param {import("./types.js").PlannedRoute[]} routes
   * @param {number} compared number of all routes that the agent compared
   */
  #routeList(routes, compared) {
    const facts = (/** @type {import("./types.js").PlannedRoute} */ { probability, utility, scores }) =>
      [
        probability === undefined ? "" : percent(probability),
        utility === undefined ? "" : `utility ${utility.toFixed(2)}`,
        ...Object.entries(scores ?? {}).map(([name, value]) => `${name} ${value}`),
      ].filter(Boolean);
    return html(
      "details",
      { class: "routes", open: true },
      html("summary", {}, `Best of ${compared} compared routes`),
      html(
        "ol",
        {},
        ...routes.map((route) =>
          html(
            "li",
            {},
            route.path.map((viewpoint) => this.nameOf(viewpoint)).join(" → "),
            html("small", {}, ` ${facts(route).join(", ")}`),
          ),
        ),
      ),
    );
  }

  /** @param {number | null} viewpoint */
  #point(viewpoint) {
    if (viewpoint === null || viewpoint < 0) {
      this.statusElement.textContent = "";
      return;
    }
    const moment = this.memory.get(viewpoint);
    const order = this.trajectory(this.agent)?.order ?? 0;
    const age = moment ? describeAge(moment, order) : "not remembered";
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
    const history = this.data.results[this.agent]?.histories[this.episode.scene];
    const number = history?.episodes[order] ?? -1;
    if (number >= 0) this.set({ episode: this.data.episodes[number].id });
  }

  /** Play the steps of the episode, or pause. */
  togglePlay() {
    if (this.timer) return this.#stop();
    if (this.step >= this.lastStep) this.set({ step: 0 });
    this.playButton.textContent = "Pause";
    this.timer = window.setInterval(() => {
      if (this.step >= this.lastStep) this.#stop();
      else this.move(1);
    }, STEP_MILLISECONDS);
  }

  /** Play all episodes of the scene, each at its last step, or pause. */
  toggleSeries() {
    if (this.timer) return this.#stop();
    const length = () => this.data.results[this.agent]?.histories[this.episode.scene]?.episodes.length ?? 0;
    const order = () => this.trajectory(this.agent)?.order ?? 0;
    if (order() >= length() - 1) this.#goToOrder(0);
    this.seriesButton.textContent = "Pause";
    this.timer = window.setInterval(() => {
      if (order() >= length() - 1) return this.#stop();
      this.#goToOrder(order() + 1);
      this.set({ step: this.lastStep });
    }, SERIES_MILLISECONDS);
  }

  #stop() {
    clearInterval(this.timer);
    this.timer = 0;
    this.playButton.textContent = this.seriesButton.textContent = "Play";
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
      a: () => this.set({ agent: (this.agent + 1) % Math.max(1, this.data.results.length) }),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }

  // -- figures -------------------------------------------------------------------------------------------

  /**
   * Return the current view as a figure in light colours.
   * @param {boolean} hasStrips whether the panoramas of all steps are part of it
   */
  figure(hasStrips) {
    const { data, state, episode } = this;
    const before = document.documentElement.dataset.theme;
    document.documentElement.dataset.theme = "light";
    const map = withInlineStyles(this.map.element);
    const shown = data.results.map((_, number) => number).filter((number) => isShown(state, number) && this.trajectory(number));
    const colours = shown.map((number) => colourOf(number));
    if (before === undefined) delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = before;
    const details = (/** @type {number} */ number) =>
      ["sr", "spl", "ne"]
        .filter((name) => data.measures.includes(name))
        .map((name) => `${name.toUpperCase()} ${scoreOf(data, number, this.episodeNumber, name)?.toFixed(2) ?? "–"}`)
        .join(", ");
    const strips = shown.map((number) =>
      viewpointsOf(/** @type {Trajectory} */ (this.trajectory(number))).flatMap((viewpoint, step) => {
        const picture = this.pictureOf(episode.scene, viewpoint);
        return picture ? [{ label: String(step), picture }] : [];
      }),
    );
    return composeFigure({
      map,
      title: `${this.scene.id}, episode ${episode.id}${hasStrips ? "" : `, step ${this.step}`}`,
      instruction: episode.instruction,
      legend: [
        { name: "reference path", colour: "#1a1a1a", details: "" },
        ...shown.map((number, index) => ({ name: data.results[number].name, colour: colours[index], details: details(number) })),
      ],
      strips: hasStrips ? [[], ...strips] : [],
    });
  }

  /** @param {"svg" | "png" | "sheet"} kind */
  async saveFigure(kind) {
    const figure = this.figure(kind === "sheet");
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
