// A loss curve as SVG: small without axes, or large with them.

import { number } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** points: [step, loss]; null if there is no curve yet. */
export function curve(points, { width, height, axes = false }) {
  const known = points.filter((point) => point[1] !== null);
  if (known.length < 2) return null;
  const losses = known.map((point) => point[1]);
  const [low, high] = [Math.min(...losses), Math.max(...losses)];
  const [first, last] = [known[0][0], known[known.length - 1][0]];
  const left = axes ? 62 : 1, bottom = axes ? 20 : 2, top = axes ? 8 : 2, right = axes ? 14 : 4;
  const x = (step) => left + ((step - first) / (last - first || 1)) * (width - left - right);
  const y = (loss) => height - bottom - ((loss - low) / (high - low || 1)) * (height - top - bottom);
  const drawn = shape("svg", { class: "curve", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `loss from ${number(losses[0])} to ${number(losses[losses.length - 1])}` });
  if (axes) {
    for (const part of [0, 0.25, 0.5, 0.75, 1]) {
      const loss = low + part * (high - low);
      drawn.append(
        shape("line", { x1: left, x2: width - right, y1: y(loss), y2: y(loss), stroke: "currentColor", "stroke-opacity": 0.15 }),
        shape("text", { x: left - 8, y: y(loss) + 4, "text-anchor": "end" }, number(loss)),
      );
    }
    drawn.append(shape("text", { x: left, y: height - 4 }, `step ${first}`), shape("text", { x: width - right, y: height - 4, "text-anchor": "end" }, `step ${last}`));
  }
  drawn.append(
    shape("polyline", { points: known.map(([step, loss]) => `${x(step).toFixed(1)},${y(loss).toFixed(1)}`).join(" "), fill: "none", stroke: "currentColor", "stroke-width": axes ? 1.8 : 1.5, "stroke-linejoin": "round" }),
    shape("circle", { cx: x(last), cy: y(losses[losses.length - 1]), r: axes ? 3.5 : 2.5, fill: "currentColor" }),
  );
  return drawn;
}
