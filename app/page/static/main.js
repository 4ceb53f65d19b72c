// The page: it draws everything from the newest message of one stream, and sends commands.

import { request } from "./access.js";
import { balance, shaping } from "./balance.js";
import { Charts } from "./charts.js";
import { byId, keyed, say } from "./dom.js";
import { exports } from "./exports.js";
import { Feed } from "./feed.js";
import { follows, group } from "./group.js";
import { inputs } from "./inputs.js";
import { markOf, pausesOf } from "./marks.js";
import { restoring, sendCommand } from "./commands.js";
import * as parts from "./parts.js";
import { SPANS } from "./scale.js";
import { served } from "./served.js";
import { slices } from "./slices.js";
import { truth } from "./truth.js";
import * as words from "./words.js";

const SILENT_AFTER_S = 3.5;
const MOST_ROWS = 7;
const FEWEST_ROWS = 1;
const KEPT_EVENTS = 500;
const NOTICE_MS = 8000;
const SUMMARIES_EVERY_MS = 10_000;
const TITLE_EVERY_MS = 30_000;
const DAY_EVERY_MS = 300_000;
const YESTERDAY_S = 79_200; // 22 hours
const LEAST_CHANGE_S = 1800;
const CHANGED_S = 600; // a field that has changed since stands beside the score
const THEN = 10; // minutes whose mean is what it was then
const ENDING = new Set(["stopping", "ended", "failed"]);
const CHANGES_CHECKPOINTS = new Set(["checkpoint", "rewound", "started", "topic_recreated"]);

const charts = new Charts(byId("charts"), byId("legend"), openMark);
const restore = restoring(notify, () => latest?.status.live);
const oneScreen = matchMedia("(min-width: 1000px) and (min-height: 760px)"); // as in page.css
const busy = new Set(); // ids of the buttons whose command is being carried out
let latest = null;
let past = null;
let pastAskedAt = 0;
let day = null; // the metric over the last day, as `past` has it, and when it was asked for
let dayAskedAt = -Infinity;
let span = spanOfAddress();
let metric = new URLSearchParams(location.search).get("metric"); // the one that a person chose; null follows the service
let events = [];
let checkpoints = [];
let best = null; // the number of the best checkpoint by the watched metric
let versions = null; // the exported ones, the newest first; null where none were fetched
let rows = MOST_ROWS;
let fittedTo = null;
let skew = 0; // seconds that the service's clock is ahead of this machine's
let version = null;
let announced = null;
let noticeUntil = 0;

const now = () => Date.now() / 1000 + skew;

function onMessage(message) {
  version ??= message.status.version;
  if (message.status.version !== version) return location.reload(); // this message is meant for the new version's page
  latest = message;
  skew = message.at - Date.now() / 1000;
  if (message.events.length) {
    events = [...events, ...message.events].slice(-KEPT_EVENTS);
    if (message.events.some((event) => CHANGES_CHECKPOINTS.has(event.kind))) fetchCheckpoints();
  }
  if (message.status.exports != null && (versions === null || message.events.some((event) => event.kind === "exported"))) fetchExports();
  if (past?.span === "10m") append(message);
  show();
}

function onLocked() {
  if (latest === null) parts.verdict(byId("verdict"), "Locked: this service shows its state only with a token. Reload the page to enter one.");
}

function show() {
  const { status } = latest;
  byId("dot").dataset.mood = status.mood;
  parts.verdict(byId("verdict"), status.verdict);
  say(byId("name"), status.name);
  title(status);
  parts.problems(byId("problems"), problems(), now());
  parts.bound(status.throughput);
  balance(status.records);
  shaping(status.training ?? {});
  group(status.group);
  const cannotAct = status.checkpoint == null || follows(status) || ENDING.has(status.state);
  for (const id of ["pause", "save"]) byId(id).disabled = cannotAct || busy.has(id);
  say(byId("pause"), awaitsResume(status) ? "Resume" : "Pause");
  announce([stateWord(status.state), ...status.problems.map((one) => one.problem)].join(), () =>
    [`${stateWord(status.state)}.`, ...status.problems.map((one) => one.what)].join(" "),
  );
  nameSeries(status);
  showAges();
  draw();
}

// Whether it is paused until a person resumes it.
const awaitsResume = (status) => status.state === "paused" && !status.resumes_by_itself;

