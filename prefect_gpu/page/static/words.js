// Words and small elements. Text from outside only ever becomes text, never markup.

import { PHASES } from "./phases.js";

/** An element: element("p", {class: "quiet"}, "some text", another). */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** 0.42 s, 7.3 s, 42 s, 3 min 20 s, 2 h 5 min */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.0995) return `${Math.round(value * 1000)} ms`;
  if (value < 9.95) return `${value.toFixed(value < 1 ? 2 : 1)} s`;
  const whole = Math.round(value);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 172800) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.round(whole / 86400)} days`;
}

let ahead = 0; // seconds

/** The times that the worker tells are so far ahead of its machine's clock, which was set meanwhile. */
export function aheadBy(seconds) { ahead = seconds; }

/** A moment of today as a time, any other one with its date before it. */
export function clock(moment) {
  const at = new Date((moment - ahead) * 1000), time = hour(at, true);
  return at.toDateString() === new Date().toDateString() ? time : `${day(at)}, ${time}`;
}

/** "h23", as without it midnight is 24:00 in some languages. */
export const hour = (at, exact) => at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: exact ? "2-digit" : undefined, hourCycle: "h23" });
export const day = (at) => at.toLocaleDateString([], { month: "short", day: "numeric" });

export function bytes(value) {
  return value >= 2 ** 30 ? `${+(value / 2 ** 30).toFixed(1)} GiB` : `${Math.round(value / 2 ** 20)} MiB`;
}

/** With a capital letter. */
export const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** A phase's word within a sentence. */
export const lower = (phase) => PHASES[phase].charAt(0).toLowerCase() + PHASES[phase].slice(1);

export function number(value) {
  return value === null || value === undefined ? "–" : String(+Number(value).toPrecision(4));
}

/** A run's instances, each with node, devices and role: those of a gang, or the run itself. */
export const instances = (run) => (run.parts.length ? run.parts : [{ node: run.node, devices: run.devices, role: "worker" }]);

/** What an instance of a gang is called; its number is RANK, as in the log. Empty for a run that is no gang. */
export const called = (run, rank) => (run.parts.length ? `${run.parts[rank].role} ${rank}` : "");

/** Where a run is, in a few words. several: whether there are several nodes, which all names of devices need not say. */
export function place(run, several) {
  if (!run.parts.length) {
    const devices = run.devices.join(", ");
    if (!several || run.devices.every((id) => id.startsWith(`${run.node}/`)) && devices) return devices;
    return devices ? `${run.node}: ${devices}` : `no device, on ${run.node}`;
  }
  const servers = run.parts.filter((part) => part.role === "server").length, workers = run.parts.length - servers;
  const counts = [[workers, "worker"], [servers, "server"]].filter(([count]) => count);
  const nodes = [...new Set(run.parts.map((part) => part.node))];
  return `${counts.map(([count, role]) => `${count} ${role}${count === 1 ? "" : "s"}`).join(" and ")} on ${nodes.join(", ")}`;
}

/** What a node is, beside its name. */
export const STATES = { up: "up", closed: "closed: takes no work, its runs go on", gone: "gone: down or cut off" };

/** How promises of deadlines ended, if any were asked for. */
export function promisesLine(promises) {
  const { kept, broken, refused } = promises ?? { kept: 0, broken: 0, refused: 0 };
  return kept + broken + refused ? ` · promises: ${kept} kept, ${broken} broken, ${refused} refused` : "";
}

/** All nodes in a line; of many only those that do not take work by name. */
export function nodesLine(nodes) {
  if (!nodes.length) return "no node";
  const name = (node) => (node.state === "up" ? node.id : `${node.id} (${node.state})`);
  if (nodes.length === 1) return name(nodes[0]);
  const named = nodes.length <= 8 ? nodes : nodes.filter((node) => node.state !== "up");
  return `${nodes.length} nodes${named.length ? `: ${named.map(name).join(", ")}` : ""}`;
}

/** The newest value of a list of [since, value]. */
export const newest = (changes, before) => (changes.length ? changes[changes.length - 1][1] : before);

/** Seconds that a run has spent in a phase. */
export function spent(run, phase, now) {
  let total = null;
  for (const [name, start, end] of run.spans) if (name === phase) total = (total ?? 0) + Math.max(0, (end ?? run.ended ?? now) - start);
  return total;
}

/** A name within a line: one that is written from right to left leaves the words beside it in their order. */
export const apart = (name) => element("bdi", {}, name);

/** What a line is made of, with dots between. */
export const dotted = (parts) => parts.filter((part) => part).flatMap((part, index) => (index ? [" · ", part] : [part]));

/** One line on what a run does now, beside its phase, as parts of it. */
export function doing(run, now) {
  const said = [];
  if (run.behind && run.gated) said.push(element("span", {}, "behind ", apart(run.behind)));
  if (run.step !== null && run.phase === "training") said.push(`step ${run.step}${run.steps ? ` of ${run.steps}` : ""}`);
  if (run.steps_per_s && run.phase === "training") said.push(`${number(run.steps_per_s)} steps/s`);
  if (run.expected_end && run.phase === "training" && run.expected_end > now) said.push(`about ${seconds(run.expected_end - now)} to go`);
  return said;
}

/** Fill an element anew. Who has come to a place in it with the keyboard stays there. */
export function refill(into, ...children) {
  const at = document.activeElement, kept = into.contains(at) ? mark(at) : null;
  into.replaceChildren(...children);
  if (kept) [...into.querySelectorAll(".run, a, button")].find((one) => mark(one) === kept)?.focus({ preventScroll: true });
}
const mark = (one) => one.closest("[data-launch]")?.dataset.launch ?? one.getAttribute("aria-label") ?? one.getAttribute("href");
