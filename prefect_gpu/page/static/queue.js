// Who waits: how many for each kind of reason, and a page of them in order.

import { pager } from "./pager.js";
import { clock, element, refill, sentence } from "./words.js";

const HEADS = [["#", "figure"], ["Run"], ["Why it waits"], ["Expected start", "figure"], ["Waits since", "figure"]];

/** go: called with the number of runs to leave out; link: a run's page in Prefect, or null. */
export function showQueue(pool, into, table, { page, now, link, go }) {
  if (!pool.queue.length) return into.replaceChildren(element("p", { class: "none" }, "No run waits."));
  const first = pool.queue_from ?? 0;
  const rows = pool.queue.map((run, position) => {
    const start = run.expected_start !== null ? `${clock(run.expected_start)}` : run.due > now ? `due ${clock(run.due)}` : "unknown";
    const href = link(run.id);
    const name = href ? element("a", { href, target: "_blank", rel: "noopener", title: "Open in Prefect" }, run.name) : run.name;
    return element("tr", { "data-run": run.id },
      element("td", { class: "figure" }, String(first + position + 1)), element("td", { class: "name" }, name),
      element("td", {}, sentence(run.reason || "it has just arrived")), element("td", { class: "figure" }, start), element("td", { class: "figure" }, clock(run.submitted)));
  });
  const shown = [];
  const groups = pool.queue_groups ?? [];
  if (pool.queued > 5 && groups.length) {
    shown.push(element("ul", { class: "groups" }, ...groups.map((group) => element("li", {}, element("b", {}, String(group.runs)), element("span", {}, sentence(group.reason || "it has just arrived"))))));
  }
  const list = table(HEADS, rows);
  const scrolled = into.querySelector(".scroll")?.scrollTop ?? 0;
  shown.push(list);
  const pages = pager(pool.queued, first, page, go);
  if (pages) shown.push(pages);
  refill(into, ...shown);
  list.scrollTop = scrolled;
}