const title = (status) => (document.title = `${status.name} · ${status.verdict.slice(0, parts.firstClause(status.verdict) - 1 || undefined)}`);

// The problems of the service, and the page's own.
function problems() {
  const { refusal } = feed;
  if (refusal === null) return latest.status.problems;
  const what = `This page gets no live updates: ${refusal.detail}`;
  const fix = "Close other pages of this service. Until then this page asks every few seconds.";
  return [...latest.status.problems, { problem: "refused", what, since: refusal.since, fix }];
}

// The metric that the chart shows.
const shown = () => metric ?? latest?.metric ?? past?.metric ?? null;
const guess = () => latest?.status.live?.guesses[shown()] ?? "guessing";

// The newest sample, with the values of the metric that the chart shows.
function sampleOf({ sample, status }) {
  if (sample === null || metric === null || !status.live) return sample;
  if (sample.metric == null) return sample; // nothing is scored now
  return { ...sample, metric: scoreOf(status.live, metric), baseline: status.live.baseline[metric] ?? null };
}

// The last value of the metric that the chart shows, where nothing is scored now; null where there is a newer one, or none.
function lastScore() {
  const last = latest?.last?.[shown()] ?? past?.last ?? null;
  return last === null || latest === null || sampleOf(latest)?.metric != null ? null : last;
}

const scoreOf = (live, name) => (typeof live[name] === "number" ? live[name] : null);

function nameSeries(status) {
  const name = words.plain(shown() ?? "live metric");
  const last = lastScore();
  const when = last ? `, ${words.span(Math.max(0, now() - last.at))} ago` : ` over ${status.live?.window}`;
  const scored = last !== null || sampleOf(latest)?.metric != null;
  say(document.querySelector('[data-name="metric"]'), scored ? `${name}${when}` : "no record scored yet");
  say(document.querySelector('[data-name="baseline"]'), guess());
  const loss = shown() === "loss" || !status.live ? null : scoreOf(status.live, "loss");
  const again = status.live?.no_change[shown()];
  say(document.querySelector('[data-name="no-change"]'), again == null ? "" : `no change ${words.metric(again)}`);
  say(document.querySelector('[data-name="loss"]'), loss === null ? "" : `loss ${words.metric(loss)}`);
  say(document.querySelector('[data-name="change"]'), changeText());
  const version = exported();
  document.querySelector('[data-name="exported"]').hidden = version === null;
  if (version !== null) say(document.querySelector('[data-name="exported"]').lastChild, `version ${version.number} had ${words.metric(version.value)}`);
  const records = status.stream.lag_records;
  say(document.querySelector('[data-name="lag"]'), records == null ? "behind the topic" : `${words.count(records)} records`);
}

// What the newest exported version scored when its checkpoint was made, by the metric that the chart shows.
function exported() {
  const version = versions?.[0];
  const value = version?.metrics[shown()];
  return value == null ? null : { number: version.number, value, at: words.parsed(version.made_at) };
}

// How the metric has changed since yesterday, or since the history begins.
function changeText() {
  if (day === null || day.metric !== shown() || latest === null) return "";
  const known = day.at.map((at, i) => [at, day.mean.metric[i]]).filter(([, value]) => value != null);
  const value = sampleOf(latest)?.metric;
  if (value == null || !known.length || now() - known[0][0] < LEAST_CHANGE_S) return "";
  const first = known.slice(0, THEN);
  const change = value - first.reduce((sum, [, one]) => sum + one, 0) / first.length;
  const since = now() - known[0][0];
  return `${change < 0 ? "−" : "+"}${words.metric(Math.abs(change))} ${since >= YESTERDAY_S ? "since yesterday" : `in ${words.span(since)}`}`;
}

// Opens what a mark in the charts stands for.
function openMark({ opens, number }) {
  if (opens === "restore") restore(number, checkpoints.find((one) => one.number === number)?.note, best);
  else if (!byId("as-before").hidden) byId("as-before").click();
}

function offerMetrics(names) {
  byId("metric-choice").hidden = names.length < 2;
  keyed(byId("metric"), names, (name) => name, (name) => new Option(words.plain(name), name), () => {});
  byId("metric").value = shown();
}

