// The other parts of the page, without charts and balance: verdict, problems, bar, checkpoints, events.

import { byId, element, keyed, say, sayWithCode } from "./dom.js";
import * as words from "./words.js";

const BAR = [
  ["compute", "computing"],
  ["input", "waiting for input"],
  ["records", "waiting for records"],
  ["workers", "waiting for other workers"],
  ["saving", "saving"],
];
const REASONS = { interval: "scheduled", steps: "scheduled", demand: "requested", stop: "at a stop", start: "the beginning" };
const SEVERE = new Set(["failed", "trainer_dead", "hung", "unbalanced", "nothing_learnt"]);

// Returns the length of a sentence's first clause, with its mark; 0 where it has one clause only.
export const firstClause = (sentence) => sentence.search(/[.:;,](?=\s|$)/) + 1;

// Shows the verdict's first clause in large type, to be read from a distance.
export function verdict(node, whole) {
  const sentence = whole.replace(/ \d+ problems? to look at\.$/, ""); // they stand right below
  const end = firstClause(sentence);
  const [word, rest] = end ? [sentence.slice(0, end), sentence.slice(end)] : [sentence, ""];
  if (node.textContent === sentence) return;
  node.replaceChildren(element("strong", {}, word), rest);
}

export function problems(node, list, now) {
  node.hidden = list.length === 0;
  const make = () => element("article", {}, element("h2"), element("p", { class: "since" }), element("p", { class: "fix" }));
  keyed(node, list, (one) => one.problem, make, (article, one) => {
    article.className = SEVERE.has(one.problem) ? "bad" : "warn";
    const [what, since, fix] = article.children;
    const began = words.parsed(one.since);
    sayWithCode(what, one.what);
    say(since, `since ${words.moment(began, now)}, for ${words.span(Math.max(0, now - began))}`);
    sayWithCode(fix, one.fix, { copies: true });
  });
  node.tabIndex = node.scrollHeight > node.clientHeight ? 0 : -1;
}

export function bound(throughput) {
  const here = BAR.filter(([name]) => name in throughput.waiting); // waiting for other workers: in a group alone
  const shares = here.map(([name, label]) => ({ name, label, share: throughput.waiting[name] }));
  const any = shares.some((one) => one.share > 0);
  const make = ({ name }) => element("span", { class: `share ${name}` });
  keyed(byId("bar"), any ? shares : [], (one) => one.name, make, (node, one) => {
    node.style.flexGrow = one.share;
    node.hidden = one.share === 0;
  });
  const entry = ({ name }) => element("li", {}, element("i", { class: `share ${name}` }), element("b"), element("span"));
  keyed(byId("shares"), shares, (one) => one.name, entry, (item, one) => {
    say(item.children[1], any ? words.percent(one.share) : "–");
    say(item.children[2], one.label);
  });
  const summary = any ? shares.map((one) => `${words.percent(one.share)} ${one.label}`).join(", ") : "Nothing was learnt.";
  if (byId("bar").getAttribute("aria-label") !== summary) byId("bar").setAttribute("aria-label", summary);
  say(byId("advice"), throughput.advice);
}

// Shows the value of the metric that the newest checkpoint watches beside each; `best` is the number of the best one.
export function checkpoints(node, list, best, now, onRestore) {
  const watched = list.find((one) => one.measured)?.measured.watched;
  const make = ({ number, note }) => {
    const button = element("button", { type: "button", class: "quiet", "aria-label": `Restore checkpoint ${number}` }, "Restore…");
    button.addEventListener("click", () => onRestore(number, note));
    const cells = ["age", "metric", "why", "step"].map((kind) => element("td", { class: kind }));
    return element("tr", {}, element("th", { scope: "row" }, String(number)), ...cells, element("td", { class: "do" }, button));
  };
  keyed(node, list, (one) => one.number, make, (row, one) => {
    const [, age, metric, reason, step, act] = row.children;
    const value = one.metrics?.[watched];
    const good = one.condition === "good";
    say(age, one.created_at ? `${words.span(Math.max(0, now - words.parsed(one.created_at)))} ago` : "");
    say(metric, value == null ? "" : words.metric(value));
    metric.title = value == null ? "" : measuredOn(one, watched);
    row.classList.toggle("best", one.number === best);
    say(reason, good ? [one.number === best ? `the best ${words.plain(watched)}` : "", one.pins ? "pinned" : "", why(one)].filter(Boolean).join(", ") : one.condition);
    say(step, one.step == null ? "" : `step ${words.count(one.step)}`);
    act.firstChild.hidden = !good;
  });
}

