// Three charts on one time axis, drawn as one SVG: panels one below the other, marks through all of them, one cursor.

import { drawn, element, keyed, say } from "./dom.js";
import { legendEntry, sign } from "./marks.js";
import { SPANS, linear, rounded, timeTicks } from "./scale.js";
import * as words from "./words.js";

const PANELS = [
  { id: "metric", line: "metric", other: "baseline", least: 0.1, tick: (n) => (Math.abs(n) < 10_000 ? String(Number(n.toPrecision(4))) : words.brief(n)) },
  { id: "lag", line: "lag_s", zero: true, fill: true, time: true },
  { id: "rate", line: "learnt_per_s", other: "arriving_per_s", zero: true, tick: words.brief },
];
const FORMATS = {
  metric: words.metric,
  baseline: words.metric,
  lag_s: words.behind,
  learnt_per_s: words.rate,
  arriving_per_s: words.rate,
};
const UNITS = [
  { seconds: 86_400, name: "days" },
  { seconds: 3600, name: "h" },
  { seconds: 60, name: "min" },
  { seconds: 1, name: "s" },
];
// Where a lag falls from days to minutes, a linear axis would show the minutes as a line at 0.
const LOG = { from: 172_800, times: 50, ticks: [[1, "1 s"], [60, "1 min"], [3600, "1 h"], [86_400, "1 day"], [2_592_000, "30 days"], [31_536_000, "1 year"]] };
const FARTHEST = 3; // the other line is left out of the scale where it would squeeze the first to a third
const LEAST_SPAN_S = 120;
const LANE = 16;
const AXIS = 20;
const GAP = 22;
const RIGHT = 52;
const MANY_CHECKPOINTS = 40;
const TIME_LABEL_WIDTH = 72;
const MAX_TIME_LABELS = 8;
const NARROW = 720;
const LABELS = { wide: 232, narrow: 0 };
const ABOVE = 58;
const MORE_ABOVE = 38; // the first panel's label has two lines more
const LARGE = 2.4; // how much higher the first panel is than each of the others
const REACH = 9; // pixels within which a mark is meant
const SMALL = 58; // where the others' labels would meet

export class Charts {
  #history = null;
  #marks = [];
  #pauses = []; // stretches in which nothing could be learnt
  #chosen = null; // the cursor's index in the history; null follows the newest
  #view = null;

