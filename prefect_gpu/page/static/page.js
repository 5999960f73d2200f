// Asks the worker what has changed, once a second, and shows it.

import { curve } from "./curve.js";
import { Lanes } from "./lanes.js";
import { pager } from "./pager.js";
import { PAST, PHASES } from "./phases.js";
import { showQueue } from "./queue.js";
import { showShares } from "./shares.js";
import { aheadBy, apart, bytes, called, clock, doing, dotted, element, instances, lower, newest, nodesLine, number, place, promisesLine, refill, seconds, sentence, spent } from "./words.js";

const EVERY_MS = 1000, FINISHED_SHOWN = 25, RUNNING_SHOWN = 12, QUEUE_SHOWN = 50;
const $ = (id) => document.getElementById(id);

const pool = { runs: new Map(), version: 0, epoch: "", nodes: [], devices: [], queue: [], queued: 0, queue_from: 0, prefect: {} };
const lanes = new Lanes(document.querySelector("#lanes canvas"));
let runningFrom = 0, queueFrom = 0;
let skew = 0, opened = null, pressed = false, drawn = "", drawnRun = "", drawnQueue = "", drawnShares = "";
const now = () => Date.now() / 1000 + skew;

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error(`${answer.status}`);
  return answer.json();
}

/** Take in what has changed. */
async function learn() {
  const told = await ask(`api/overview?since=${pool.version}&epoch=${pool.epoch}&queue=${queueFrom}`);
  if (told.epoch !== pool.epoch) {
    pool.runs.clear();
    opened = null; // another worker has other numbers: the address says which run is read
  }
  for (const run of told.runs) pool.runs.set(run.n, run);
  const { runs: _, ...rest } = told;
  Object.assign(pool, rest);
  skew = told.now - Date.now() / 1000;
  aheadBy(told.ahead_s ?? 0);
  queueFrom = pool.queue_from ?? 0; // the queue may have become shorter
  const over = [...pool.runs.values()].filter((run) => run.outcome);
  if (over.length > pool.most_finished) {
    over.sort((one, other) => one.ended - other.ended);
    for (const run of over.slice(0, over.length - pool.most_finished)) pool.runs.delete(run.n);
  }
}

function show() {
  const all = [...pool.runs.values()], active = all.filter((run) => !run.outcome);
  const over = all.filter((run) => run.outcome && run.outcome !== "not started").sort((one, other) => other.ended - one.ended);
  document.title = `${pool.pool} · GPU pool`;
  $("pool").textContent = `Pool ${pool.pool}`;
  const home = safe(pool.prefect?.pool);
  $("pool-link").hidden = !home;
  if (home) $("pool-link").href = home;
  const cores = pool.nodes.reduce((sum, node) => sum + (node.state === "up" ? node.cores : 0), 0);
  $("where").textContent = `${nodesLine(pool.nodes)} · ${cores} core${cores === 1 ? "" : "s"} · profile ${pool.profile}${promisesLine(pool.promises)}${pool.draining ? " · draining: no run is started any more" : ""}`;
  $("unwell").hidden = !pool.unwell?.length;
  const unwell = `Not well: ${(pool.unwell ?? []).join("; ")}`;
  if ($("unwell").textContent !== unwell) $("unwell").textContent = unwell;
  showNumbers(active, over);
  showRunning(active);
  // Much text that seldom changes: written anew only when it did. What was today has a date tomorrow.
  const today = new Date().toDateString(), newestOver = `${today} ${pool.epoch} ${over.length} ${over[0]?.n}`;
  if (newestOver !== drawn) { drawn = newestOver; showFinished(over); }
  const queued = JSON.stringify([today, pool.queue, pool.queued, pool.queue_groups]);
  if (queued !== drawnQueue) { drawnQueue = queued; showQueue(pool, $("queue"), table, { page: QUEUE_SHOWN, now: now(), link: inPrefect, go: turnQueue }); }
  const divided = JSON.stringify(pool.shares ?? null);
  if (divided !== drawnShares) { drawnShares = divided; showShares($("shares-panel"), $("shares"), pool.shares, table); }
  lanes.draw(pool, now());
}

/** An address that may be followed; null: it is none. */
function safe(address) {
  return /^https?:/.test(address ?? "") ? address : null;
}

/** A run's page in Prefect. */
function inPrefect(id) {
  return safe(pool.prefect?.run)?.replace("{id}", encodeURIComponent(id)) ?? null;
}

function turnQueue(from) {
  queueFrom = from;
  refresh();
}

