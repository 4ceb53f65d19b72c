// The one stream: how it stands, once a second. It comes back by itself, and knows how long nothing has come.

const AGAIN_AFTER_MS = 2000;
const SILENT_MS = 5000;

export class Feed {
  #source = null;
  #heardAt = null;
  #begunAt = performance.now();
  #newest = 0;

  constructor(hear) {
    this.hear = hear;
    this.#open();
    setInterval(() => this.#look(), 1000);
  }

  // Seconds since the last message; null before the first.
  get silentFor() {
    return this.#heardAt === null ? null : (performance.now() - this.#heardAt) / 1000;
  }

  #open() {
    this.#begunAt = performance.now();
    this.#source = new EventSource(`/page/updates?since=${this.#newest}`);
    this.#source.onmessage = (message) => this.#take(JSON.parse(message.data));
    this.#source.onerror = () => this.#close();
  }

  #take(news) {
    this.#heardAt = performance.now();
    const last = news.events.at(-1)?.id ?? this.#newest;
    if (last < this.#newest) this.#newest = 0; // another process, whose clock is behind: all that comes is new
    const fresh = news.events.filter((event) => event.id > this.#newest);
    this.#newest = last;
    this.hear({ ...news, events: fresh });
  }

  #close() {
    this.#source?.close();
    this.#source = null;
    this.#begunAt = performance.now();
  }

  // A line that is dead may not say so.
  #look() {
    const waited = performance.now() - Math.max(this.#begunAt, this.#heardAt ?? 0);
    if (this.#source === null && waited >= AGAIN_AFTER_MS) this.#open();
    else if (this.#source !== null && waited >= SILENT_MS) this.#close();
  }
}
