// Marks: events that explain the charts, each drawn as a line through all three and a sign below them.

import { drawn } from "./dom.js";

const KINDS = {
  checkpoint: { sign: "checkpoint", label: "checkpoint" },
  started: { sign: "restart", label: "start" },
  rewound: { sign: "rewind", label: "rewind" },
  fell_back: { sign: "rewind", label: "rewind" },
  brake: { sign: "brake", label: "crash loop" },
  new_code: { sign: "config", label: "new config" },
  hyperparameters: { sign: "config", label: "new config" },
};

const SHAPES = {
  checkpoint: "M0-2.6A2.6 2.6 0 1 1 0 2.6 2.6 2.6 0 1 1 0-2.6Z",
  restart: "M0-4.4 4.2 3.2H-4.2Z",
  rewind: "M-4.4 0 3.2-4.2V4.2Z",
  brake: "M-3.6-3.6H3.6V3.6H-3.6Z",
  config: "M0-4.6 4.6 0 0 4.6-4.6 0Z",
};

export const markOf = (event) => {
  const kind = KINDS[event.kind];
  return kind === undefined ? null : { at: Date.parse(event.at) / 1000, text: event.text, ...kind };
};

export const sign = (mark, x, y) =>
  drawn("path", { class: `sign ${mark.sign}`, d: SHAPES[mark.sign], transform: `translate(${x} ${y})` });

export function legendEntry(mark) {
  const icon = drawn("svg", { class: "icon", viewBox: "-6 -6 12 12", "aria-hidden": "true" }, sign(mark, 0, 0));
  const item = document.createElement("li");
  item.append(icon, mark.label);
  return item;
}
