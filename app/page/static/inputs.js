// Whether the records are as they were, in a dialog: each field, the worst first, and of one of them more, now and before.

import { byId, drawn, element, say } from "./dom.js";
import { follows } from "./group.js";
import * as words from "./words.js";

const EVERY_MS = 5000;
const WIDTH = 320;
const HEIGHT = 96;
let askedAt = -Infinity;
let chosen = null; // the field that is shown in full
let justChosen = false; // then it is shown, wherever its row is
let against = "before"; // what it is compared with
const AGAINST = { before: "before", day: "a day ago", week: "a week ago", export: "as exported" };

// `read` gets a path of the API; `changed` is the event of a field that has changed a moment ago.
export async function inputs(status, read, changed) {
  const button = byId("as-before");
  button.hidden = status.training == null || follows(status); // of a group the chief has them
  const field = changed?.facts?.field;
  button.classList.toggle("warns", field !== undefined);
  button.title = changed?.text ?? "";
  say(button.lastChild, field === undefined ? "" : `: ${field}`);
  if (!byId("inputs").open) askedAt = -Infinity;
  else if (performance.now() - askedAt >= EVERY_MS) await look(read);
}

async function look(read) {
  askedAt = performance.now();
  try {
    const data = await read("/data");
    show(data, chosen === null ? null : await readField(read), read);
  } catch {
    // The feed shows that the service does not answer; a field of the model before is chosen no longer.
    chosen = null;
  }
}

// An hour that is not kept, or no export, leaves the comparison with before.
async function readField(read) {
  const path = `/data/${encodeURIComponent(chosen)}`;
  if (against === "before") return read(path);
  try {
    return await read(`${path}?against=${against}`);
  } catch (error) {
    if (!error.message.endsWith(": 404")) throw error;
    return { ...(await read(path)), lacks: against };
  }
}

function show({ fields, records, sampled, until, unread }, one, read) {
  const changed = fields.filter((field) => field.changed).length;
  const says = fields.length === 0 ? "No window of records is over yet." : `${changed === 0 ? "All fields are as before" : changed === 1 ? "One field is other than before" : `${changed} fields are other than before`}, by ${words.count(sampled)} of the ${words.count(records)} records until ${moment(until)}.`;
  say(byId("inputs-says"), says);
  const said = JSON.stringify([fields, one, unread]);
  if (byId("inputs-parts").dataset.said === said) return;
  byId("inputs-parts").dataset.said = said;
  const focused = document.activeElement?.dataset?.field;
  byId("inputs-parts").replaceChildren(...[one && inFull(one, read), fields.length && table(fields, read), unread.length && unreadTable(unread)].filter(Boolean));
  if (focused !== undefined) byId("inputs-parts").querySelector(`[data-field="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  if (justChosen) byId("inputs-says").scrollIntoView({ block: "start" });
  justChosen = false;
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

function unreadTable(unread) {
  const news = ({ appeared, vanished, partition, offset }) =>
    appeared || vanished ? `${vanished ? "vanished after" : "appeared"} ${moment(vanished ?? appeared)}, ${partition} offset ${offset}` : "";
  return element("section", { class: "unread", "aria-label": "Fields that nobody reads" },
    element("h3", {}, "Fields that nobody reads"),
    element("table", { class: "numbers named inputs" },
      element("thead", {}, element("tr", {}, ...["field", "type", "in", "what has changed"].map((head, at) => element("th", { scope: "col", class: at % 2 ? "what" : "" }, head)))),
      element("tbody", {}, ...unread.map((one) => element("tr", { class: one.appeared || one.vanished ? "changed" : "" },
        element("th", { scope: "row" }, one.field),
        element("td", { class: "what" }, Object.keys(one.types).join(" or ")),
        element("td", {}, share(one.share)),
        element("td", { class: "what" }, news(one)))))));
}

function opens(name, read) {
  const button = element("button", { type: "button", class: "quiet", "data-field": name, "aria-pressed": String(name === chosen) }, name);
  button.addEventListener("click", () => {
    chosen = name === chosen ? null : name;
    justChosen = chosen !== null;
    look(read);
  });
  return button;
}

function what({ field, changed }) {
  if (!changed) return "";
  return changed.first === field ? changed.text : `${changed.text} (with ${changed.first})`;
}

// In local time, as all moments on the page; an event time may be one that no calendar has.
const moment = (text) => (Number.isNaN(words.parsed(text)) ? text : words.moment(words.parsed(text), Date.now() / 1000));
const share = (part) => (part > 0 && part < 0.005 ? "< 1 %" : words.percent(part));
const now = ({ kind, quantiles, distinct }) => (kind === "text" ? `${words.count(distinct)} values` : words.metric(quantiles?.p50));

function inFull({ field, before, histogram, top, hour, apart, lacks }, read) {
  const then = hour ? moment(hour) : "before";
  const pictures = histogram ? [["now", histogram.now, "now"], ["before", histogram.before, then]].filter(([, shares]) => shares) : [];
  const most = Math.max(0.001, ...pictures.flatMap(([, shares]) => shares));
  return element("section", { class: "in-full", "aria-label": field.field },
    element("h3", {}, field.field),
    compares(read),
    element("p", {}, lacks ? `Nothing is kept to compare it with ${AGAINST[lacks]}: hours are kept for a week, once they are over.` : apart == null ? "" : `${words.percent(apart)} apart from ${hour ? `the hour from ${then}` : "before"}`),
    element("div", { class: "beside-picture" }, ...pictures.map(([when, shares, text]) => bars(when, shares, histogram.edges, most, text))),
    field.kind === "number" ? quantiles(field, before, then) : values(top, before, then));
}

function compares(read) {
  const options = Object.entries(AGAINST).map(([name, text]) => element("option", { value: name, ...(name === against ? { selected: "" } : {}) }, text));
  const select = element("select", { "data-field": "against" }, ...options);
  select.addEventListener("change", () => {
    against = select.value;
    look(read);
  });
  return element("label", {}, "compared with ", select);
}

function bars(when, shares, edges, most, text) {
  const step = WIDTH / shares.length;
  return element("figure", {},
    drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: `bars ${when}`, role: "img", "aria-label": `How the numbers are distributed ${text}` },
      ...shares.map((part, at) => drawn("rect", { x: at * step + 0.5, width: step - 1, y: HEIGHT * (1 - part / most), height: HEIGHT * (part / most) }))),
    element("figcaption", {}, `${text}: ${words.metric(edges[0])} to ${words.metric(edges.at(-1))}`));
}

function quantiles(field, before, then) {
  const names = { p05: "5 %", p25: "25 %", p50: "half", p75: "75 %", p95: "95 %" };
  return plain(["at most", "now", then], [
    ...Object.entries(names).map(([name, text]) => [text, words.metric(field.quantiles?.[name]), words.metric(before?.quantiles?.[name])]),
    ["missing", share(field.missing), before ? share(before.missing) : ""],
  ]);
}

function values(top, before, then) {
  const hidden = top.length > 0 && top[0].value == null;
  const rows = top.map(({ value, share: part, before: earlier }, at) => [value ?? `value ${at + 1}`, share(part), earlier == null ? "" : share(earlier)]);
  return element("div", {}, plain([hidden ? "values (shown with api.read_values)" : "values", "now", before ? then : ""], rows));
}

function plain(heads, rows) {
  const cell = (text, at) => (at === 0 ? element("th", { scope: "row" }, text) : element("td", {}, text));
  return element("table", { class: "numbers named" },
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map(cell)))));
}