function showNumbers(active, over) {
  const count = (phase) => active.filter((run) => run.phase === phase).length;
  const gaps = pool.devices.reduce((sum, device) => sum + device.gaps, 0);
  const idle = pool.devices.reduce((sum, device) => sum + device.idle_s, 0);
  const wasting = active.filter((run) => run.wasting).length;
  const failed = over.filter((run) => ["failed", "crashed"].includes(run.outcome)).length;
  const told = [
    [count("training"), lower("training")],
    [count("launching") + count("preparing"), lower("preparing")],
    [count("gate"), lower("gate")],
    [count("saving") + count("ending"), lower("saving")],
    [pool.queued, "waiting"],
    [over.filter((run) => run.outcome === "completed").length, "completed"],
    [failed, "failed"],
    ...(wasting ? [[wasting, "waste their devices"]] : []),
    [gaps ? seconds(idle / gaps) : "–", `device idle per hand-over${gaps ? ` (${gaps})` : ""}`],
  ];
  $("numbers").replaceChildren(...told.map(([value, name]) => element("div", { class: "number" }, element("b", {}, String(value)), element("span", {}, name))));
}

function showRunning(active) {
  const order = ["training", "gate", "preparing", "launching", "saving", "ending"];
  active.sort((one, other) => Boolean(other.wasting) - Boolean(one.wasting) || order.indexOf(one.phase) - order.indexOf(other.phase) || one.n - other.n);
  if (runningFrom >= active.length) runningFrom = 0;
  const cards = active.slice(runningFrom, runningFrom + RUNNING_SHOWN).map((run) => {
    const weight = newest(run.weights, 1);
    const title = element("div", { class: "name" }, apart(run.name), element("span", { class: `chip ${run.phase}` }, PHASES[run.phase] ?? run.phase));
    if (weight === 0) title.append(element("span", { class: "chip plain" }, "paused"));
    else if (weight < 1) title.append(element("span", { class: "chip plain" }, `gives way: ${Math.round(weight * 100)} %`));
    if (run.finishing) title.append(element("span", { class: "chip plain" }, "ends early"));
    if (run.wasting) title.append(element("span", { class: "chip failed" }, "wastes its device"));
    const on = [place(run, pool.nodes.length > 1) || "no device", `${newest(run.cores, 0)} core${newest(run.cores, 0) === 1 ? "" : "s"}`];
    if (run.neighbours.length && run.shared) on.push("shares");
    const card = element("div", { class: "run", tabindex: "0", "data-launch": run.n, role: "button" }, title, element("div", { class: "said" }, ...dotted([run.flow && apart(run.flow), ...on])));
    if (run.wasting) card.append(element("div", { class: "said" }, sentence(run.wasting)));
    const line = doing(run, now());
    if (line.length) card.append(element("div", { class: "said" }, ...dotted(line)));
    if (run.steps && run.step !== null && run.phase !== "gate") {
      const done = element("div");
      done.style.width = `${Math.min(100, (100 * run.step) / run.steps)}%`;
      card.append(element("div", { class: "progress" }, done));
    }
    const small = curve(run.losses ?? [], { width: 150, height: 46 });
    if (small) card.append(element("div", { class: "curve" }, small));
    return card;
  });
  const pages = pager(active.length, runningFrom, RUNNING_SHOWN, (from) => { runningFrom = from; show(); });
  if (pages) cards.push(pages);
  refill($("running"), ...(cards.length ? cards : [element("p", { class: "none" }, "Nothing runs.")]));
}

