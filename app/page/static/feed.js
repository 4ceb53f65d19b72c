// The one stream: how it stands, once a second. It comes back by itself, and knows how long nothing has come.
//
// Only a page that is seen has one: for all its tabs together a browser keeps six connections to a service, and the
// service has room for so many listeners. Where that room is taken, the page asks every few seconds instead.

import { parsed } from "./words.js";

const AGAIN_AFTER_MS = 2000;
const SILENT_MS = 5000;

export class Feed {
  #line = null; // ends the stream that is open
  #newest = 0;
  #heardAt = null;
  #begunAt = 0; // when the stream was opened or closed
  #seenAt = 0; // since when somebody looks at the page
  refusal = null; // why there is no stream though the service answers, and since when

  constructor(hear) {
    this.hear = hear;
    document.addEventListener("visibilitychange", () => this.#turn());
    this.#turn();
    setInterval(() => this.#look(), 1000);
  }

  // Seconds since the last message; null before the first.
  get silentFor() {
    return this.#heardAt === null ? null : (performance.now() - this.#heardAt) / 1000;
  }

  // Seconds for which a message has been waited for: none while nobody looks.
  get waitedFor() {
    return (performance.now() - Math.max(this.#seenAt, this.#heardAt ?? 0)) / 1000;
  }

  #turn() {
    this.#close();
    if (document.hidden) return;
    this.#seenAt = performance.now();
    this.#open();
  }

  async #open() {
    const line = (this.#line = new AbortController());
    this.#begunAt = performance.now();
    try {
      const answer = await fetch(`/page/updates?since=${this.#newest}`, { signal: line.signal });
      if (answer.ok) await this.#listen(answer.body);
      else await this.#askInstead(await answer.json(), line.signal);
    } catch {
      this.refusal = null; // nothing answers, or the line was closed: how long it is silent says the rest
    }
    if (this.#line === line) this.#close();
  }

  async #listen(body) {
    this.refusal = null;
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ; ) {
      const { value, done } = await reader.read();
      if (done) return;
      const frames = (rest + value).split("\n\n");
      rest = frames.pop();
      for (const frame of frames) if (frame.startsWith("data: ")) this.#take(JSON.parse(frame.slice("data: ".length)));
    }
  }

  // What the stream would have told by now.
  async #askInstead({ detail }, signal) {
    const paths = ["/status", `/events?since=${this.#newest}`];
    const [status, { events }] = await Promise.all(paths.map(async (path) => (await fetch(path, { signal })).json()));
    this.refusal = { detail, since: this.refusal?.since ?? status.as_of };
    this.#take({ at: parsed(status.as_of), status, metric: null, sample: null, events });
  }

  #take(news) {
    this.#heardAt = performance.now();
    const last = news.events.at(-1)?.id ?? this.#newest;
    if (last < this.#newest) this.#newest = 0; // another process, whose clock is behind: all that comes is new
    const fresh = news.events.filter((event) => event.id > this.#newest);
    this.#newest = last;
    queueMicrotask(() => this.hear({ ...news, events: fresh })); // what fails in there is no failure of the line
  }

  #close() {
    this.#line?.abort();
    this.#line = null;
    this.#begunAt = performance.now();
  }

  // A line that is dead may not say so.
  #look() {
    if (document.hidden) return;
    const waited = performance.now() - Math.max(this.#begunAt, this.#heardAt ?? 0);
    if (this.#line === null && waited >= AGAIN_AFTER_MS) this.#open();
    else if (this.#line !== null && waited >= SILENT_MS) this.#close();
  }
}
