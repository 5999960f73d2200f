// The devices as lanes over time. A bar is a run; its height while training is its share of the device.
// With many devices, those of a node are thin lanes below its name, until somebody opens it by a click.

import { bytes, called, day, hour, instances, seconds, STATES } from "./words.js";

const TRACK = 24, GAP = 4, HEAD = 13, AXIS = 24, AHEAD = 0.12, NODE = 26, THIN = 5, MANY = 16;
let LABEL = 190; // less where there is little room
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400];

/** Runs by device, in tracks that do not overlap; with several nodes, what is of one node together below its name. */
function arranged(pool, from) {
  const several = pool.nodes.length > 1;
  const groups = new Map((several ? pool.nodes : [null]).map((node) => [node?.id ?? "", { node, lanes: [], runs: 0 }]));
  const group = (node) => groups.get(several ? node : "");
  const lanes = new Map(), without = new Map();
  for (const device of pool.devices) {
    const lane = { device, own: several, runs: [], group: group(device.node) };
    lanes.set(device.id, lane);
    lane.group?.lanes.push(lane);
  }
  /** The lane of a device that is not there any more, as long as a run trains on it that was adopted, say. */
  const gone = (id, at) => {
    const lane = { device: null, gone: at.node ? id.replace(`${at.node.id}/`, "") : id, runs: [], group: at };
    lanes.set(id, lane);
    at.lanes.push(lane);
    return lane;
  };
  for (const run of pool.runs.values()) {
    if ((run.ended ?? Infinity) < from || !run.spans.length) continue;
    instances(run).forEach((part, rank) => {
      const at = group(part.node);
      const found = part.devices.map((id) => lanes.get(id) ?? (run.ended || !at ? null : gone(id, at)));
      if (!found.length && at) {
        if (!without.has(at)) without.set(at, { device: null, runs: [], group: at });
        found.push(without.get(at));
      }
      for (const lane of found) if (lane?.group) { lane.runs.push({ run, rank }); lane.group.runs++; }
    });
  }
  for (const [at, lane] of without) at.lanes.push(lane);
  const all = [];
  for (const { node, lanes: own, runs } of groups.values()) {
    if (node) all.push({ node, lanes: own });
    if (node?.state !== "gone" || runs) all.push(...own);
  }
  for (const lane of all) {
    if (lane.node) continue;
    lane.runs.sort((one, other) => one.run.spans[0][1] - other.run.spans[0][1] || one.run.n - other.run.n || one.rank - other.rank);
    const free = [];
    lane.placed = lane.runs.map(({ run, rank }) => {
      let track = free.findIndex((end) => end <= run.spans[0][1]);
      if (track < 0) track = free.length;
      free[track] = run.ended ?? Infinity;
      return { run, rank, track };
    });
    lane.tracks = Math.max(1, free.length);
  }
  return all;
}

/** When anybody trained on the lane, as [start, end], joined. */
function trained(runs, now) {
  const spans = runs.flatMap(({ run }) => run.spans.filter((span) => span[0] === "training").map((span) => [span[1], span[2] ?? now]));
  spans.sort((one, other) => one[0] - other[0]);
  const joined = [];
  for (const span of spans) {
    const last = joined[joined.length - 1];
    if (last && span[0] <= last[1]) last[1] = Math.max(last[1], span[1]);
    else joined.push([...span]);
  }
  return joined;
}

/** Parts of a training with the same weight: [start, end, weight]. */
function weighted(run, start, end) {
  const parts = [];
  let at = start, weight = 1;
  for (const [since, next] of run.weights) {
    if (since > at && since < end) { parts.push([at, since, weight]); at = since; }
    if (since < end) weight = next;
  }
  parts.push([at, end, weight]);
  return parts;
}

export class Lanes {
  constructor(canvas) {
    this.canvas = canvas;
    this.seconds = 300;
    this.nodes = []; // where the names of nodes are, for the pointer
    this.turned = new Set(); // nodes that somebody has opened, or closed where all are open
    this.boxes = []; // what is where, for the pointer
  }

  /** What is at a place of the canvas, in CSS pixels: a run, and which of its instances; or null. */
  at(x, y) {
    return this.boxes.findLast((box) => x >= box.x && x <= box.x + box.w && y >= box.y && y <= box.y + box.h) ?? null;
  }

