// How true the answers are, in a dialog: probabilities against what came true, classes against each other, and residuals.

import { byId, drawn, element, say } from "./dom.js";
import * as words from "./words.js";

const SIDE = 190;
const QUANTILES = { p05: "5 %", p25: "25 %", p50: "half", p75: "75 %", p95: "95 %" };

// `of` is training.calibration of the status; there is none for a model of several outputs.
export function truth(of) {
  byId("how-true").hidden = of == null;
  if (of == null || !byId("truth").open) return;
  const said = JSON.stringify(of);
  if (byId("truth-says").dataset.said === said) return;
  byId("truth-says").dataset.said = said;
  say(byId("truth-says"), sentence(of));
  byId("truth-parts").replaceChildren(...[of.bins && reliability(of), of.confusion && confusion(of.confusion), of.residuals && residuals(of), of.worst && worst(of)].filter(Boolean));
}

function sentence({ answers, error, cumulative_error, predicted, observed, confusion, residuals }) {
  const over = `Over the last ${words.count(answers)} answers`;
  if (residuals) return `${over}: of each share of the records, the answer less the label, the answer and the label are at most these, to within 2 %.`;
  const off = `their probabilities are ${(error * 100).toFixed(1)} points off what came true, as a mean; ${(cumulative_error * 100).toFixed(1)} since the beginning`;
  return confusion ? `${over} ${off}. The probability is that of the answered class.` : `${over} ${off}. ${share(predicted["1"])} was predicted, ${share(observed["1"])} came true.`;
}

const share = (part) => `${Number((part * 100).toPrecision(3))} %`;

// Ten groups of answers of about the same probability: on the diagonal, what is predicted is what comes true.
function reliability({ bins }) {
  const most = Math.max(...bins.flatMap((one) => [one.predicted, one.observed])) * 1.05 || 1;
  const at = (value) => (value / most) * SIDE;
  const picture = drawn("svg", { viewBox: `-4 -4 ${SIDE + 8} ${SIDE + 8}`, class: "reliability", role: "img", "aria-label": "What came true, upwards, by what was predicted" },
    drawn("path", { d: `M0 0V${SIDE}H${SIDE}`, class: "axis" }),
    drawn("path", { d: `M0 ${SIDE}L${SIDE} 0`, class: "even" }),
    drawn("path", { d: `M${bins.map((one) => `${at(one.predicted)} ${SIDE - at(one.observed)}`).join("L")}`, class: "line" }),
    ...bins.map((one) => drawn("circle", { cx: at(one.predicted), cy: SIDE - at(one.observed), r: 3.5, class: "dot line" })));
  const rows = bins.map((one) => [share(one.predicted), share(one.observed), words.count(one.records)]);
  return element("div", { class: "beside-picture" }, picture, table(["predicted", "came true", "answers"], rows));
}

// Each row is a class of the labels, each column an answer; a cell is darker the larger its share of the row.
function confusion(counts) {
  const names = Object.keys(counts);
  const rows = names.map((name) => names.map((answer) => counts[name][answer]));
  const made = table(["label ↓ answer →", ...names], rows.map((row, at) => [names[at], ...row.map(words.count)]), { named: true });
  made.classList.add("confusion");
  rows.forEach((row, at) => {
    const whole = Math.max(1, row.reduce((sum, count) => sum + count, 0));
    row.forEach((count, column) => made.tBodies[0].rows[at].cells[column + 1].style.setProperty("--share", count / whole));
  });
  return element("div", { class: "sideways", tabindex: 0, role: "group", "aria-label": "Labels and answers" }, made);
}

function residuals({ residuals: missed, predicted, observed }) {
  const rows = Object.entries(QUANTILES).map(([name, text]) => [text, ...[missed, predicted, observed].map((of) => words.metric(of[name]))]);
  return table(["share of the records", "answer less label", "answer", "label"], rows, { named: true });
}

// The records that are the furthest off, as a person may skip them.
function worst({ worst: records, residuals: numbers }) {
  const rows = records.map(({ partition, offset, loss }) => [`${partition}:${offset}`, words.metric(loss)]);
  return table(["the records furthest off, by partition and offset", numbers ? "answer from label" : "log loss"], rows, { named: true });
}

function table(heads, rows, { named = false } = {}) {
  const cell = (text, at) => (named && at === 0 ? element("th", { scope: "row" }, text) : element("td", {}, text));
  return element("table", { class: named ? "numbers named" : "numbers" },
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map(cell)))));
}
