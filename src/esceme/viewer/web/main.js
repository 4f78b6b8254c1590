// Entry point: reads the data of the page and builds the page of results, or the live page.

import { App } from "./app.js";
import { LiveApp } from "./live.js";

const text = document.getElementById("data")?.textContent ?? "";
/** @type {import("./types.js").Data} */
const data = JSON.parse(text);
const app = data.live ? new LiveApp(data) : new App(data);
Object.assign(globalThis, { app });