function table(heads, rows) {
  const head = element("tr", {}, ...heads.map(([name, kind]) => element("th", { class: kind ?? null, scope: "col" }, name)));
  return element("div", { class: "scroll" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
}

function showFinished(over) {
  if (!over.length) return $("finished").replaceChildren(element("p", { class: "none" }, "No run has finished since the worker started."));
  const rows = over.slice(0, FINISHED_SHOWN).map((run) => {
    const bad = run.outcome !== "completed";
    const cells = [seconds(Math.max(0, run.granted - run.submitted)), run.behind ? seconds(spent(run, "gate", run.ended) ?? 0) : "–",
      seconds(spent(run, "training", run.ended)), seconds(run.idle_before_s), number(run.best_loss)];
    return element("tr", { "data-launch": run.n },
      element("td", {}, clock(run.ended)), element("td", { class: "name" }, element("button", { type: "button" }, run.name)),
      element("td", {}, element("span", { class: bad ? "chip failed" : "chip plain" }, run.outcome)), element("td", {}, place(run, pool.nodes.length > 1) || "–"),
      ...cells.map((cell) => element("td", { class: "figure" }, cell)));
  });
  const heads = [["Ended"], ["Run"], ["Outcome"], ["Device"], ["Waited", "figure"], [PHASES.gate, "figure"], [sentence(PAST.training), "figure"], ["Device idle before", "figure"], ["Best loss", "figure"]];
  const shown = [table(heads, rows)];
  if (over.length > FINISHED_SHOWN) shown.push(element("p", { class: "none" }, `And ${over.length - FINISHED_SHOWN} older ones, in the lanes above; prefect-gpu history has all.`));
  refill($("finished"), ...shown);
}

// -- one run ------------------------------------------------------------------------------------------------------------

async function showRun(launch) {
  let run;
  try {
    run = await ask(`api/runs/${launch}`);
  } catch {
    return;
  }
  if (opened !== launch) return;
  const told = JSON.stringify(run);
  if (told === drawnRun && run.outcome && $("run").open) return; // else nobody could copy a word of it
  drawnRun = told;
  $("run-title").textContent = run.name;
  const link = safe(run.prefect);
  $("run-link").hidden = !link;
  $("run-link").href = link ?? "";
  const from = run.submitted ?? run.granted, weight = newest(run.weights, 1);
  const facts = [
    ["Flow", run.flow || "–"], ["State", run.outcome ?? PHASES[run.phase] ?? "–"], ["Devices", place(run, pool.nodes.length > 1) || "none"],
    ["Memory granted", run.memory_bytes ? bytes(run.memory_bytes) : "whole devices"], ["Cores", String(newest(run.cores, 0))], ["Share of its devices", `${Math.round(weight * 100)} %`],
    ["Waited", seconds(Math.max(0, run.granted - from))], [sentence(PAST.training), seconds(spent(run, "training", now()))],
    ["Prepared behind", run.behind ?? "–"], [PHASES.gate, seconds(spent(run, "gate", now()))],
    ["Device idle before it", seconds(run.idle_before_s)], ["Shares its devices with", run.neighbours.join(", ") || "none"],
    ["Step", run.step === null ? "–" : `${run.step}${run.steps ? ` of ${run.steps}` : ""}`], ["Best loss", number(run.best_loss)],
    ["Expected end", run.expected_end && !run.outcome ? clock(run.expected_end) : "–"],
  ];
  const body = [];
  if (run.wasting && !run.outcome) body.push(element("p", { class: "warning" }, `It wastes its device: ${run.wasting}.`));
  body.push(element("h3", {}, "Phases"), phases(run));
  const large = curve(run.losses, { width: innerWidth < 600 ? 360 : 800, height: 230, axes: true });
  if (large) body.push(element("h3", {}, "Loss"), large);
  body.push(element("dl", {}, ...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)))));
  if (run.parts.length) {
    const parts = run.parts.map((part, rank) => element("tr", {}, element("td", { class: "figure" }, String(rank)), element("td", {}, sentence(part.role)), element("td", {}, part.node), element("td", {}, part.devices.join(", ") || "none")));
    body.push(element("h3", {}, "Its instances"), table([["#", "figure"], ["Role"], ["Node"], ["Devices"]], parts));
  }
  if (run.message && run.outcome !== "completed") body.push(element("h3", {}, "How it ended"), element("p", { class: "message" }, run.message));
  const rows = run.story.map(([at, words]) => element("tr", {}, element("td", { class: "figure" }, `+${seconds(Math.max(0, at - from))}`), element("td", {}, sentence(words))));
  if (rows.length) body.push(element("h3", {}, "What happened, and why"), table([["After its submission", "figure"], ["Event"]], rows));
  $("run-body").replaceChildren(...body);
  if (!$("run").open) $("run").showModal();
}

/** One bar of all phases, and below it what each took. */
function phases(run) {
  const until = run.ended ?? now(), lasted = (span) => Math.max(0, (span[2] ?? until) - span[1]);
  const parts = run.spans.filter((span) => lasted(span) > 0);
  const bar = element("div", { class: "phases", role: "img", "aria-label": parts.map((span) => `${PHASES[span[0]] ?? span[0]} ${seconds(lasted(span))}`).join(", ") });
  const list = element("div", { class: "legend" });
  for (const span of parts) {
    const part = element("i", { class: span[0] });
    part.style.flexGrow = String(lasted(span));
    bar.append(part);
    list.append(element("span", {}, element("i", { class: span[0] }), `${PHASES[span[0]] ?? span[0]} ${seconds(lasted(span))}`));
  }
  return element("div", {}, bar, list);
}

function open(launch) {
  opened = Number(launch);
  history.replaceState(null, "", `#run=${encodeURIComponent(pool.runs.get(opened).id)}`); // its own address, to be kept and handed on
  showRun(opened);
}

/** Prefect links to #run=<id of the flow run>. */
function openLinked() {
  const id = new URLSearchParams(location.hash.slice(1)).get("run");
  if (!id || pool.runs.get(opened)?.id === id) return; // an earlier try of the same run may be read, too
  const found = [...pool.runs.values()].filter((run) => run.id === id).pop();
  if (found) open(found.n);
}

