// Whether the records are as they were, in a dialog: each field, the worst first, and of one of them more, now and before.

import { byId, drawn, element, say } from "./dom.js";
import * as words from "./words.js";

const EVERY_MS = 5000;
const WIDTH = 320;
const HEIGHT = 96;
let askedAt = -Infinity;
let chosen = null; // the field that is shown in full

// `read` gets a path of the API.
export async function inputs(status, read) {
  byId("as-before").hidden = status.training == null || status.group != null;
  if (!byId("inputs").open) askedAt = -Infinity;
  else if (performance.now() - askedAt >= EVERY_MS) await look(read);
}

async function look(read) {
  askedAt = performance.now();
  try {
    const data = await read("/data");
    const one = chosen === null ? null : await read(`/data/${encodeURIComponent(chosen)}`);
    show(data, one, read);
  } catch {
    // The feed shows that the service does not answer; a field of the model before is chosen no longer.
    chosen = null;
  }
}

function show({ fields, records, sampled, until }, one, read) {
  const changed = fields.filter((field) => field.changed).length;
  const says = fields.length === 0 ? "No window of records is over yet." : `${changed === 0 ? "All fields are as before" : changed === 1 ? "One field is other than before" : `${changed} fields are other than before`}, by ${words.count(sampled)} of the ${words.count(records)} records until ${until.replace("T", " ").slice(0, 19)}.`;
  say(byId("inputs-says"), says);
  const said = JSON.stringify([fields, one]);
  if (byId("inputs-parts").dataset.said === said) return;
  byId("inputs-parts").dataset.said = said;
  const focused = document.activeElement?.dataset?.field;
  byId("inputs-parts").replaceChildren(...[one && inFull(one), fields.length && table(fields, read)].filter(Boolean));
  if (focused !== undefined) byId("inputs-parts").querySelector(`[data-field="${CSS.escape(focused)}"]`)?.focus();
}

function table(fields, read) {
  const heads = ["field", "now", "missing", "apart", "what has changed"];
  return element("table", { class: "numbers named inputs" },
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col", class: head === "missing" || head === "apart" ? "further" : "" }, head)))),
    element("tbody", {}, ...fields.map((field) => element("tr", { class: field.changed ? "changed" : "" },
      element("th", { scope: "row" }, opens(field.field, read)),
      element("td", {}, now(field)),
      element("td", { class: "further" }, share(field.missing)),
      element("td", { class: "further" }, words.percent(field.distance)),
      element("td", { class: "what" }, what(field))))));
}

function opens(name, read) {
  const button = element("button", { type: "button", class: "quiet", "data-field": name, "aria-pressed": String(name === chosen) }, name);
  button.addEventListener("click", () => {
    chosen = name === chosen ? null : name;
    look(read);
  });
  return button;
}

function what({ field, changed }) {
  if (!changed) return "";
  return changed.first === field ? changed.text : `${changed.text} (with ${changed.first})`;
}

const share = (part) => (part > 0 && part < 0.005 ? "< 1 %" : words.percent(part));
const now = ({ kind, quantiles, distinct }) => (kind === "text" ? `${words.count(distinct)} values` : words.metric(quantiles?.p50));

function inFull({ field, before, histogram, top }) {
  const pictures = histogram ? [["now", histogram.now], ["before", histogram.before]].filter(([, shares]) => shares) : [];
  const most = Math.max(0.001, ...pictures.flatMap(([, shares]) => shares));
  return element("section", { class: "in-full", "aria-label": field.field },
    element("h3", {}, field.field),
    element("div", { class: "beside-picture" }, ...pictures.map(([when, shares]) => bars(when, shares, histogram.edges, most))),
    field.kind === "number" ? quantiles(field, before) : values(top, before));
}

function bars(when, shares, edges, most) {
  const step = WIDTH / shares.length;
  return element("figure", {},
    drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: `bars ${when}`, role: "img", "aria-label": `How the numbers are distributed ${when}` },
      ...shares.map((part, at) => drawn("rect", { x: at * step + 0.5, width: step - 1, y: HEIGHT * (1 - part / most), height: HEIGHT * (part / most) }))),
    element("figcaption", {}, `${when}: ${words.metric(edges[0])} to ${words.metric(edges.at(-1))}`));
}

function quantiles(field, before) {
  const names = { p05: "5 %", p25: "25 %", p50: "half", p75: "75 %", p95: "95 %" };
  return plain(["at most", "now", "before"], [
    ...Object.entries(names).map(([name, text]) => [text, words.metric(field.quantiles?.[name]), words.metric(before?.quantiles?.[name])]),
    ["missing", share(field.missing), before ? share(before.missing) : ""],
  ]);
}

function values(top, before) {
  const hidden = top.length > 0 && top[0].value == null;
  const rows = top.map(({ value, share: part, before: then }, at) => [value ?? `value ${at + 1}`, share(part), then == null ? "" : share(then)]);
  return element("div", {}, plain([hidden ? "values (shown with api.read_values)" : "values", "now", before ? "before" : ""], rows));
}

function plain(heads, rows) {
  const cell = (text, at) => (at === 0 ? element("th", { scope: "row" }, text) : element("td", {}, text));
  return element("table", { class: "numbers named" },
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map(cell)))));
}
