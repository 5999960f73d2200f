// How the pool is divided among the owners of its runs, if it is.

import { element, refill, seconds } from "./words.js";

const HEADS = [["Owner"], ["Guaranteed", "figure"], ["Limit", "figure"], ["Weight", "figure"], ["Holds", "figure"], ["Waits for", "figure"], ["Owed now", "figure"], ["Has had", "figure"], ["Was owed", "figure"], ["Lent", "figure"], ["Borrowed", "figure"], ["What it may expect"]];

const figure = (value) => (value ? String(Math.round(value * 100) / 100) : "–");
const part = (value) => `${Math.round(100 * value)} %`;

/** Fill the panel, or hide it where nothing is divided. */
export function showShares(panel, into, shares, table) {
  panel.hidden = !shares?.rows.length;
  if (panel.hidden) return;
  const rows = shares.rows.map((row) => {
    const name = element("td", { class: "name" }, row.is_group ? `${row.name}:` : row.name);
    name.style.paddingInlineStart = `${0.6 + 1.2 * row.depth}rem`;
    const figures = [figure(row.guaranteed), figure(row.limit), figure(row.weight), figure(row.holds), figure(row.waits), figure(row.owed), part(row.had_part), part(row.owed_part), figure(row.lent), figure(row.borrowed)];
    return element("tr", {}, name, ...figures.map((text) => element("td", { class: "figure" }, text)), element("td", {}, row.expects));
  });
  const note = `What owners have had, and were owed, counts half after ${seconds(shares.half_life_s)}.`;
  const list = table(HEADS, rows), scrolled = into.querySelector(".scroll")?.scrollTop ?? 0;
  refill(into, list, element("p", { class: "none" }, note));
  list.scrollTop = scrolled;
}