  // `onMark` gets a mark that opens something, when a person asks for it.
  constructor(root, legend, onMark) {
    this.root = root;
    this.onMark = onMark;
    this.legend = legend;
    this.cursor = root.querySelector(".cursor");
    this.labels = PANELS.map(({ id }) => root.querySelector(`#panel-${id}`));
    this.svg = drawn("svg", { class: "plot", "aria-hidden": "true", focusable: "false" });
    root.prepend(this.svg);
    this.time = root.appendChild(element("output", { class: "at", hidden: true, "aria-hidden": "true" }));
    new ResizeObserver(() => this.draw()).observe(root);
    this.cursor.addEventListener("pointermove", (event) => this.#point(event));
    this.cursor.addEventListener("pointerdown", (event) => this.#point(event));
    this.cursor.addEventListener("click", (event) => this.#open(this.#markAt(event)));
    this.cursor.addEventListener("pointerleave", () => this.#choose(null));
    this.cursor.addEventListener("blur", () => this.#choose(null));
    this.cursor.addEventListener("keydown", (event) => this.#key(event));
  }

  show(history, marks, pauses) {
    if (this.#chosen !== null && this.#history !== null) {
      const at = this.#history.at[this.#chosen];
      this.#chosen = history.span === this.#history.span ? nearest(history.at, at) : null;
    }
    this.#history = history;
    this.#marks = marks;
    this.#pauses = pauses;
    this.draw();
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.root;
    if (this.#history === null || width === 0 || document.hidden) return;
    const view = this.#layOut(width, height);
    const marks = this.#shownMarks(view);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(
      ...this.#pauses.flatMap((pause) => this.#stretch(pause, view)),
      ...this.#axis(view),
      ...view.panels.flatMap((panel) => this.#grid(panel, view)),
      ...marks.map((mark) => this.#markLine(mark, view)),
      ...this.#exported(view),
      ...view.panels.flatMap((panel) => this.#series(panel, view)),
      ...marks.map((mark) => sign(mark, view.x(mark.at), view.bottom + LANE / 2 + 2)),
      ...this.#cursorLine(view),
    );
    keyed(this.legend, unique(marks), (mark) => mark.sign, legendEntry, () => {});
    this.#showValues(view, marks);
    this.#view = view;
  }

  #layOut(width, height) {
    const narrow = width < NARROW;
    const left = narrow ? LABELS.narrow : LABELS.wide;
    const bottom = height - AXIS - LANE;
    const [above, more] = narrow ? [ABOVE, MORE_ABOVE] : [0, 0];
    const others = PANELS.length - 1;
    const whole = bottom - GAP * others - above * PANELS.length - more - 6;
    const small = Math.min(whole / PANELS.length, Math.max(SMALL, whole / (LARGE + others)));
    const large = whole - small * others;
    const now = this.#history.now;
    const first = Math.min(this.#history.at[0] ?? now, now - LEAST_SPAN_S);
    const domain = [Math.max(now - SPANS[this.#history.span].seconds, first), now];
    const place = linear(domain, [left, width - RIGHT]);
    const x = (at) => Math.min(width - RIGHT, Math.max(left, place(at)));
    const panels = PANELS.map((panel, index) => {
      const before = index && large + GAP + above + more + (index - 1) * (small + GAP + above);
      const over = index ? above : above + more;
      const top = 6 + before + over;
      this.labels[index].style.top = `${top - over}px`;
      return this.#scaled({ ...panel, top, low: top + (index ? small : large) });
    });
    panels.forEach(({ top, low }, index) => {
      // A label that would reach into the next one leaves lines out.
      const { classList } = this.labels[index];
      classList.remove("tight");
      classList.toggle("tight", !narrow && this.labels[index].offsetHeight > low - top + GAP);
    });
    return { width, left, right: width - RIGHT, bottom, domain, x, panels, narrow };
  }

  #scaled(panel) {
    const { mean, greatest } = this.#history;
    const values = [...mean[panel.line], ...(panel.zero ? (greatest?.[panel.line] ?? []) : [])];
    const about = panel.low - panel.top > 110 ? 3 : 2;
    if (panel.time && spansMagnitudes(mean[panel.line], values)) return this.#logarithmic(panel, values, about);
    const unit = panel.time ? unitOf(values) : null;
    const per = unit?.seconds ?? 1;
    const scale = (shown) => rounded(shown.map((value) => (value == null ? null : value / per)), { zero: panel.zero, least: panel.least, about });
    const alone = scale(values);
    const both = panel.other ? scale([...values, ...mean[panel.other]]) : alone;
    const { range, ticks } = !panel.zero && extent(both.range) > FARTHEST * extent(alone.range) && alone.ticks.length ? alone : both;
    const tick = unit ? (n) => `${words.brief(n / per)} ${unit.name}` : panel.tick;
    const y = linear(range.map((end) => end * per), [panel.low, panel.top]);
    return { ...panel, tick, ticks: ticks.map((one) => one * per), y };
  }

  #logarithmic(panel, values, about) {
    const [, most] = extreme(values);
    const within = LOG.ticks.filter(([seconds]) => seconds <= most);
    const every = Math.ceil(within.length / (about + 1));
    const ticks = within.filter((_, i) => (within.length - 1 - i) % every === 0);
    const scale = linear([0, Math.log1p(most)], [panel.low, panel.top]);
    return { ...panel, tick: (n) => LOG.ticks.find(([seconds]) => seconds === n)[1], ticks: ticks.map(([seconds]) => seconds), y: (s) => scale(Math.log1p(s)) };
  }

  #axis(view) {
    const most = Math.floor((view.right - view.left) / TIME_LABEL_WIDTH);
    const { ticks, step } = timeTicks(view.domain, Math.min(most, MAX_TIME_LABELS));
    const y = view.bottom + LANE + 15;
    const room = 26;
    return ticks
      .filter((at) => view.x(at) > view.left + room && view.x(at) < view.right - room / 4)
      .flatMap((at) => [
        drawn("path", { class: "grid", d: upright(view.x(at), view.panels) }),
        text(view.x(at), y, words.clock(at, { fine: step < 60 }), "middle"),
      ]);
  }

  #grid(panel, view) {
    return panel.ticks.flatMap((value) => [
      drawn("line", { class: "grid", x1: view.left, x2: view.right, y1: panel.y(value), y2: panel.y(value) }),
      text(view.right + 8, panel.y(value) + 4, panel.tick(value), "start"),
    ]);
  }

  #series(panel, view) {
    const { at, mean, least, greatest, step_s: step } = this.#history;
    const inside = (value) => (value == null || panel.y(value) < panel.top - 1 || panel.y(value) > panel.low + 1 ? null : value);
    const place = (name) => stretches(at, mean[name].map(inside), step).map((run) => line(run, view.x, panel.y));
    const drawnLine = (name, kind) => drawn("path", { class: kind, d: place(name).join("") });
    const shapes = [];
    if (least && greatest) {
      const band = (run) => line(run.high, view.x, panel.y) + line(run.low.reverse(), view.x, panel.y).replace("M", "L") + "Z";
      shapes.push(drawn("path", { class: "band", d: bands(at, least[panel.line], greatest[panel.line], step).map(band).join("") }));
    }
    if (panel.fill) {
      const area = (run) =>
        `${line(run, view.x, panel.y)}L${view.x(run.at(-1)[0])} ${panel.low}L${view.x(run[0][0])} ${panel.low}Z`;
      shapes.push(drawn("path", { class: "area", d: stretches(at, mean[panel.line], step).map(area).join("") }));
    }
    if (panel.other) shapes.push(drawnLine(panel.other, "other"));
    shapes.push(drawnLine(panel.line, "line"));
    return shapes;
  }

  // What the exported version scored when its checkpoint was made, from its export on.
  #exported(view) {
    const [panel] = view.panels;
    const { exported } = this.#history;
    if (exported === null) return [];
    const [y, from] = [panel.y(exported.value), view.x(Math.max(exported.at, view.domain[0]))];
    if (y < panel.top || y > panel.low || from > view.right) return [];
    return [drawn("line", { class: "exported", x1: from, x2: view.right, y1: y, y2: y })];
  }

  #shownMarks(view) {
    const here = this.#marks.filter((mark) => mark.at >= view.domain[0] && mark.at <= view.domain[1]);
    const checkpoints = here.filter((mark) => mark.sign === "checkpoint").length;
    return checkpoints > MANY_CHECKPOINTS ? here.filter((mark) => mark.sign !== "checkpoint") : here;
  }

  #stretch({ from, to, sign }, view) {
    const [first, last] = [Math.max(from, view.domain[0]), Math.min(to ?? view.domain[1], view.domain[1])];
    if (last <= first) return [];
    const [x, width] = [view.x(first), Math.max(1, view.x(last) - view.x(first))];
    return view.panels.map(({ top, low }) => drawn("rect", { class: `stretch ${sign}`, x, width, y: top, height: low - top }));
  }

  #markLine(mark, view) {
    return drawn("path", { class: `mark ${mark.sign}`, d: upright(view.x(mark.at), view.panels) });
  }

  #cursorLine(view) {
    if (this.#chosen === null) return [];
    const { at, mean } = this.#history;
    const x = view.x(at[this.#chosen]);
    const dots = view.panels.flatMap((panel) =>
      [panel.other, panel.line]
        .filter((name) => name && mean[name][this.#chosen] != null)
        .map((name) =>
          drawn("circle", { class: name === panel.line ? "dot line" : "dot", cx: x, cy: panel.y(mean[name][this.#chosen]), r: 3.5 }),
        ),
    );
    return [drawn("line", { class: "cursor-line", x1: x, x2: x, y1: view.panels[0].top, y2: view.bottom }), ...dots];
  }

  // Shows the newest values in the labels, or those at the cursor.
  #showValues(view, marks) {
    const { at, mean, newest, last } = this.#history;
    const place = this.#chosen ?? at.length - 1;
    for (const [name, format] of Object.entries(FORMATS)) {
      // The history's last value would be a mean over a step that may be a minute old.
      let value = this.#chosen === null && newest !== null ? newest[name] : mean[name][place];
      if (this.#chosen === null && last !== null) value = { metric: last.value, baseline: last.baseline }[name] ?? value;
      const node = this.root.querySelector(`[data-value="${name}"]`);
      say(node, format(value));
      if (name === "baseline") node.closest(".other").hidden = value == null; // a metric of one's own has no guess
    }
    this.#showTime(view, marks, place);
    const chosen = this.#chosen !== null;
    this.cursor.setAttribute("aria-valuenow", chosen ? Math.round((100 * place) / Math.max(1, at.length - 1)) : 100);
    this.cursor.setAttribute("aria-valuetext", chosen ? this.#momentText(place, marks) : "the newest");
  }

  #showTime(view, marks, place) {
    this.time.hidden = this.#chosen === null;
    this.root.classList.toggle("chosen", this.#chosen !== null);
    if (this.#chosen === null) return;
    const at = this.#history.at[place];
    const near = this.#marksNear(at, marks);
    say(this.time, [words.clock(at), ...near.map((mark) => mark.text)].join("  ·  "));
    const wide = this.time.offsetWidth;
    const left = Math.min(Math.max(view.x(at) - wide / 2, 0), view.width - wide);
    this.time.style.left = `${left}px`;
    this.time.style.top = `${view.bottom + LANE}px`;
  }

  #marksNear(at, marks) {
    const within = Math.max(this.#history.step_s, 0.006 * (this.#history.now - (this.#history.at[0] ?? 0)));
    return marks.filter((mark) => Math.abs(mark.at - at) <= within).slice(-2);
  }

  #momentText(place, marks) {
    const { at, mean, metric, guess } = this.#history;
    const facts = [
      `${words.plain(metric ?? "live metric")} ${words.metric(mean.metric[place])}`,
      `${guess} ${words.metric(mean.baseline[place])}`,
      `${words.behind(mean.lag_s[place])} behind`,
      `${words.rate(mean.learnt_per_s[place])} learnt a second`,
      `${words.rate(mean.arriving_per_s[place])} arriving a second`,
      ...this.#marksNear(at[place], marks).map((mark) => mark.text),
    ];
    return `${words.clock(at[place])}: ${facts.join(", ")}`;
  }

  // Describes in words what each chart shows, for people who cannot see it.
  summaries() {
    const { mean, least, greatest, metric, span } = this.#history;
    const over = SPANS[span].phrase;
    const between = (name, format) => {
      const [low] = extreme([...mean[name], ...(least?.[name] ?? [])]);
      const [, high] = extreme([...mean[name], ...(greatest?.[name] ?? [])]);
      return low === null ? "Nothing is known yet." : `Between ${format(low)} and ${format(high)} over ${over}.`;
    };
    const texts = {
      metric: `${words.capital(words.plain(metric ?? "live metric"))}: ${between("metric", words.metric)}`,
      lag: `Seconds behind the topic: ${between("lag_s", words.behind)}`,
      rate: `Learnt a second: ${between("learnt_per_s", words.rate)} Arriving: ${between("arriving_per_s", words.rate)}`,
    };
    PANELS.forEach(({ id }, index) => say(this.labels[index].querySelector("[data-summary]"), texts[id]));
  }

  // The mark under the pointer that opens something; there may be checkpoints that are too many to be drawn.
  #markAt(event) {
    if (this.#view === null) return undefined;
    const x = event.clientX - this.root.getBoundingClientRect().left;
    const far = (mark) => Math.abs(this.#view.x(mark.at) - x);
    const here = this.#marks.filter((mark) => mark.opens && mark.at >= this.#view.domain[0] && far(mark) <= REACH);
    return here.sort((a, b) => far(a) - far(b))[0];
  }

  #open(mark) {
    if (mark !== undefined) this.onMark(mark);
  }

  #point(event) {
    if (this.#view === null || !this.#history.at.length) return;
    this.cursor.classList.toggle("opens", this.#markAt(event) !== undefined);
    const x = event.clientX - this.root.getBoundingClientRect().left;
    const { domain, left, right } = this.#view;
    this.#choose(nearest(this.#history.at, linear([left, right], domain)(x)));
  }

  #key(event) {
    const last = (this.#history?.at.length ?? 0) - 1;
    const from = this.#chosen ?? last;
    const far = Math.max(1, Math.round(last / 10));
    const to = { ArrowLeft: from - 1, ArrowRight: from + 1, PageDown: from - far, PageUp: from + far, Home: 0, End: last }[event.key];
    if (event.key === "Escape") this.#choose(null);
    if (event.key === "Enter" && last >= 0) this.#open(this.#marksNear(this.#history.at[from], this.#marks).filter((mark) => mark.opens).at(-1));
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.#choose(Math.min(Math.max(to, 0), last));
  }

  #choose(place) {
    if (place === this.#chosen) return;
    this.#chosen = place;
    this.draw();
  }
}

function text(x, y, content, anchor) {
  return drawn("text", { x: x.toFixed(1), y: y.toFixed(1), "text-anchor": anchor }, content);
}

// A vertical line through all panels, without the gaps between them.
const upright = (x, panels) => panels.map((panel) => `M${x.toFixed(1)} ${panel.top}V${panel.low}`).join("");

const line = (run, x, y) => run.map(([at, value], i) => `${i ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");

// Returns the unbroken runs of points, so that no line is drawn across unknown values.
function stretches(at, values, step) {
  const runs = [];
  let run = null;
  for (let i = 0; i < at.length; i += 1) {
    if (values[i] == null) run = null;
    else {
      if (run === null || at[i] - at[i - 1] > 3.5 * step) runs.push((run = []));
      run.push([at[i], values[i]]);
    }
  }
  // One alone is as wide as a step.
  return runs.map((run) => (run.length > 1 ? run : [-0.5, 0.5].map((half) => [run[0][0] + half * step, run[0][1]])));
}

function bands(at, least, greatest, step) {
  const low = stretches(at, least, step);
  return stretches(at, greatest, step).map((high, i) => ({ high, low: low[i] }));
}

const extent = ([from, to]) => to - from;

// Whether a line has values that would be at 0 of a linear axis, though they are none.
function spansMagnitudes(means, values) {
  const [, most] = extreme(values);
  const [least] = extreme(means.filter((value) => value > 0));
  return (most ?? 0) >= LOG.from && most > LOG.times * (least ?? most);
}

function unitOf(values) {
  const [, most] = extreme(values);
  return UNITS.find((one) => (most ?? 0) >= 2 * one.seconds) ?? UNITS.at(-1);
}

function extreme(values) {
  const known = values.filter((value) => value != null);
  return known.length ? [known.reduce((a, b) => Math.min(a, b)), known.reduce((a, b) => Math.max(a, b))] : [null, null];
}

function nearest(at, wanted) {
  let best = 0;
  for (let i = 1; i < at.length; i += 1) if (Math.abs(at[i] - wanted) <= Math.abs(at[best] - wanted)) best = i;
  return best;
}

const unique = (marks) => [...new Map(marks.map((mark) => [mark.sign, mark])).values()];
