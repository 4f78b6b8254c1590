// The live page: an agent walks typed instructions step by step, or a person walks by clicking in the panorama.

import { App, viewpointsOf } from "./app.js";
import { html } from "./dom.js";
import { directionTo } from "./geometry.js";

/** @typedef {import("./types.js").Data} Data */
/** @typedef {import("./types.js").Trajectory} Trajectory */

const [AGENT, PERSON] = [0, 1];
const PAUSE_MILLISECONDS = 700;

/** Page on which walks are added to the data while they happen. */
export class LiveApp extends App {
  /** @type {"" | "agent" | "person"} */
  walking = "";
  live = /** @type {import("./types.js").Live} */ (this.data.live);
  typed = html("textarea", { "aria-label": "Instruction", rows: 2, maxlength: 2000 });
  message = html("span", { class: "message", role: "status" });
  typedCount = 0;
  walkNumber = 0;

  /** @param {Data} data */
  constructor(data) {
    super(data);
    const button = (/** @type {string} */ text, /** @type {string} */ title, /** @type {() => void} */ action) =>
      html("button", { type: "button", title, onclick: action }, text);
    const { agent, memory, saveable } = this.live;
    this.sideElement.replaceChildren(
      html(
        "section",
        { class: "live", "aria-label": "Walk" },
        html("label", {}, "Instruction", this.typed),
        html(
          "div",
          { class: "buttons" },
          agent ? button("Agent walks the list's episode", "from the start of the episode below", () => void this.walkEpisode()) : null,
          agent ? button("Agent walks this instruction", "from where you stand", () => void this.walkTyped()) : null,
          button("Walk yourself", "click the numbers in the panorama", () => this.beginPerson()),
          button("Stop here", "end your walk and get its scores", () => void this.endPerson()),
          memory ? button("Clear memory", "forget all scenes", () => void this.clearMemory()) : null,
          saveable ? button("Save memory", "write the memory bank to a file", () => void this.saveMemory()) : null,
          this.message,
        ),
      ),
    );
    this.#showInstruction();
  }