// -- the pointer, the keys, the clock -----------------------------------------------------------------------------------

document.addEventListener("click", (event) => {
  const launch = event.target.closest?.("[data-launch]")?.dataset.launch;
  if (launch) open(launch);
  const chosen = event.target.closest?.("#zoom button");
  if (chosen) {
    for (const button of $("zoom").children) button.setAttribute("aria-pressed", String(button === chosen));
    lanes.seconds = Number(chosen.dataset.seconds);
    lanes.draw(pool, now());
  }
});
document.addEventListener("keydown", (event) => {
  if (!["Enter", " "].includes(event.key) || event.target.getAttribute("role") !== "button") return;
  event.preventDefault();
  open(event.target.dataset.launch);
});
// What is written anew between the pointer's press and its release is not clicked.
document.addEventListener("pointerdown", () => { pressed = true; }, true);
for (const kind of ["pointerup", "pointercancel"]) addEventListener(kind, () => { pressed = false; }, true);
addEventListener("blur", () => { pressed = false; });
$("close").addEventListener("click", () => $("run").close());
$("run").addEventListener("click", (event) => { if (event.target === $("run")) $("run").close(); });
$("run").addEventListener("close", () => {
  // The browser would go back to what had been chosen, which was written anew meanwhile.
  const from = document.querySelector(`[data-launch="${opened}"]`);
  (from?.querySelector("button") ?? from)?.focus({ preventScroll: true });
  opened = null;
  history.replaceState(null, "", " ");
});
lanes.canvas.addEventListener("click", (event) => {
  const box = lanes.at(event.offsetX, event.offsetY);
  if (box) return open(box.run.n);
  const node = lanes.nodeAt(event.offsetY);
  if (node !== null) { lanes.turn(node); lanes.draw(pool, now()); }
});
lanes.canvas.addEventListener("pointermove", (event) => {
  const box = lanes.at(event.offsetX, event.offsetY), tip = $("tip");
  lanes.canvas.style.cursor = box || lanes.nodeAt(event.offsetY) !== null ? "pointer" : "default";
  tip.hidden = !box;
  if (!box) return;
  const { run, rank } = box, part = instances(run)[rank];
  const lines = [run.name, [apart(run.flow), ` · ${run.outcome ?? PHASES[run.phase]}`]];
  if (run.parts.length) lines.push(`${sentence(called(run, rank))} of ${run.parts.length} instances, on ${part.node}: ${part.devices.join(", ") || "no device"}`);
  for (const [phase, start, end] of run.spans) lines.push(`${PHASES[phase] ?? phase}: ${seconds((end ?? run.ended ?? now()) - start)}`);
  if (run.behind) lines.push(["Prepared behind ", apart(run.behind)]);
  for (const [since, weight] of run.weights) lines.push(`${clock(since)}: ${weight === 0 ? "paused" : weight < 1 ? `gives way: ${Math.round(weight * 100)} %` : "full share"}`);
  tip.replaceChildren(...lines.map((line) => element("div", {}, ...[line].flat())));
  const panel = lanes.canvas.closest(".panel").getBoundingClientRect();
  tip.style.left = `${Math.min(event.clientX - panel.left + 14, panel.width - tip.offsetWidth - 8)}px`;
  tip.style.top = `${event.clientY - panel.top + 16}px`;
});
lanes.canvas.addEventListener("pointerleave", () => { $("tip").hidden = true; });
addEventListener("resize", () => lanes.draw(pool, now()));
addEventListener("hashchange", openLinked);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => lanes.draw(pool, now()));

const legend = ["launching", "preparing", "gate", "training", "saving"].map((name) => [name, lower(name)]);
legend[3][1] += " (height: its share)";
legend.push(["idle", "device idle between trainings"]);
$("legend").replaceChildren(...legend.map(([name, words]) => element("span", {}, element("i", { class: name }), words)));

async function refresh() {
  const live = $("live");
  try {
    await learn();
    if (!pressed) show();
    if (opened !== null && !pressed) await showRun(opened);
    openLinked();
    live.className = "on";
    say("live");
    $("at").textContent = `, ${clock(now())}`;
  } catch (error) {
    live.className = "off";
    say("The worker does not answer; what is shown is old.");
    $("at").textContent = "";
    if (!(error instanceof TypeError && /fetch/i.test(error.message))) console.error(error);
  }
}

/** Read aloud to those who listen to the page: only when it changes. */
function say(words) {
  const status = $("live").querySelector("[role=status]");
  if (status.textContent !== words) status.textContent = words;
}

async function go() {
  await refresh();
  setTimeout(go, document.hidden ? EVERY_MS * 10 : EVERY_MS);
}

globalThis.poolPage = { refresh, pool, lanes }; // for the benchmark and the tests
go();
