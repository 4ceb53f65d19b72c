// The balance: what became of every offset, as a sum, with what its terms are made of; and all of it in a dialog.

import { byId, element, keyed, say } from "./dom.js";
import * as words from "./words.js";

const PARTS_SHOWN = 3; // of each term, beneath the sum; the dialog has all of them

export function balance(records) {
  const offsets = { count: records.offsets, label: "offsets", kind: "whole" };
  const outcomes = outcomesOf(records);
  const beside = besideThem(records);
  const fetched = { count: records.fetched, label: "fetched since the last start or rewind", kind: "whole" };
  const flow = flowOf(records);
  sum(byId("sum"), offsets, outcomes);
  sum(byId("flow"), fetched, flow);
  byId("flow").hidden = records.fetched == null;
  madeOf([...outcomes, ...beside].filter(({ parts }) => parts?.length));
  inFull([offsets, ...outcomes, ...beside, ...(records.fetched == null ? [] : [fetched, ...flow])]);
  const tick = byId("tick");
  tick.dataset.holds = records.balanced;
  say(tick, records.balanced ? "✓ it adds up" : "✗ it does not add up");
}

function outcomesOf(records) {
  return [
    { count: records.learnt, label: "learnt" },
    { ...made(records.set_aside, words.plain), label: "set aside" },
    { ...made(records.skipped, (order) => `by ${order}`), label: "skipped" },
    { count: records.gaps, label: "without a record", rare: true },
    { count: records.lost, label: "lost to retention", rare: true },
  ];
}

function flowOf(records) {
  return [
    { count: records.handed, label: "handed on" },
    { count: records.held, label: "on the way" },
    { count: records.discarded, label: "to be read again", rare: true },
  ];
}

// What is said of the same offsets, and is no term of the sum.
function besideThem({ truncated, begun_anew: times }) {
  const cut = { label: "lists cut to their bound", kind: "whole", parts: partsOf(truncated ?? {}, (feature) => `in ${feature}`) };
  const anew = { count: times, label: "times a partition began anew, its topic having been created again", kind: "whole" };
  return [...(cut.parts.length ? [cut] : []), ...(times ? [anew] : [])];
}

function made(counts, named) {
  return { count: Object.values(counts).reduce((all, one) => all + one, 0), parts: partsOf(counts, named) };
}

// The most frequent first.
function partsOf(counts, named) {
  const parts = Object.entries(counts).map(([name, count]) => ({ count, label: named(name) }));
  return parts.sort((one, other) => other.count - one.count);
}

function sum(node, whole, terms) {
  const shown = terms.filter(({ count, rare }) => count > 0 || !rare);
  const made = [term("whole", null, whole), ...shown.map((one, i) => term("term", i ? "+" : "=", one))];
  if (node.textContent !== made.map((one) => one.textContent).join("")) node.replaceChildren(...made);
}

function term(kind, sign, { count, label }) {
  return element("span", { class: kind }, sign && element("i", {}, sign), element("b", {}, words.count(count)), ` ${label}`);
}

function madeOf(terms) {
  byId("made-of").hidden = terms.length === 0;
  const entry = () => element("span");
  keyed(byId("made-of"), terms, ({ label }) => label, entry, (node, { label, parts }) => {
    const most = parts.slice(0, PARTS_SHOWN).map((one) => `${words.count(one.count)} ${one.label}`);
    const others = parts.length - most.length;
    say(node, `${label}: ${most.join(", ")}${others > 0 ? ` and ${others} more` : ""}`);
  });
}

function inFull(terms) {
  const rows = terms.flatMap(({ parts = [], ...term }) => [
    { ...term, key: term.label },
    ...parts.map((part) => ({ ...part, key: `${term.label}: ${part.label}`, kind: "part" })),
  ]);
  const row = ({ label, kind }) => element("tr", { class: kind }, element("th", { scope: "row" }, label), element("td"));
  keyed(byId("account"), rows, ({ key }) => key, row, (node, { count }) => say(node.lastChild, count === undefined ? "" : words.count(count)));
}
