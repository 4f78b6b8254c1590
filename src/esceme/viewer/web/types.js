// Types of the page's data, as `page_data.py` writes it. Viewpoints are numbers in their scene.

/**
 * @typedef {object} Scene
 * @property {string} id
 * @property {string[]} viewpoints
 * @property {number[]} positions x, y and z of every viewpoint in centimetres, one after the other
 * @property {number[]} floors
 * @property {number[]} heights height of every floor in centimetres
 * @property {number[][]} neighbours candidates of every viewpoint, in the order of the actions
 * @property {number[] | null} rooms kind of each viewpoint's room: index into `Data.rooms`, or -1
 * @property {number[] | null} regions number of each viewpoint's room in the scene, or -1
 */

/**
 * @typedef {object} Episode
 * @property {string} id
 * @property {number} scene
 * @property {string} path
 * @property {string} instruction
 * @property {number[]} reference
 * @property {number} view view that the agent faces at the start
 * @property {number[]} goals
 * @property {number} instruction_number number of this instruction among those of its path, from 1
 */

/**
 * One decision: probabilities, probabilities with zero recall, action, recalled viewpoints, attention, viewpoints of
 * the actions after STOP, further details. Probabilities and attention are in units of 1/10000.
 * @typedef {[number[], number[] | null, number, number[], number[] | null, number[], Details | null]} Step
 */

/** @typedef {{compared?: number, routes?: PlannedRoute[], [key: string]: unknown}} Details */

/**
 * Route that a planning agent compared with others, the best first.
 * @typedef {object} PlannedRoute
 * @property {number[]} path
 * @property {boolean} [visited] whether the end of the route was visited before
 * @property {number} [probability]
 * @property {number} [utility]
 * @property {Record<string, number>} [scores]
 */

/**
 * @typedef {object} Trajectory
 * @property {number} visit
 * @property {number} order number of the episode in its scene, in the order of the evaluation
 * @property {number[]} poses viewpoint and view of every pose, one after the other
 * @property {boolean} stopped
 * @property {(number | null)[]} scores in the order of `Data.measures`
 * @property {number[] | null} spans begin and end of every token in the instruction, one after the other
 * @property {(Step | null)[] | null} steps decision at every pose
 */

/**
 * @typedef {object} History
 * @property {number[]} episodes in the order of the evaluation
 * @property {number[][]} stored viewpoints that each episode stores, in the order of its steps
 * @property {number[]} cleared numbers of the episodes before which the memory was cleared
 * @property {number[]} initial viewpoints in memory before the first episode
 */

/**
 * @typedef {object} Result
 * @property {string} name
 * @property {boolean} has_memory
 * @property {Record<string, unknown>} facts
 * @property {Record<string, number>} means
 * @property {Trajectory[]} trajectories by episode
 * @property {History[]} histories by scene
 */

/**
 * @typedef {object} Curve
 * @property {string} measure
 * @property {string} axis
 * @property {string} x_label
 * @property {string} y_label
 * @property {{x: number[], y: number[], low: number[], high: number[]}[]} lines one per result
 */

/**
 * All walks of the agent on the live page. `typed` are episodes after those of the split.
 * @typedef {object} WalkRecord
 * @property {number} walk number of the latest walk
 * @property {number} episode number of its episode, or -1
 * @property {Episode[]} typed
 * @property {Record<string, Trajectory>} trajectories by the number of their episode
 * @property {History[]} histories by scene
 */

/** @typedef {{agent: boolean, memory: boolean, saveable: boolean, record: WalkRecord}} Live */

/**
 * @typedef {object} Data
 * @property {string} version
 * @property {string} task
 * @property {string} split
 * @property {string[]} measures
 * @property {string[]} rooms
 * @property {Scene[]} scenes
 * @property {Episode[]} episodes
 * @property {Result[]} results
 * @property {Curve[]} curves
 * @property {number} left_out
 * @property {Record<string, string>} pictures `scene/viewpoint` -> JPEG as base64; empty texts on the live page
 * @property {Live | null} live
 */

export {};
