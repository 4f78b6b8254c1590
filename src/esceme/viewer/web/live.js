// The live page: an agent walks typed instructions step by step, or a person walks by clicking in the panorama.

import { App, viewpointsOf } from "./app.js";
import { html } from "./dom.js";
import { scoreOf } from "./episodes.js";
import { directionTo, headingView, wrapDegrees } from "./geometry.js";

/** @typedef {import("./types.js").Data} Data */
/** @typedef {import("./types.js").WalkRecord} WalkRecord */

const AGENT = 0;
const PAUSE_MILLISECONDS = 700;

/**
 * Put the walks of the agent into the data of the page.
 * @param {Data} data
 * @param {number} first number of episodes of the split
 * @param {WalkRecord} record
 */
function withWalks(data, first, record) {
  data.episodes.splice(first, Infinity, ...record.typed);
  if (data.live?.agent) {
    const trajectories = Object.entries(record.trajectories).map(([number, trajectory]) => [Number(number), trajectory]);
    data.results[AGENT].trajectories = Object.assign([], Object.fromEntries(trajectories));
    data.results[AGENT].histories = record.histories;
  }
  return data;
}

/** Page on which walks are added to the data while they happen. */
export class LiveApp extends App {
  live = /** @type {import("./types.js").Live} */ (this.data.live);
  /** Whether a person walks. */
  isPersonWalking = false;
  /** Number of the agent's walk that this page follows; 0: none. */
  walk = 0;
  typed = html("textarea", { rows: 2, maxlength: 2000 });
  message = html("p", { class: "message", role: "status" });
  gameText = html("p");
  gameBox = html("div", { class: "game", hidden: true });

  /** @param {Data} data */
  constructor(data) {
    const first = data.episodes.length;
    super(withWalks(data, first, /** @type {import("./types.js").Live} */ (data.live).record));
    this.first = first;
    const { agent, memory, saveable } = this.live;
    const button = (/** @type {string} */ text, /** @type {string} */ title, /** @type {() => unknown} */ action) =>
      html("button", { type: "button", title, onclick: () => void action() }, text);
    this.gameBox.append(this.gameText, button("Stop here", "end your walk and get its scores", () => this.endPerson()));
    this.panorama.element.after(this.gameBox);
    const group = (/** @type {string} */ label, /** @type {(Node | null)[]} */ ...children) =>
      html("div", { class: "buttons", role: "group", "aria-label": label }, html("b", { "aria-hidden": "true" }, label), ...children);
    this.sideElement.replaceChildren(
      html(
        "section",
        { class: "live", "aria-label": "Walk" },
        agent ? html("label", { class: "typed" }, "Instruction to the agent", this.typed) : null,
        html(
          "div",
          { class: "groups" },
          agent
            ? group(
                "Agent",
                button("Walk this instruction", "from where the panorama below looks", () => this.walkTyped()),
                button("Walk the episode", "from the start of the episode below", () => this.walkEpisode()),
              )
            : null,
          group("You", button("Walk yourself", "click the numbers in the panorama", () => this.beginPerson())),
          memory
            ? group(
                "Memory",
                button("Clear", "forget all scenes and all walks", () => this.clearMemory()),
                saveable ? button("Save", "write the memory bank to a file", () => this.saveMemory()) : null,
              )
            : null,
          this.message,
        ),
      ),
    );
    this.#showInstruction();
    this.#say(agent ? "Choose an episode, or type an instruction." : "Choose an episode and walk yourself.");
  }

  get person() {
    return this.data.results.length - 1;
  }

  get isGame() {
    return this.isPersonWalking && this.agent === this.person;
  }

  get remembering() {
    return AGENT;
  }