// Updates the ages, which grow even when no message comes.
function showAges() {
  showSilence();
  byId("notice").hidden = performance.now() > noticeUntil;
  if (latest === null) return;
  const newest = latest.status.checkpoint;
  const since = newest ? newest.age_s + Math.max(0, now() - latest.at) : 0;
  say(byId("checkpoint"), newest ? `checkpoint ${newest.number} · ${words.span(since)} ago` : follows(latest.status) ? "the chief has the checkpoints" : "no checkpoint yet");
  exports(latest.status.exports, versions ?? [], now());
  truth(latest.status.training?.calibration);
  slices(latest.status.training?.slices);
  served(latest.status.training?.served);
  inputs(latest.status, read, events.findLast((event) => event.kind === "input_changed" && now() - Date.parse(event.at) / 1000 < CHANGED_S));
  fitRows();
  if (byId("history-of-events").open) parts.events(byId("every-event"), parts.folded(events).reverse(), now());
}

function showSilence() {
  if (document.hidden) return; // an answer may come in the background, and hidden time does not count
  const { silentFor: silent, waitedFor: waited } = feed;
  const quiet = silent !== null && waited > SILENT_AFTER_S;
  document.body.classList.toggle("quiet", quiet);
  if (silent !== null) say(byId("as-of"), quiet ? `no answer for ${words.span(waited)}` : `as of ${words.span(Math.max(1, silent))} ago`);
  if (!quiet) return;
  announce("silence", () => "No answer.");
  byId("dot").dataset.mood = "away";
  byId("pause").disabled = byId("save").disabled = true;
}

// On a large screen nothing scrolls: problems take the space of the older rows, then of the charts (page.css).
function fitRows() {
  const frame = [innerWidth, innerHeight, ...problems().map((one) => one.problem)].join();
  if (frame !== fittedTo) rows = MOST_ROWS;
  fittedTo = frame;
  showRows();
  const scrolls = (node) => node.scrollHeight > node.clientHeight;
  const isTight = () => scrolls(document.scrollingElement) || scrolls(byId("problems"));
  for (; oneScreen.matches && rows > FEWEST_ROWS && isTight(); showRows()) rows -= 1;
}

function showRows() {
  parts.checkpoints(byId("checkpoints"), checkpoints.slice(0, rows), best, now(), (number, note) => restore(number, note, best));
  parts.events(byId("events"), parts.folded(events).slice(-rows).reverse(), now());
}

// Tells a screen reader only of changes of the state or the problems: each message would be too much.
function announce(what, text) {
  if (announced !== what) say(byId("announce"), text());
  announced = what;
}

const stateWord = (state) => (state === "idle" || state === "saving" ? "Training" : words.capital(state));

function notify(text) {
  say(byId("notice"), text);
  byId("notice").hidden = false;
  noticeUntil = performance.now() + NOTICE_MS;
}

function append(message) {
  const { at } = message;
  const sample = sampleOf(message);
  if (sample === null) return;
  if (metric === null) past.metric = message.metric ?? past.metric;
  else if (past.metric !== metric) return; // the history of what was just chosen is being fetched
  if (at - (past.at.at(-1) ?? 0) < 0.5) return;
  past.at.push(at);
  for (const [column, values] of Object.entries(past.mean)) values.push(sample[column] ?? null);
  while (past.at[0] < at - SPANS["10m"].seconds) {
    past.at.shift();
    for (const values of Object.values(past.mean)) values.shift();
  }
}

function draw() {
  if (past === null) return;
  const newest = latest === null ? null : sampleOf(latest);
  charts.show({ ...past, now: now(), newest, last: lastScore(), guess: guess(), exported: exported() }, events.map(markOf).filter(Boolean), pausesOf(events));
}

// The address holds how far back the charts reach, so that a reload or a bookmark shows the same.
function spanOfAddress() {
  const wanted = new URLSearchParams(location.search).get("span");
  return Object.hasOwn(SPANS, wanted) ? wanted : "10m";
}

function chooseSpan(wanted) {
  span = wanted;
  keepInAddress("span", span);
  fetchPast();
}

function chooseMetric(wanted) {
  metric = wanted;
  keepInAddress("metric", metric);
  fetchPast();
  if (latest !== null) show();
}

function keepInAddress(name, value) {
  const address = new URL(location.href);
  if (value === null) address.searchParams.delete(name);
  else address.searchParams.set(name, value);
  history.replaceState(null, "", address);
}

