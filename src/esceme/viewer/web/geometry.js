// Directions between viewpoints, and lines of paths on the floors of a scene.

/** @typedef {import("./types.js").Scene} Scene */

/**
 * Return an angle in degrees between -180 (excluded) and 180.
 * @param {number} degrees
 */
export function wrapDegrees(degrees) {
  return -((((-degrees + 180) % 360) + 360) % 360) + 180;
}

/**
 * Return heading and elevation, in degrees, of the direction from one viewpoint to another. Heading 0 is north (+y);
 * headings grow clockwise.
 * @param {Scene} scene
 * @param {number} from
 * @param {number} to
 */
export function directionTo(scene, from, to) {
  const [x, y, z] = [0, 1, 2].map((axis) => scene.positions[3 * to + axis] - scene.positions[3 * from + axis]);
  const degrees = 180 / Math.PI;
  return { heading: Math.atan2(x, y) * degrees, elevation: Math.atan2(z, Math.hypot(x, y)) * degrees };
}

/**
 * Return the heading of a view (0 to 35) in degrees.
 * @param {number} view
 */
export function viewHeading(view) {
  return (view % 12) * 30;
}

/**
 * Return the level view (12 to 23) that is nearest to a heading in degrees.
 * @param {number} heading
 */
export function headingView(heading) {
  return 12 + ((Math.round(heading / 30) + 24) % 12);
}

/**
 * Return the distance of two viewpoints in metres.
 * @param {Scene} scene
 * @param {number} a
 * @param {number} b
 */
export function distance(scene, a, b) {
  return Math.hypot(...[0, 1, 2].map((axis) => scene.positions[3 * a + axis] - scene.positions[3 * b + axis])) / 100;
}

/**
 * Return the lines of a path on every floor: x1, y1, x2, y2 in centimetres, and the number of the step. A step to
 * another floor ends at the middle of its edge. `offset` moves a line aside, to the same side of an edge in both
 * directions, so that the paths of several agents on one edge are drawn side by side.
 * @param {Scene} scene
 * @param {number[]} path
 * @param {number} offset in centimetres
 * @returns {{floor: number, line: [number, number, number, number], step: number}[]}
 */
export function pathLines(scene, path, offset) {
  const lines = [];
  for (let step = 1; step < path.length; step++) {
    const [a, b] = [path[step - 1], path[step]];
    if (a === b) continue;
    const [x1, y1, x2, y2] = [
      ...[scene.positions[3 * a], scene.positions[3 * a + 1]],
      ...[scene.positions[3 * b], scene.positions[3 * b + 1]],
    ];
    const sign = a < b ? 1 : -1;
    const length = Math.hypot(x2 - x1, y2 - y1) || 1;
    const [dx, dy] = [(sign * offset * (y2 - y1)) / length, (-sign * offset * (x2 - x1)) / length];
    const [mx, my] = [(x1 + x2) / 2, (y1 + y2) / 2];
    if (scene.floors[a] === scene.floors[b])
      lines.push({ floor: scene.floors[a], line: quadruple(x1 + dx, y1 + dy, x2 + dx, y2 + dy), step });
    else
      lines.push(
        { floor: scene.floors[a], line: quadruple(x1 + dx, y1 + dy, mx + dx, my + dy), step },
        { floor: scene.floors[b], line: quadruple(mx + dx, my + dy, x2 + dx, y2 + dy), step },
      );
  }
  return lines;
}

/**
 * @param {number} a
 * @param {number} b
 * @param {number} c
 * @param {number} d
 * @returns {[number, number, number, number]}
 */
function quadruple(a, b, c, d) {
  return [a, b, c, d];
}

/** @typedef {{west: number, south: number, east: number, north: number}} Box in centimetres */

/**
 * Return the bounding box of viewpoints, enlarged by a margin; null without viewpoints.
 * @param {Scene} scene
 * @param {Iterable<number>} viewpoints
 * @param {number} margin
 * @returns {Box | null}
 */
export function boundingBox(scene, viewpoints, margin) {
  const box = { west: Infinity, south: Infinity, east: -Infinity, north: -Infinity };
  for (const viewpoint of viewpoints) {
    const [x, y] = [scene.positions[3 * viewpoint], scene.positions[3 * viewpoint + 1]];
    box.west = Math.min(box.west, x - margin);
    box.east = Math.max(box.east, x + margin);
    box.south = Math.min(box.south, y - margin);
    box.north = Math.max(box.north, y + margin);
  }
  return box.west <= box.east ? box : null;
}
