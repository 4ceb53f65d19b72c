// The page: one stream in, everything on it out of the newest message; orders go the other way.

import { balance } from "./balance.js";
import { Charts } from "./charts.js";
import { byId, say } from "./dom.js";
import { Feed } from "./feed.js";
import { markOf } from "./marks.js";
import { order, restoring } from "./orders.js";
import * as parts from "./parts.js";
import { SPANS } from "./scale.js";
import * as words from "./words.js";

const SILENT_AFTER_S = 3.5;
const MOST_ROWS = 7;
const FEWEST_ROWS = 1;
const KEPT_EVENTS = 500;
const SAID_FOR_MS = 8000;
const SUMMARIES_EVERY_MS = 10_000;
const GLANCE_EVERY_MS = 30_000;
const OVER = new Set(["stopping", "ended", "failed"]);
const LISTING = new Set(["checkpoint", "rewound", "started", "topic_recreated"]);

const charts = new Charts(byId("charts"), byId("legend"));
const restore = restoring(told);
const oneScreen = matchMedia("(min-width: 1000px) and (min-height: 760px)"); // as in page.css
const busy = new Set(); // buttons whose order is under way
let news = null;
let past = null;
let pastAskedAt = 0;
let span = spanOfAddress();
let events = [];
let checkpoints = [];
let rows = MOST_ROWS;
let fittedTo = null;
let skew = 0; // of this machine's clock against the service's, in seconds
let version = null;
let announced = null;
let saidUntil = 0;

const now = () => Date.now() / 1000 + skew;

function hear(message) {
  version ??= message.status.version;
  if (message.status.version !== version) return location.reload(); // what it says now is for the page that it brings
  news = message;
  skew = message.at - Date.now() / 1000;
  if (message.events.length) {
    events = [...events, ...message.events].slice(-KEPT_EVENTS);
    if (message.events.some((event) => LISTING.has(event.kind))) list();
  }
  if (past?.span === "10m") append(message);
  show();
}

function show() {
  const { status } = news;
  byId("dot").dataset.mood = status.mood;
  parts.verdict(byId("verdict"), status.verdict);
  say(byId("name"), status.name);
  title(status);
  parts.problems(byId("problems"), problems(), now());
  parts.bound(status.throughput);
  balance(status.records);
  const deaf = status.checkpoint == null || OVER.has(status.state);
  for (const id of ["pause", "save"]) byId(id).disabled = deaf || busy.has(id);
  say(byId("pause"), status.state === "paused" ? "Resume" : "Pause");
  announce([stateWord(status.state), ...status.problems.map((one) => one.problem)].join(), () =>
    [`${stateWord(status.state)}.`, ...status.problems.map((one) => one.what)].join(" "),
  );
  nameSeries(status);
  age();
  draw();
}

const title = (status) => (document.title = `${status.name} · ${status.verdict.split(/[.:,]/)[0]}`);

// The service's, and the page's own.
function problems() {
  const { refusal } = feed;
  if (refusal === null) return news.status.problems;
  const what = `This page is not told how it goes: ${refusal.detail}`;
  const fix = "Close other pages of this service. Until then this one asks every few seconds.";
  return [...news.status.problems, { problem: "refused", what, since: refusal.since, fix }];
}

function nameSeries(status) {
  const live = news.metric ?? past?.metric ?? "live metric";
  const window = status.live ? ` over ${status.live.window}` : "";
  say(document.querySelector('[data-name="metric"]'), `${words.plain(live)}${window}`);
  const records = status.stream.lag_records;
  say(document.querySelector('[data-name="lag"]'), records == null ? "behind the topic" : `${words.count(records)} records`);
}

// What gets older by itself, also when nothing comes.
function age() {
  sayHowOld();
  byId("said").hidden = performance.now() > saidUntil;
  if (news === null) return;
  const kept = news.status.checkpoint;
  const since = kept ? kept.age_s + Math.max(0, now() - news.at) : 0;
  say(byId("checkpoint"), kept ? `checkpoint ${kept.number} · ${words.span(since)} ago` : "no checkpoint yet");
  fitRows();
  if (byId("history-of-events").open) parts.events(byId("every-event"), [...events].reverse(), now());
}