// Says the value of a metric of a checkpoint, what it was measured on, and what guessing scored there.
export function measuredOn(one, name) {
  const { records, window_s, baseline } = one.measured;
  const guess = baseline[name] == null ? "" : `; guessing scored ${words.metric(baseline[name])} on them`;
  return `${words.plain(name)} ${words.metric(one.metrics[name])} over ${words.count(records)} records in ${words.span(window_s)}${guess}`;
}

function why(one) {
  const reason = REASONS[one.reason] ?? words.plain(one.reason ?? "");
  return one.note ? `${reason}: ${one.note}` : reason;
}

// Scheduled checkpoints become one entry, and so do records that were set aside, while nothing else happens: they would
// hide everything else.
export function folded(events) {
  const rows = [];
  for (const event of events) {
    const fold = foldOf(event);
    const at = fold === null ? -1 : rows.findLastIndex((row) => row.fold === fold);
    const between = rows.slice(at + 1);
    if (at < 0 || between.some((row) => row.fold === null)) {
      rows.push({ ...event, fold, folded: [event] });
    } else {
      const [row] = rows.splice(at, 1);
      const all = [...row.folded, event];
      rows.push({ ...event, id: row.id, fold, folded: all, text: FOLDS[fold](all) });
    }
  }
  return rows;
}

const FOLDS = { checkpoints: checkpointsText, setAside: setAsideText };

function foldOf({ kind, facts }) {
  if (kind === "checkpoint" && (facts.reason === "interval" || facts.reason === "steps") && !facts.note) return "checkpoints";
  return kind === "set_aside" && facts.records != null ? "setAside" : null;
}

function checkpointsText(all) {
  return `Checkpoints ${all[0].facts.number} to ${all.at(-1).facts.number} are durable.`;
}

function setAsideText(all) {
  const counts = new Map();
  for (const { facts } of all) counts.set(facts.reason, (counts.get(facts.reason) ?? 0) + facts.records);
  const total = [...counts.values()].reduce((sum, count) => sum + count, 0);
  const reasons = [...counts].sort(([, a], [, b]) => b - a).map(([reason, count]) => `${words.count(count)} ${words.plain(reason)}`);
  return `${words.count(total)} records were set aside since ${words.clock(words.parsed(all[0].at))}: ${reasons.join(", ")}.`;
}

export function events(node, list, now) {
  const make = (event) => element("li", { class: event.severity }, element("time"), element("span"));
  keyed(node, list, (event) => event.id, make, (item, event) => {
    const [time, text] = item.children;
    say(time, words.moment(words.parsed(event.at), now));
    time.dateTime = event.at;
    text.title = event.text;
    sayWithCode(text, event.text);
  });
}

// How far behind each partition is, the furthest first.
export function partitions(node, list) {
  const rows = Object.entries(list).map(([name, one]) => ({ name, ...one }));
  rows.sort((a, b) => (b.lag_records ?? -1) - (a.lag_records ?? -1) || a.name.localeCompare(b.name, "en", { numeric: true }));
  const make = ({ name }) => element("tr", {}, element("th", { scope: "row" }, name), ...[1, 2, 3, 4].map(() => element("td")));
  keyed(node, rows, (one) => one.name, make, (row, one) => {
    const [, records, seconds, position, end] = row.children;
    row.className = one.readable_end == null ? "" : "held";
    say(records, words.count(one.lag_records));
    say(seconds, words.behind(one.lag_s));
    say(position, words.count(one.position));
    say(end, one.readable_end == null ? words.count(one.end) : `${words.count(one.end)}, held at ${words.count(one.readable_end)}`);
  });
}