  /** The node whose name is at a place of the canvas; null if there is none that can be opened or closed. */
  nodeAt(y) {
    return this.nodes.find((one) => y >= one.y && y < one.y + NODE)?.id ?? null;
  }

  /** Open or close a node. */
  turn(id) {
    if (!this.turned.delete(id)) this.turned.add(id);
  }

  draw(pool, now) {
    const style = getComputedStyle(document.documentElement), colours = {};
    const colour = (name) => (colours[name] ??= style.getPropertyValue(`--${name}`).trim()); // asking is slow
    const first = Math.min(now - 10, ...Array.from(pool.runs.values(), (run) => run.spans[0]?.[1] ?? now));
    const span = this.seconds || now - first;
    const from = now - span, to = now + span * AHEAD;
    const lanes = arranged(pool, from);
    const width = this.canvas.parentElement.clientWidth;
    const many = pool.nodes.length > 1 && pool.devices.length > MANY;
    const thin = (id) => many !== this.turned.has(id);
    LABEL = width < 560 ? 96 : 190;
    for (const lane of lanes) lane.thin = !lane.node && Boolean(lane.group.node) && thin(lane.group.node.id);
    const heights = lanes.map((lane) => lane.node ? NODE : lane.thin ? THIN : HEAD + lane.tracks * TRACK + GAP * 2 + (lane.device && lane.tracks === 1 ? 18 : 8));
    const height = heights.reduce((sum, one) => sum + one, AXIS);
    const scale = globalThis.devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * scale) || this.canvas.height !== Math.round(height * scale)) {
      this.canvas.width = Math.round(width * scale);
      this.canvas.height = Math.round(height * scale);
      this.canvas.style.height = `${height}px`;
    }
    const draw = this.canvas.getContext("2d");
    draw.setTransform(scale, 0, 0, scale, 0, 0);
    draw.clearRect(0, 0, width, height);
    const x = (moment) => LABEL + ((moment - from) / (to - from)) * (width - LABEL);
    const inside = (moment) => Math.max(LABEL, Math.min(width, x(moment)));
    this.boxes = [];
    this.nodes = [];
    this.#axis(draw, colour, { from, to, width, height, x });
    let top = 0;
    lanes.forEach((lane, index) => {
      if (lane.node) {
        this.nodes.push({ id: lane.node.id, y: top });
        this.#node(draw, colour, lane, thin(lane.node.id), top, width);
        top += heights[index];
        return;
      }
      if (lane.thin) {
        draw.fillStyle = colour(lane.device?.cordoned ? "gone" : "track");
        draw.fillRect(LABEL, top, width - LABEL, THIN - 1);
        for (const { run, rank } of lane.placed) this.#bar(draw, colour, run, rank, top, THIN - 1, inside, now);
        top += heights[index];
        return;
      }
      this.#label(draw, colour, lane, top, now);
      const base = top + HEAD;
      draw.fillStyle = colour("track");
      for (let track = 0; track < lane.tracks; track++) draw.fillRect(LABEL, base + track * TRACK + GAP, width - LABEL, TRACK - GAP);
      if (lane.device) this.#idle(draw, colour, lane, top + 5, inside, from, now);
      for (const { run, rank, track } of lane.placed) this.#bar(draw, colour, run, rank, base + track * TRACK + GAP, TRACK - GAP, inside, now);
      this.#gates(draw, colour, lane, base, inside, from);
      top += heights[index];
      draw.fillStyle = colour("line");
      draw.fillRect(0, top - 2, width, 1);
    });
    draw.fillStyle = colour("ink");
    draw.globalAlpha = 0.55;
    draw.fillRect(x(now), 0, 1, height - AXIS);
    draw.globalAlpha = 1;
  }

  #axis(draw, colour, { from, to, width, height, x }) {
    const step = STEPS.find((one) => (one / (to - from)) * (width - LABEL) >= 78) ?? 172800;
    const offset = (moment) => new Date(moment * 1000).getTimezoneOffset() * 60, shift = offset(from);
    draw.font = "11px system-ui, 'Liberation Sans', sans-serif";
    draw.textAlign = "center";
    for (let even = Math.ceil((from - shift) / step) * step + shift; even < to; even += step) {
      const moment = step > 3600 ? even + offset(even) - shift : even; // midnight, also after clocks were changed
      const at = x(moment);
      draw.fillStyle = colour("line");
      draw.fillRect(at, 0, 1, height - AXIS + 3);
      draw.fillStyle = colour("quiet");
      const time = new Date(moment * 1000), midnight = step >= 3600 && time.getHours() === 0;
      const text = midnight ? day(time) : hour(time, step < 60);
      if (at > LABEL + 20 && at < width - 26) draw.fillText(text, at, height - 6);
    }
    draw.textAlign = "left";
  }

  /** A node's name, place and state, above its lanes. */
  #node(draw, colour, { node, lanes }, closed, top, width) {
    draw.fillStyle = colour("paper");
    draw.fillRect(0, top, width, NODE - 2);
    draw.fillStyle = colour(node.state);
    draw.beginPath();
    draw.arc(9, top + 12, 4, 0, 2 * Math.PI);
    draw.fill();
    draw.fillStyle = colour("ink");
    draw.font = "650 13px system-ui, 'Liberation Sans', sans-serif";
    const title = `${closed ? "▸" : "▾"} ${node.id}`;
    draw.fillText(title, 20, top + 16);
    const after = 20 + draw.measureText(title).width + 10;
    const devices = lanes.filter((lane) => lane.device);
    const busy = devices.filter((lane) => lane.runs.some(({ run }) => !run.outcome)).length;
    const said = [devices.length && `${busy} of ${devices.length} device${devices.length === 1 ? "" : "s"} in use`, node.state !== "up" && STATES[node.state], node.rack && `rack ${node.rack}`, node.domain && `domain ${node.domain}`, `${node.cores} core${node.cores === 1 ? "" : "s"}`];
    draw.fillStyle = colour(node.state === "up" ? "quiet" : "ink");
    draw.font = "12px system-ui, 'Liberation Sans', sans-serif";
    draw.fillText(said.filter(Boolean).join(" · "), after, top + 16);
  }

  #label(draw, colour, { device, own, gone }, top, now) {
    const id = own ? device.id.replace(`${device.node}/`, "") : device?.id ?? gone ?? "No device";
    draw.fillStyle = colour("ink");
    draw.font = "600 13px system-ui, 'Liberation Sans', sans-serif";
    this.#told(draw, id, top + 17);
    draw.fillStyle = colour("quiet");
    draw.font = "11px system-ui, 'Liberation Sans', sans-serif";
    if (!device) return this.#told(draw, gone ? "is not there any more" : "what only needs cores", top + 32);
    if (device.cordoned) {
      draw.fillStyle = colour("ink");
      return this.#told(draw, `out of service: ${device.cordoned}`, top + 32);
    }
    if (device.leaves) {
      const [at, why] = device.leaves;
      draw.fillStyle = colour("ink");
      this.#told(draw, `leaves service in ${seconds(Math.max(0, at - now))}${why ? `: ${why}` : ""}`, top + 47);
      draw.fillStyle = colour("quiet");
    }
    this.#told(draw, `${device.virtual ? "virtual, not a GPU" : device.kind} · ${bytes(device.memory_bytes)}`, top + 32);
    if (device.leaves) return;
    const mean = device.gaps ? `idle ${seconds(device.idle_s / device.gaps)} per hand-over (${device.gaps})` : "no hand-over yet";
    this.#told(draw, mean, top + 47);
  }

  /** Words in the column of names. They are squeezed by a fifth at most, and then cut, so that one can read them. */
  #told(draw, words, y) {
    const most = LABEL - 12, fits = 1.25 * most / draw.measureText(words).width;
    draw.fillText(fits < 1 ? `${words.slice(0, Math.floor(words.length * fits) - 1)}…` : words, 0, y, most);
  }

  /** A thin strip above the tracks: training, or idle between two trainings. */
  #idle(draw, colour, lane, y, inside, from, now) {
    const spans = trained(lane.runs, now);
    spans.forEach(([start, end], index) => {
      const next = index + 1 < spans.length ? spans[index + 1][0] : null;
      if (next !== null && next > from) {
        draw.fillStyle = colour("idle");
        draw.fillRect(inside(end), y, inside(next) - inside(end), 5);
      }
      if (end > from) {
        draw.fillStyle = colour("training");
        draw.fillRect(inside(start), y, Math.max(0.5, inside(end) - inside(start)), 5);
      }
    });
  }

  #bar(draw, colour, run, rank, y, h, inside, now) {
    const start = inside(run.spans[0][1]), end = inside(run.ended ?? now);
    for (const [phase, began, over] of run.spans) {
      const until = over ?? run.ended ?? now, left = inside(began), right = inside(until);
      if (right - left < 0.2 && phase !== "training") continue;
      draw.fillStyle = colour(phase);
      if (phase === "training") {
        for (const [since, to, weight] of weighted(run, began, until)) {
          const high = Math.max(3, h * Math.min(1, weight));
          const x = inside(since), w = Math.max(0.5, inside(to) - x);
          if (weight < 1) { draw.globalAlpha = 0.25; draw.fillRect(x, y, w, h); draw.globalAlpha = 1; }
          draw.fillRect(x, y + h - high, w, high);
        }
        this.#name(draw, colour, run, rank, Math.max(left, inside(began)), right, y, h);
      } else if (phase === "gate") this.#hatched(draw, colour("gate"), left, y, right - left, h);
      else draw.fillRect(left, y + (phase === "saving" ? 0 : h * 0.2), right - left, phase === "saving" ? h : h * 0.6);
    }
    if (run.outcome && run.outcome !== "completed") {
      draw.fillStyle = colour("failed");
      draw.fillRect(Math.max(start, end - 4), y, 4, h);
    }
    if (!run.outcome && run.expected_end > now) { // what is expected
      draw.globalAlpha = 0.22;
      draw.fillStyle = colour("training");
      draw.fillRect(end, y, inside(run.expected_end) - end, h);
      draw.globalAlpha = 1;
    }
    this.boxes.push({ x: start, y, w: Math.max(3, end - start), h, run, rank });
  }

  #name(draw, colour, run, rank, left, right, y, h) {
    if (right - left < 46 || h < 12) return;
    draw.save();
    draw.beginPath();
    draw.rect(left, y, right - left - 4, h);
    draw.clip();
    draw.fillStyle = newestWeight(run) < 1 ? colour("ink") : colour("on-training");
    draw.font = "11px system-ui, 'Liberation Sans', sans-serif";
    draw.fillText(run.parts.length ? `${run.name} · ${called(run, rank)}` : run.name, left + 5, y + h / 2 + 4);
    draw.restore();
  }

  #hatched(draw, ink, x, y, w, h) {
    if (w < 5) { // too narrow for lines
      draw.globalAlpha = 0.6;
      draw.fillStyle = ink;
      draw.fillRect(x, y, w, h);
      draw.globalAlpha = 1;
      return;
    }
    draw.save();
    draw.beginPath();
    draw.rect(x, y, w, h);
    draw.clip();
    draw.strokeStyle = ink;
    draw.lineWidth = 1.5;
    draw.beginPath();
    for (let at = x - (x % 6) - h; at < x + w; at += 6) { draw.moveTo(at, y + h); draw.lineTo(at + h, y); }
    draw.stroke();
    draw.lineWidth = 2;
    draw.strokeRect(x, y, w, h);
    draw.restore();
  }

  /** Where a gate was opened: a line through the lane. */
  #gates(draw, colour, lane, base, inside, from) {
    draw.strokeStyle = colour("gate");
    draw.lineWidth = 1.5;
    draw.setLineDash([3, 2]);
    draw.beginPath();
    for (const { run } of lane.tracks > 1 ? lane.placed : []) { // from one track to another
      if (!run.gate_opened || run.gate_opened < from) continue;
      draw.moveTo(inside(run.gate_opened), base);
      draw.lineTo(inside(run.gate_opened), base + lane.tracks * TRACK + GAP);
    }
    draw.stroke();
    draw.setLineDash([]);
  }
}

function newestWeight(run) {
  return run.weights.length ? run.weights[run.weights.length - 1][1] : 1;
}
