// The parts of the page beside the charts: verdict, problems, bar, balance, checkpoints, events.

import { byId, element, keyed, say } from "./dom.js";
import * as words from "./words.js";

const BAR = [
  ["compute", "computing"],
  ["input", "waiting for input"],
  ["records", "waiting for records"],
  ["saving", "saving"],
];
const REASONS = { interval: "in its turn", steps: "in its turn", demand: "asked for", stop: "at a stop", start: "the beginning" };
const SEVERE = new Set(["failed", "trainer_dead", "hung", "unbalanced"]);

// The verdict's first word or words are the ones to be read from afar.
export function verdict(node, sentence) {
  const end = sentence.search(/[.:,]/) + 1;
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
    say(what, one.what);
    say(since, `since ${words.moment(began, now)}, for ${words.span(Math.max(0, now - began))}`);
    say(fix, one.fix);
  });
}

export function bound(throughput) {
  const shares = BAR.map(([name, label]) => ({ name, label, share: throughput.waiting[name] }));
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
  const said = any ? shares.map((one) => `${words.percent(one.share)} ${one.label}`).join(", ") : "Nothing was learnt.";
  if (byId("bar").getAttribute("aria-label") !== said) byId("bar").setAttribute("aria-label", said);
  say(byId("advice"), throughput.advice);
}

const total = (counts) => Object.values(counts).reduce((sum, one) => sum + one, 0);

export function balance(records) {
  const terms = [
    [records.learnt, "learnt", true],
    [total(records.set_aside), "set aside", true],
    [total(records.skipped), "skipped", true],
    [records.gaps, "without a record", false],
    [records.lost, "lost to retention", false],
  ].filter(([n, , always]) => always || n > 0);
  sum(byId("sum"), [records.offsets, "offsets"], terms);
  const why = Object.entries(records.set_aside).map(([reason, n]) => `${words.count(n)} ${words.plain(reason)}`);
  byId("sum").title = why.length ? `Set aside: ${why.join(", ")}` : "";
  const flow = [
    [records.handed, "handed on"],
    [records.held, "on the way"],
    ...(records.discarded ? [[records.discarded, "to be read again"]] : []),
  ];
  byId("flow").hidden = records.fetched == null;
  if (records.fetched != null) sum(byId("flow"), [records.fetched, "fetched since the last start or rewind"], flow);
  const tick = byId("tick");
  tick.dataset.holds = records.balanced;
  say(tick, records.balanced ? "✓ it adds up" : "✗ it does not add up");
}

function sum(node, whole, terms) {
  const said = (kind) => ([n, label], i) =>
    element("span", { class: kind }, i || kind === "term" ? element("i", {}, i ? "+" : "=") : null, element("b", {}, words.count(n)), ` ${label}`);
  const made = [said("whole")(whole, 0), ...terms.map(said("term"))];
  if (node.textContent !== made.map((one) => one.textContent).join("")) node.replaceChildren(...made);
}

export function checkpoints(node, list, now, onRestore) {
  const make = ({ number }) => {
    const button = element("button", { type: "button", class: "quiet", "aria-label": `Restore checkpoint ${number}` }, "Restore…");
    button.addEventListener("click", () => onRestore(number));
    const number_ = element("th", { scope: "row" }, String(number));
    return element("tr", {}, number_, element("td", { class: "age" }), element("td", { class: "why" }), element("td", { class: "step" }), element("td", { class: "do" }, button));
  };
  keyed(node, list, (one) => one.number, make, (row, one) => {
    const good = one.condition === "good";
    say(row.children[1], one.created_at ? `${words.span(Math.max(0, now - words.parsed(one.created_at)))} ago` : "");
    say(row.children[2], good ? why(one) : one.condition);
    say(row.children[3], one.step == null ? "" : `step ${words.count(one.step)}`);
    row.querySelector("button").hidden = !good;
    row.title = one.created_at ? words.moment(words.parsed(one.created_at), now) : "";
  });
}

function why(one) {
  const reason = REASONS[one.reason] ?? words.plain(one.reason ?? "");
  return one.note ? `${reason}: ${one.note}` : reason;
}

export function events(node, list, now) {
  const make = (event) => {
    const at = words.parsed(event.at);
    return element("li", { class: event.severity }, element("time", { datetime: event.at }, words.moment(at, now)), element("span", { title: event.text }, event.text));
  };
  keyed(node, list, (event) => event.id, make, () => {});
}