  #showInstruction() {
    this.typed.value = this.episode?.instruction ?? "";
  }

  /** @param {Partial<import("./state.js").State>} change */
  set(change) {
    const isOther = change.episode !== undefined && change.episode !== this.state.episode;
    super.set(change);
    if (isOther && this.typed) this.#showInstruction();
  }

  /**
   * @param {number} scene
   * @param {number} viewpoint
   */
  pictureOf(scene, viewpoint) {
    return `panorama/${scene}/${viewpoint}`;
  }

  /**
   * Send a request to the server; show its error message if there is one.
   * @param {string} action
   * @param {object} [body]
   * @returns {Promise<any>}
   */
  async send(action, body = {}) {
    const response = await fetch(`api/${action}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Esceme-Token": this.live.token },
      body: JSON.stringify(body),
    }).catch((error) => {
      this.message.textContent = "the server does not answer; start `esceme walk` again and reload this page";
      throw error;
    });
    const reply = await response.json();
    if (response.ok) return reply;
    this.message.textContent = reply.error;
    throw new Error(reply.error);
  }

  /** Viewpoint and view of the person, or of the agent, or the start of the episode. */
  get place() {
    const poses = (this.trajectory(this.agent) ?? this.trajectory(AGENT))?.poses;
    const position = poses ? Math.min(2 * this.step, poses.length - 2) : 0;
    return poses ? [poses[position], poses[position + 1]] : [this.episode.reference[0], 12];
  }

  async walkEpisode() {
    await this.#walk(this.episodeNumber, this.episode.id);
  }

  async walkTyped() {
    const instruction = this.typed.value.trim();
    if (!instruction) {
      this.message.textContent = "type an instruction first";
      return;
    }
    const [start] = this.place;
    const { scene } = this.episode;
    this.typedCount += 1;
    const id = `typed-${this.typedCount}`;
    this.data.episodes.push({ id, scene, path: id, instruction, reference: [start], goals: [], instruction_number: 1 });
    this.renderList();
    this.set({ episode: id });
    await this.#walk(this.data.episodes.length - 1, null);
  }

  /**
   * Let the agent walk an episode to its end.
   * @param {number} number
   * @param {string | null} id of an episode of the split
   */
  async #walk(number, id) {
    const walk = ++this.walkNumber;
    this.walking = "agent";
    const [, view] = this.place;
    const { scene, instruction, reference } = this.data.episodes[number];
    const begun = await this.send("begin", { scene, start: reference[0], view, instruction, episode: id });
    const result = this.data.results[AGENT];
    const history = result.histories[scene];
    /** @type {Trajectory} */
    const trajectory = {
      visit: history.episodes.length + 1,
      order: history.episodes.length,
      poses: [begun.viewpoint, begun.view],
      stopped: false,
      scores: [],
      spans: begun.spans,
      steps: [],
    };
    result.trajectories[number] = trajectory;
    history.episodes.push(number);
    history.stored.push([]);
    this.message.textContent = "the agent walks";
    this.set({ agent: AGENT, step: 0, turn: "", episode: this.data.episodes[number].id });
    for (let finished = false; !finished && walk === this.walkNumber; ) {
      const reply = await this.send("step");
      finished = reply.finished;
      trajectory.steps?.push(reply.step, ...Array(Math.max(0, reply.moves.length / 2 - 1)).fill(null));
      if (this.live.memory) history.stored[trajectory.order].push(trajectory.poses[trajectory.poses.length - 2]);
      trajectory.poses.push(...reply.moves);
      trajectory.stopped = reply.stopped;
      trajectory.scores = reply.scores;
      this.render();
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MILLISECONDS));
      if (walk === this.walkNumber) this.set({ step: this.lastStep, turn: "" });
    }
    if (walk !== this.walkNumber) return;
    this.walking = "";
    this.message.textContent = trajectory.stopped ? "the agent has stopped" : "the agent has no steps left";
    this.render();
  }

  /** Begin a walk of a person at the start of the episode. */
  beginPerson() {
    this.walkNumber += 1;
    this.walking = "person";
    const view = this.trajectory(AGENT)?.poses[1] ?? 12;
    this.data.results[PERSON].trajectories[this.episodeNumber] = {
      ...{ visit: 1, order: 0, stopped: false, scores: [], spans: null, steps: null },
      poses: [this.episode.reference[0], view],
    };
    this.message.textContent = "you walk: click a number in the panorama";
    this.set({ agent: PERSON, step: 0, turn: "", hidden: this.state.hidden });
  }

  /** @param {number} viewpoint */
  onPick(viewpoint) {
    const trajectory = this.trajectory(PERSON);
    if (this.walking !== "person" || !trajectory || this.agent !== PERSON) return super.onPick(viewpoint);
    trajectory.poses.length = Math.min(trajectory.poses.length, 2 * (this.step + 1)); // continue where the person looks
    const here = trajectory.poses[trajectory.poses.length - 2];
    const { heading } = directionTo(this.scene, here, viewpoint);
    trajectory.poses.push(viewpoint, 12 + ((Math.round(heading / 30) + 12) % 12));
    this.set({ step: trajectory.poses.length / 2 - 1, turn: "", hidden: this.state.hidden });
  }

  /** End the walk of a person and show its scores. */
  async endPerson() {
    const trajectory = this.trajectory(PERSON);
    if (this.walking !== "person" || !trajectory) return;
    this.walking = "";
    trajectory.stopped = true;
    if (!this.episode.goals.length) {
      this.message.textContent = "this instruction has no goal, so your walk has no scores";
      return;
    }
    const reply = await this.send("score", { episode: this.episode.id, path: viewpointsOf(trajectory) });
    trajectory.scores = reply.scores;
    const success = reply.scores[this.data.measures.indexOf("sr")];
    this.message.textContent = success ? "you have reached the goal" : "you stopped away from the goal";
    this.render();
  }

  /** Clear the memory of the agent on the server and on the page. */
  async clearMemory() {
    this.walkNumber += 1;
    await this.send("clear");
    for (const history of this.data.results[AGENT].histories)
      Object.assign(history, { episodes: [], stored: [], cleared: [], initial: [] });
    this.data.results[AGENT].trajectories = [];
    this.message.textContent = "the memory is empty";
    this.render();
  }

  async saveMemory() {
    const { path } = await this.send("save");
    this.message.textContent = `saved: ${path}`;
  }
}
