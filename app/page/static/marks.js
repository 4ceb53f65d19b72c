// Marks: events that explain the charts, each drawn as a line through all three and a sign below them.

import { drawn } from "./dom.js";

const KINDS = {
  checkpoint: { sign: "checkpoint", label: "checkpoint", opens: "restore" },
  started: { sign: "restart", label: "start" },
  rewound: { sign: "rewind", label: "rewind" },
  fell_back: { sign: "rewind", label: "rewind" },
  brake: { sign: "brake", label: "crash loop" },
  new_code: { sign: "config", label: "new config" },
  hyperparameters: { sign: "config", label: "new config" },
  mark: { sign: "detector", label: "detector" },
  input_changed: { sign: "input", label: "records changed", opens: "inputs" },
  unread_fields: { sign: "input", label: "records changed", opens: "inputs" },
  member_restarted: { sign: "detector", label: "detector" },
  paused: { sign: "pause", label: "pause" },
  resumed: { sign: "resume", label: "resumed" },
  kafka_away: { sign: "away", label: "Kafka away" },
  kafka_back: { sign: "back", label: "Kafka back" },
};
const ENDS = { resumed: ["pause"], kafka_back: ["away"], started: ["pause", "away"] };

const SHAPES = {
  checkpoint: "M0-2.6A2.6 2.6 0 1 1 0 2.6 2.6 2.6 0 1 1 0-2.6Z",
  restart: "M0-4.4 4.2 3.2H-4.2Z",
  rewind: "M-4.4 0 3.2-4.2V4.2Z",
  brake: "M-3.6-3.6H3.6V3.6H-3.6Z",
  config: "M0-4.6 4.6 0 0 4.6-4.6 0Z",
  detector: "M0-4.6 1.4-1.4 4.6 0 1.4 1.4 0 4.6-1.4 1.4-4.6 0-1.4-1.4Z",
  input: "M-4.2-3.4H4.2V-1.2H-4.2ZM-4.2 1.2H4.2V3.4H-4.2Z",
  pause: "M-3.4-4H-1V4H-3.4ZM1-4H3.4V4H1Z",
  resume: "M-3-4.2 4.2 0-3 4.2Z",
  away: "M-4-2.6-2.6-4 0-1.4 2.6-4 4-2.6 1.4 0 4 2.6 2.6 4 0 1.4-2.6 4-4 2.6-1.4 0Z",
  back: "M-4.2 0-2.6-1.6-1 0 2.6-3.6 4.2-2-1 3.2Z",
};

// The kind of mark that an event is; of the problems only Kafka's absence is one.
function kindOf({ kind, facts }) {
  if (facts?.problem !== "kafka_away") return kind;
  return kind === "problem_over" ? "kafka_back" : "kafka_away";
}

export const markOf = (event) => {
  const kind = KINDS[kindOf(event)];
  return kind === undefined ? null : { at: Date.parse(event.at) / 1000, text: event.text, number: event.facts?.number, ...kind };
};

// Returns the stretches of pauses and of Kafka's absence; without an end where they last.
export function pausesOf(events) {
  const open = new Map();
  const pauses = [];
  for (const event of events) {
    const kind = kindOf(event);
    const at = Date.parse(event.at) / 1000;
    const begun = KINDS[kind]?.sign;
    if (begun === "pause" || begun === "away") {
      if (open.has(begun)) continue;
      open.set(begun, { from: at, to: null, sign: begun });
      pauses.push(open.get(begun));
    }
    for (const ended of ENDS[kind] ?? []) {
      if (open.has(ended)) open.get(ended).to = at;
      open.delete(ended);
    }
  }
  return pauses;
}

export const sign = (mark, x, y) =>
  drawn("path", { class: `sign ${mark.sign}`, d: SHAPES[mark.sign], transform: `translate(${x} ${y})` });

export function legendEntry(mark) {
  const icon = drawn("svg", { class: "icon", viewBox: "-6 -6 12 12", "aria-hidden": "true" }, sign(mark, 0, 0));
  const item = document.createElement("li");
  item.append(icon, mark.label);
  return item;
}
