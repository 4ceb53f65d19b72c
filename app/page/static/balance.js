// The balance: the outcome of every offset as a sum, the parts of its terms beneath it, and the full account in a dialog.

import { byId, element, keyed, say } from "./dom.js";
import * as words from "./words.js";

const PARTS_SHOWN = 3; // of each term, beneath the sum; the dialog shows all of them

export function balance(records) {
  const offsets = { count: records.offsets, label: "offsets", kind: "whole" };
  const outcomes = outcomesOf(records);
  const further = furtherCounts(records);
  const fetched = { count: records.fetched, label: "fetched since the last start or rewind", kind: "whole" };
  const flow = flowOf(records);
  sum(byId("sum"), offsets, outcomes);
  sum(byId("flow"), fetched, flow);
  byId("flow").hidden = records.fetched == null;
  showParts([...outcomes, ...further].filter(({ parts }) => parts?.length));
  fillDialog([offsets, ...outcomes, ...further, ...(records.fetched == null ? [] : [fetched, ...flow])]);
  const tick = byId("tick");
  tick.dataset.holds = records.balanced;
  say(tick, records.balanced ? "✓ it adds up" : "✗ it does not add up");
}

// What is learnt where it differs from what came, in the dialog.
export function shaping({ classes, windows, reservoir }) {
  const shown = Object.entries(classes ?? {}).map(([name, one]) => `class ${name} ${share(one.share)} → ${share(one.learnt_share)}`);
  sayIf(byId("classes"), shown.length, () => `Share of the stream → of what is learnt: ${shown.join(", ")}`);
  sayIf(byId("windows"), windows, ({ keys, evicted }) => {
    const left = Object.values(evicted).reduce((total, count) => total + count, 0);
    return `Windows: the last records of ${words.count(keys)} keys are held; ${words.count(left)} times a key made room for another`;
  });
  sayIf(byId("reservoir"), reservoir, ({ rows, seen, age }) => (
    `Reservoir: ${words.count(rows)} of ${words.count(seen)} records learnt; since half of them ${words.count(age)} more were learnt`
  ));
}

function sayIf(node, about, text) {
  node.hidden = !about;
  if (about) say(node, text(about));
}

const share = (part) => `${Number((part * 100).toPrecision(2))} %`; // a rare class has less than one percent

function outcomesOf(records) {
  return [
    { count: records.learnt, label: "learnt" },
    { ...summed(records.set_aside, words.plain), label: "set aside" },
    { ...summed(records.skipped, (command) => `by ${command}`), label: "skipped" },
    { count: records.filtered ?? 0, label: "filtered", rare: true },
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

// Further counts of the same offsets that are no terms of the sum.
function furtherCounts({ truncated, begun_anew: restarts }) {
  const cut = { label: "lists cut to their bound", kind: "whole", parts: partsOf(truncated ?? {}, (feature) => `in ${feature}`) };
  const restarted = { count: restarts, label: "times a partition restarted because its topic was created again", kind: "whole" };
  return [...(cut.parts.length ? [cut] : []), ...(restarts ? [restarted] : [])];
}

function summed(counts, labelOf) {
  return { count: Object.values(counts).reduce((total, count) => total + count, 0), parts: partsOf(counts, labelOf) };
}

// Returns the parts, the most frequent first.
function partsOf(counts, labelOf) {
  const parts = Object.entries(counts).map(([name, count]) => ({ count, label: labelOf(name) }));
  return parts.sort((one, other) => other.count - one.count);
}

function sum(node, whole, terms) {
  const shown = terms.filter(({ count, rare }) => count > 0 || !rare);
  const nodes = [term("whole", null, whole), ...shown.map((outcome, i) => term("term", i ? "+" : "=", outcome))];
  if (node.textContent !== nodes.map((child) => child.textContent).join("")) node.replaceChildren(...nodes);
}

function term(kind, sign, { count, label }) {
  return element("span", { class: kind }, sign && element("i", {}, sign), element("b", {}, words.count(count)), ` ${label}`);
}

function showParts(terms) {
  byId("made-of").hidden = terms.length === 0;
  const entry = () => element("span");
  keyed(byId("made-of"), terms, ({ label }) => label, entry, (node, { label, parts }) => {
    const largest = parts.slice(0, PARTS_SHOWN).map((one) => `${words.count(one.count)} ${one.label}`);
    const others = parts.length - largest.length;
    say(node, `${label}: ${largest.join(", ")}${others > 0 ? ` and ${others} more` : ""}`);
  });
}

function fillDialog(terms) {
  const rows = terms.flatMap(({ parts = [], ...term }) => [
    { ...term, key: term.label },
    ...parts.map((part) => ({ ...part, key: `${term.label}: ${part.label}`, kind: "part" })),
  ]);
  const row = ({ label, kind }) => element("tr", { class: kind }, element("th", { scope: "row" }, label), element("td"));
  keyed(byId("account"), rows, ({ key }) => key, row, (node, { count }) => say(node.lastChild, count === undefined ? "" : words.count(count)));
}
