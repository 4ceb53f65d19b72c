// What the versions that servers answer with score, in a dialog: each beside the model in training, on the same records.

import { byId, element, say } from "./dom.js";
import * as words from "./words.js";

// `of` is training.served of the status, the newest version first; there is none unless servers log predictions.
export function served(of) {
  byId("by-version").hidden = of == null;
  if (of == null || !byId("served").open) return;
  const said = JSON.stringify(of);
  if (byId("served-says").dataset.said === said) return;
  byId("served-says").dataset.said = said;
  const rows = Object.entries(of).sort(([one], [other]) => Number(other) - Number(one));
  const count = rows.reduce((sum, [, one]) => sum + one.records, 0);
  say(byId("served-says"), `Over the last ${words.count(count)} logged predictions whose labels have come, with intervals of 95 %. Below each score stands that of the model in training, for the same records.`);
  byId("served-parts").replaceChildren(table(rows, Object.keys(rows.find(([, one]) => one.records)?.[1].values ?? {})));
}

function table(rows, scores) {
  const heads = ["version", "records", ...scores.map(words.plain), `${words.plain(scores[0] ?? "")} since the beginning`];
  const further = (at) => (at > 2 && at < heads.length - 1 ? "further" : "");
  return element("table", { class: "numbers named by-slice" },
    element("thead", {}, element("tr", {}, ...heads.map((head, at) => element("th", { scope: "col", class: further(at) }, head)))),
    element("tbody", {}, ...rows.map(([version, one]) => element("tr", {},
      element("th", { scope: "row" }, version),
      element("td", {}, words.count(one.records)),
      ...scores.map((score, at) => element("td", { class: at ? "further" : "" }, words.metric(one.values[score]), beside(one, score))),
      element("td", {}, words.metric(one.cumulative[scores[0]]))))));
}

function beside({ lowest, highest, live }, score) {
  const interval = lowest[score] == null ? "" : `${words.metric(lowest[score])} – ${words.metric(highest[score])}; `;
  return live[score] == null ? null : element("span", { class: "interval" }, `${interval}in training ${words.metric(live[score])}`);
}