  #showInstruction() {
    this.typed.value = this.episode?.instruction ?? "";
  }

  /** @param {string} text */
  #say(text) {
    this.message.textContent = text;
    this.gameBox.hidden = !this.isPersonWalking;
    this.gameText.textContent = this.episode?.instruction ?? "";
  }

  /** @param {Partial<import("./state.js").State>} change */
  set(change) {
    const isOther = change.episode !== undefined && change.episode !== this.state.episode;
    if (isOther && this.isPersonWalking) {
      this.isPersonWalking = false;
      this.#say("Your walk has ended: you chose another episode.");
    }
    super.set(change);
    if (isOther && this.typed) this.#showInstruction();
  }

  /**
   * @param {number} scene
   * @param {number} viewpoint
   */
  pictureOf(scene, viewpoint) {
    const name = `${scene}/${viewpoint}`;
    return name in this.data.pictures ? `panorama/${name}` : null;
  }

  /**
   * A picture of this page is on the server, but a figure must hold it.
   * @param {number} scene
   * @param {number} viewpoint
   * @returns {Promise<string | null>}
   */
  async embeddedPicture(scene, viewpoint) {
    const address = this.pictureOf(scene, viewpoint);
    if (!address) return null;
    const picture = await (await fetch(address)).blob();
    return new Promise((resolve, reject) => {
      const reader = new FileReader();
      reader.onload = () => resolve(String(reader.result));
      reader.onerror = reject;
      reader.readAsDataURL(picture);
    });
  }

  /**
   * Send a request to the server and return its reply; show its error message and return null if it has one.
   * @param {string} action
   * @param {object} [body]
   * @returns {Promise<any>}
   */
  async send(action, body = {}) {
    const request = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
    try {
      const response = await fetch(`api/${action}`, request);
      const reply = await response.json();
      if (response.ok) return reply;
      this.#say(reply.error);
    } catch {
      this.#say("The server does not answer: start `esceme walk` again and open its new address.");
    }
    return null;
  }

  /** Let the agent walk the episode of the list. */
  async walkEpisode() {
    if (this.episodeNumber >= this.first) return this.walkTyped();
    await this.#walk(this.episode.id, this.episode.reference[0], this.episode.view);
  }

  /** Let the agent walk the typed instruction from the viewpoint of the panorama, in the direction of its centre. */
  async walkTyped() {
    if (!this.typed.value.trim()) return this.#say("Type an instruction first.");
    const poses = this.trajectory(this.agent)?.poses;
    const start = poses ? poses[Math.min(2 * this.step, poses.length - 2)] : this.episode.reference[0];
    await this.#walk(null, start, headingView(this.panorama.centre));
  }

  /**
   * Let the agent walk to the end.
   * @param {string | null} id of an episode of the split; null for the typed instruction
   * @param {number} start
   * @param {number} view
   */
  async #walk(id, start, view) {
    this.isPersonWalking = false;
    const { scene } = this.episode;
    const instruction = id === null ? this.typed.value.trim() : this.episode.instruction;
    /** @type {WalkRecord | null} */
    const record = await this.send("begin", { scene, start, view, instruction, episode: id });
    if (!record) return;
    const walk = (this.walk = record.walk);
    withWalks(this.data, this.first, record);
    this.#say("The agent walks.");
    this.render();
    this.set({ agent: AGENT, episode: this.data.episodes[record.episode].id, step: 0, turn: "" });
    const result = this.data.results[AGENT];
    const history = result.histories[scene];
    for (;;) {
      const reply = await this.send("step", { walk });
      if (!reply || walk !== this.walk) return;
      result.trajectories[record.episode] = reply.trajectory;
      history.stored[reply.trajectory.order] = reply.stored;
      this.render();
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MILLISECONDS));
      if (walk !== this.walk) return;
      if (this.episodeNumber === record.episode) this.set({ step: this.lastStep, turn: "" });
      if (reply.finished) break;
    }
    this.walk = 0;
    const [stopped, outcome] = [result.trajectories[record.episode].stopped, this.#outcome(AGENT, record.episode)];
    this.#say(`${stopped ? "The agent has stopped" : "The agent has no steps left"}${outcome && `: ${outcome}`}.`);
    this.render();
  }

  /**
   * Return the scores of a walk as text; empty if it has none.
   * @param {number} result
   * @param {number} episode
   */
  #outcome(result, episode) {
    const [success, spl, error] = ["sr", "spl", "ne"].map((name) => scoreOf(this.data, result, episode, name));
    if (success === null || spl === null) return "";
    return success ? `at the goal, SPL ${(100 * spl).toFixed(0)}` : `${error?.toFixed(1)} m from the goal`;
  }

  /** Begin a walk of a person at the start of the episode. */
  beginPerson() {
    this.walk = 0;
    this.isPersonWalking = true;
    this.data.results[this.person].trajectories[this.episodeNumber] = {
      ...{ visit: 1, order: 0, stopped: false, scores: [], spans: null, steps: null },
      poses: [this.episode.reference[0], this.episode.view],
    };
    this.#say("You walk: click a number in the panorama, or press its key; then press “Stop here”. The goal is hidden.");
    this.set({ agent: this.person, step: 0, turn: "", hidden: "" });
    this.panorama.element.focus();
    this.panorama.element.scrollIntoView({ block: "nearest" });
  }

  /** @param {number} viewpoint */
  onPick(viewpoint) {
    const trajectory = this.trajectory(this.person);
    if (!this.isPersonWalking || !trajectory || this.agent !== this.person) return super.onPick(viewpoint);
    trajectory.poses.length = Math.min(trajectory.poses.length, 2 * (this.step + 1)); // continue where the person looks
    const here = trajectory.poses[trajectory.poses.length - 2];
    trajectory.poses.push(viewpoint, headingView(wrapDegrees(directionTo(this.scene, here, viewpoint).heading)));
    this.set({ step: trajectory.poses.length / 2 - 1, turn: "", hidden: this.state.hidden });
  }

  /** End the walk of a person, and compare its scores with the agent's. */
  async endPerson() {
    const [trajectory, number] = [this.trajectory(this.person), this.episodeNumber];
    if (!this.isPersonWalking || !trajectory) return;
    this.isPersonWalking = false;
    trajectory.stopped = true;
    if (!this.episode.goals.length) {
      this.#say("This instruction has no goal, so your walk has no scores.");
      return this.render();
    }
    const reply = await this.send("score", { episode: this.episode.id, path: viewpointsOf(trajectory) });
    if (!reply) return;
    trajectory.scores = reply.scores;
    const agent = this.live.agent ? this.#outcome(AGENT, number) || "has not walked this episode yet" : "";
    this.#say(`You have stopped ${this.#outcome(this.person, number)}.${agent && ` The agent: ${agent}.`}`);
    this.render();
  }

  /** Clear the memory of the agent on the server and on the page. */
  async clearMemory() {
    this.walk = 0;
    const record = await this.send("clear");
    if (!record) return;
    withWalks(this.data, this.first, record);
    this.#say("The memory is empty.");
    this.render();
  }

  async saveMemory() {
    const reply = await this.send("save");
    if (reply) this.#say(`Saved: ${reply.path}`);
  }
}
