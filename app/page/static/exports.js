// The exports: a line on the newest version and on what holds the next one back, and the last versions in a dialog.

import { byId, element, keyed, say } from "./dom.js";
import * as words from "./words.js";

const IN_THE_LINE = 3; // metrics; the dialog shows all

// Shows nothing where no exports are made: `state` is null then. `versions` are those of /exports, the newest first.
export function exports(state, versions, now) {
  byId("exported").hidden = state == null;
  if (state == null) return;
  say(byId("exported-version"), newest(versions, now));
  const [mood, text] = doing(state, now);
  byId("exporting").className = mood;
  say(byId("exporting"), text);
  byId("exported").querySelector("button").hidden = versions.length === 0;
  if (byId("exports-in-full").open) table(versions, now);
}

function newest([version], now) {
  if (version === undefined) return "No version is exported yet.";
  return [`Version ${version.number} exported ${age(version, now)} ago`, ...measured(version).slice(0, IN_THE_LINE)].join(" · ");
}

function doing({ running, running_since, missing, missing_since, error }, now) {
  if (missing) {
    const since = words.parsed(missing_since);
    return ["warning", `Held back since ${words.moment(since, now)}, for ${words.span(Math.max(0, now - since))}: ${missing.join("; ")}.`];
  }
  if (running != null) {
    const since = running_since == null ? now : words.parsed(running_since);
    return ["", `Checkpoint ${running} is being exported, for ${words.span(Math.max(0, now - since))} now.`];
  }
  return error ? ["error", `The last export was refused: ${error}.`] : ["", ""];
}

function table(versions, now) {
  const cells = () => ["age", "why", "records", "size", "proof"].map((kind) => element("td", { class: kind }));
  const make = ({ number }) => element("tr", {}, element("th", { scope: "row" }, String(number)), ...cells());
  keyed(byId("exports"), versions, (one) => one.number, make, (row, one) => {
    const [, made, metrics, records, size, proof] = row.children;
    say(made, `${age(one, now)} ago`);
    say(metrics, measured(one).join(", ") || "not measured");
    say(records, `${words.count(one.records)} learnt`);
    say(size, words.size(one.bytes));
    say(proof, `proven on ${words.count(one.proven_on)}`);
  });
}

const age = (version, now) => words.span(Math.max(0, now - words.parsed(version.made_at)));

const measured = ({ metrics }) => Object.entries(metrics).map(([name, value]) => `${words.plain(name)}\u00a0${words.metric(value)}`); // kept on one line
