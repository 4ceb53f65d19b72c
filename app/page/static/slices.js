// For whom the answers are right, in a dialog: the scores by the values of each field, the worst first.

import { byId, element, say } from "./dom.js";
import * as words from "./words.js";

const ALL = "all";

// `of` is training.slices of the status; there is none unless the settings name fields.
export function slices(of) {
  byId("for-whom").hidden = of == null;
  if (of == null || !byId("slices").open) return;
  const said = JSON.stringify(of);
  if (byId("slices-says").dataset.said === said) return;
  byId("slices-says").dataset.said = said;
  const all = of[ALL];
  say(byId("slices-says"), `Over the last ${words.count(all.records)} answers, with intervals of 95 %. The worst is first: that whose interval ends worst at its better end.`);
  const fields = new Map();
  for (const [name, one] of Object.entries(of)) {
    const at = name.indexOf("=");
    if (at > 0) fields.set(name.slice(0, at), [...(fields.get(name.slice(0, at)) ?? []), [name.slice(at + 1), one]]);
  }
  byId("slices-parts").replaceChildren(...[...fields].map(([field, rows]) => table(field, [...rows, [ALL, all]], Object.keys(all.values))));
}

function table(field, rows, scores) {
  const heads = [field, "records", ...scores.map(words.plain), `${words.plain(scores[0] ?? "")} since the beginning`];
  const further = (at) => (at > 2 && at < heads.length - 1 ? "further" : "");
  return element("table", { class: "numbers named by-slice" },
    element("thead", {}, element("tr", {}, ...heads.map((head, at) => element("th", { scope: "col", class: further(at) }, head)))),
    element("tbody", {}, ...rows.map(([name, one]) => element("tr", { class: name === ALL ? "whole" : "" },
      element("th", { scope: "row" }, name),
      element("td", {}, words.count(one.records)),
      ...scores.map((score, at) => element("td", { class: at ? "further" : "" }, words.metric(one.values[score]), interval(one, score))),
      element("td", {}, words.metric(one.cumulative[scores[0]]))))));
}

function interval({ lowest, highest }, score) {
  return lowest[score] == null ? null : element("span", { class: "interval" }, `${words.metric(lowest[score])} – ${words.metric(highest[score])}`);
}
