// The page's only stream: the status, once a second. It reconnects by itself, and knows how long it has been silent.
//
// Only a visible page keeps a stream: a browser opens at most six connections to one service for all tabs together,
// and the service limits its listeners. If the service refuses the stream, the page polls every few seconds instead.

import { request } from "./access.js";
import { parsed } from "./words.js";

const RECONNECT_AFTER_MS = 2000;
const CLOSE_AFTER_SILENT_MS = 5000;

export class Feed {
  #connection = null; // aborts the open stream; null where none is open
  #newest = 0;
  #receivedAt = null;
  #changedAt = 0; // when the stream was last opened or closed
  #visibleSince = 0; // since when the page is visible
  refusal = null; // why the service refused the stream, and since when; null where it did not

  // `onMessage` gets what the stream sends; `onLocked` is called where reading needs a token and there is none.
  constructor(onMessage, onLocked) {
    this.onMessage = onMessage;
    this.onLocked = onLocked;
    document.addEventListener("visibilitychange", () => this.#onVisibilityChange());
    this.#onVisibilityChange();
    setInterval(() => this.#check(), 1000);
  }

  // Seconds since the last message; null before the first.
  get silentFor() {
    return this.#receivedAt === null ? null : (performance.now() - this.#receivedAt) / 1000;
  }

  // Seconds since the last message or since the page became visible, whichever is later: hidden time does not count.
  get waitedFor() {
    return (performance.now() - Math.max(this.#visibleSince, this.#receivedAt ?? 0)) / 1000;
  }

  #onVisibilityChange() {
    this.#close();
    if (document.hidden) return;
    this.#visibleSince = performance.now();
    this.#open();
  }

  async #open() {
    const connection = (this.#connection = new AbortController());
    this.#changedAt = performance.now();
    try {
      const answer = await request(`/page/updates?since=${this.#newest}`, { signal: connection.signal });
      if (answer === null || answer.status === 401) this.onLocked();
      else if (answer.ok) await this.#read(answer.body);
      else await this.#poll(await answer.json(), connection.signal);
    } catch {
      this.refusal = null; // no answer, or the stream was closed: the page shows how long it has been silent
    }
    if (this.#connection === connection) this.#close();
  }

  async #read(body) {
    this.refusal = null;
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ; ) {
      const { value, done } = await reader.read();
      if (done) return;
      const frames = (rest + value).split("\n\n");
      rest = frames.pop();
      for (const frame of frames) if (frame.startsWith("data: ")) this.#receive(JSON.parse(frame.slice("data: ".length)));
    }
  }

  // Fetches what the stream would have sent.
  async #poll({ detail }, signal) {
    const paths = ["/status", `/events?since=${this.#newest}`];
    const [status, { events }] = await Promise.all(paths.map((path) => fetched(path, signal)));
    this.refusal = { detail, since: this.refusal?.since ?? status.as_of };
    this.#receive({ at: parsed(status.as_of), status, metric: null, sample: null, events });
  }

  #receive(message) {
    this.#receivedAt = performance.now();
    const newest = message.events.at(-1)?.id ?? this.#newest;
    if (newest < this.#newest) this.#newest = 0; // a restarted service with a slower clock: all its events are new
    const unseen = message.events.filter((event) => event.id > this.#newest);
    this.#newest = newest;
    queueMicrotask(() => this.onMessage({ ...message, events: unseen })); // an error in the callback must not close the stream
  }

  #close() {
    this.#connection?.abort();
    this.#connection = null;
    this.#changedAt = performance.now();
  }

  // Reconnects, and closes a stream that is silent: a dead connection may report no error.
  #check() {
    if (document.hidden) return;
    const waited = performance.now() - Math.max(this.#changedAt, this.#receivedAt ?? 0);
    if (this.#connection === null && waited >= RECONNECT_AFTER_MS) this.#open();
    else if (this.#connection !== null && waited >= CLOSE_AFTER_SILENT_MS) this.#close();
  }
}

// Throws where the answer is a refusal: that is no message.
async function fetched(path, signal) {
  const answer = await request(path, { signal });
  if (!answer?.ok) throw new Error(`${path}: ${answer?.status ?? "no token"}`);
  return answer.json();
}