async function read(path) {
  const answer = await request(path);
  if (!answer?.ok) throw new Error(`${path}: ${answer?.status ?? "no token"}`);
  return answer.json();
}

async function fetchPast() {
  const wanted = [span, metric];
  const named = metric === null ? "" : `&metric=${encodeURIComponent(metric)}`;
  try {
    const answer = await read(`/history?span=${span}${named}`);
    if (wanted[0] !== span || wanted[1] !== metric) return;
    past = answer;
    offerMetrics(past.metrics);
    draw();
    charts.summaries();
  } catch (error) {
    if (metric !== null && error.message.endsWith(": 404")) return chooseMetric(null); // of another model, or not known yet
    // The feed shows that the service does not answer; the next refresh fetches again.
  }
}

async function fetchDay() {
  if (performance.now() - dayAskedAt < DAY_EVERY_MS && day?.metric === shown()) return;
  dayAskedAt = performance.now();
  try {
    day = await read(`/history?span=24h${metric === null ? "" : `&metric=${encodeURIComponent(metric)}`}`);
  } catch {
    // As in fetchPast.
  }
}

async function fetchPartitions() {
  if (!byId("lag-by-partition").open) return;
  try {
    parts.partitions(byId("partitions"), (await read("/lag")).partitions);
  } catch {
    // As in fetchPast.
  }
}

async function fetchCheckpoints() {
  try {
    const answer = await read(`/checkpoints?limit=${MOST_ROWS}`);
    checkpoints = answer.checkpoints;
    best = answer.best ?? null;
    if (latest !== null) showAges();
  } catch {
    // As in fetchPast.
  }
}

async function fetchExports() {
  if (latest?.status.exports == null) return;
  versions ??= [];
  try {
    versions = (await read("/exports")).exports;
    showAges();
  } catch {
    // As in fetchPast.
  }
}

// Of a page in the background only the title is visible.
async function refreshTitle() {
  try {
    title(await read("/status"));
  } catch {
    document.title = `${byId("name").textContent} · No answer`;
  }
}

function refresh() {
  pastAskedAt = performance.now();
  if (document.hidden) return refreshTitle();
  fetchPast();
  fetchDay();
  fetchCheckpoints();
  fetchExports();
}

function refreshAfterMs() {
  if (document.hidden) return TITLE_EVERY_MS;
  if (past === null) return 2000;
  return span === "2h" || feed.refusal !== null ? 10_000 : 60_000;
}

async function runCommand(button, path, textOf) {
  busy.add(button.id);
  button.disabled = true;
  try {
    const answer = await sendCommand(path);
    if (answer !== null) notify(textOf(answer));
  } catch (error) {
    notify(error.message);
  } finally {
    busy.delete(button.id);
    button.disabled = false;
  }
}

const feed = new Feed(onMessage, onLocked);
byId("save").addEventListener("click", () =>
  runCommand(byId("save"), "/checkpoints?wait=60s", ({ checkpoint }) => (checkpoint ? `Checkpoint ${checkpoint.number} is durable.` : "The save is still running.")),
);
byId("pause").addEventListener("click", () =>
  runCommand(byId("pause"), awaitsResume(latest.status) ? "/resume" : "/pause", ({ state, operation }) =>
    operation ? "Requested; the trainer has not done it yet." : state === "paused" ? "Paused." : "Resumed."),
);
byId("spans").querySelector(`[value="${span}"]`).checked = true;
byId("spans").addEventListener("change", (event) => chooseSpan(event.target.value));
byId("metric").addEventListener("change", (event) => chooseMetric(event.target.value));
for (const button of document.querySelectorAll("[data-opens]"))
  button.addEventListener("click", () => {
    byId(button.dataset.opens).showModal();
    showAges();
    fetchPartitions();
  });
for (const button of document.querySelectorAll("[data-close]")) button.addEventListener("click", () => button.closest("dialog").close());
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  if (latest !== null) show();
  refresh();
});
refresh();
setInterval(() => {
  if (!document.hidden) {
    showAges();
    fetchPartitions();
  }
  if (performance.now() - pastAskedAt >= refreshAfterMs()) refresh();
}, 1000);
setInterval(() => past !== null && charts.summaries(), SUMMARIES_EVERY_MS);