function sayHowOld() {
  const { silentFor: silent, waitedFor: waited } = feed;
  const quiet = silent !== null && waited > SILENT_AFTER_S;
  document.body.classList.toggle("quiet", quiet);
  if (silent !== null) say(byId("as-of"), quiet ? `no answer for ${words.span(waited)}` : `as of ${words.span(Math.max(1, silent))} ago`);
  if (!quiet) return;
  announce("silence", () => "No answer.");
  byId("dot").dataset.mood = "away";
  byId("pause").disabled = byId("save").disabled = true;
}

// On one screen what else is to be said takes the room of the older rows, and what the charts can spare (page.css).
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
  parts.checkpoints(byId("checkpoints"), checkpoints.slice(0, rows), now(), restore);
  parts.events(byId("events"), events.slice(-rows).reverse(), now());
}

// A screen reader is told what changes the meaning of everything, and nothing else.
function announce(what, text) {
  if (announced !== what) say(byId("announce"), text());
  announced = what;
}

const stateWord = (state) => (state === "idle" || state === "saving" ? "Training" : words.capital(state));

function told(text) {
  say(byId("said"), text);
  byId("said").hidden = false;
  saidUntil = performance.now() + SAID_FOR_MS;
}

function append({ at, sample, metric }) {
  if (sample === null) return;
  past.metric = metric ?? past.metric;
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
  charts.show({ ...past, now: now(), newest: news?.sample ?? null }, events.map(markOf).filter(Boolean));
}

// The address keeps how far back the charts reach, so that a reload and a bookmark show the same.
function spanOfAddress() {
  const asked = new URLSearchParams(location.search).get("span");
  return Object.hasOwn(SPANS, asked) ? asked : "10m";
}

function chooseSpan(wanted) {
  span = wanted;
  const address = new URL(location.href);
  address.searchParams.set("span", span);
  history.replaceState(null, "", address);
  fetchPast();
}

async function look(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

async function fetchPast() {
  const wanted = span;
  try {
    const found = await look(`/history?span=${wanted}`);
    if (wanted !== span) return;
    past = found;
    draw();
    charts.summaries();
  } catch {
    // The feed says that nothing answers; it is fetched again in its turn.
  }
}

async function list() {
  try {
    checkpoints = (await look(`/checkpoints?limit=${MOST_ROWS}`)).checkpoints;
    if (news !== null) age();
  } catch {
    // As above.
  }
}

// Nobody sees more of a page in the background than its title.
async function glance() {
  try {
    title(await look("/status"));
  } catch {
    document.title = `${byId("name").textContent} · No answer`;
  }
}

function refresh() {
  pastAskedAt = performance.now();
  if (document.hidden) return glance();
  fetchPast();
  list();
}

function refreshAfterMs() {
  if (document.hidden) return GLANCE_EVERY_MS;
  if (past === null) return 2000;
  return span === "2h" || feed.refusal !== null ? 10_000 : 60_000;
}

async function ask(button, path, said) {
  busy.add(button.id);
  button.disabled = true;
  try {
    const answer = await order(path);
    if (answer !== null) told(said(answer));
  } catch (refused) {
    told(refused.message);
  } finally {
    busy.delete(button.id);
    button.disabled = false;
  }
}

const feed = new Feed(hear);
byId("save").addEventListener("click", () =>
  ask(byId("save"), "/checkpoints?wait=60s", ({ checkpoint }) => (checkpoint ? `Checkpoint ${checkpoint.number} is durable.` : "The save goes on.")),
);
byId("pause").addEventListener("click", () =>
  ask(byId("pause"), news.status.state === "paused" ? "/resume" : "/pause", ({ state, operation }) =>
    operation ? "Asked for; the trainer is at something else." : state === "paused" ? "Paused." : "Resumed."),
);
byId("spans").querySelector(`[value="${span}"]`).checked = true;
byId("spans").addEventListener("change", (event) => chooseSpan(event.target.value));
for (const button of document.querySelectorAll("[data-opens]"))
  button.addEventListener("click", () => {
    byId(button.dataset.opens).showModal();
    age();
  });
for (const button of document.querySelectorAll("[data-close]")) button.addEventListener("click", () => button.closest("dialog").close());
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  if (news !== null) show();
  refresh();
});
refresh();
setInterval(() => {
  if (!document.hidden) age();
  if (performance.now() - pastAskedAt >= refreshAfterMs()) refresh();
}, 1000);
setInterval(() => past !== null && charts.summaries(), SUMMARIES_EVERY_MS);
