// Long lists in pages: "1–12 of 64" between two buttons.

import { element } from "./words.js";

/** total: how many there are; from: the first that is shown; most: of a page; go: called with another first one. */
export function pager(total, from, most, go) {
  if (total <= most && !from) return null;
  const button = (label, words, to) => {
    const made = element("button", { "aria-label": words, type: "button" }, label);
    made.disabled = to < 0 || to >= total || to === from;
    made.addEventListener("click", () => go(to));
    return made;
  };
  const last = Math.min(total, from + most);
  return element("div", { class: "pager" },
    button("‹", "Earlier ones", from ? Math.max(0, from - most) : -1),
    element("span", {}, `${from + 1}–${last} of ${total}`),
    button("›", "Later ones", from + most));
}
