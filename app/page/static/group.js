// The group of workers that learn one model: a line on who is slow or waited for, and a table in a dialog.

import { byId, element, keyed, say } from "./dom.js";
import * as words from "./words.js";

const CHIEF = 0;

// Whether another worker is the chief, who saves and takes commands.
export const follows = (status) => status.group != null && status.group.worker !== CHIEF;

export function group(of) {
  byId("group").hidden = of == null;
  // Each worker has the books of its own partitions; a checkpoint has those of all.
  const own = of == null ? "" : ` of ${of.members[of.worker].name}'s partitions`;
  say(byId("balance-title"), `Every offset${own} is accounted for`);
  say(byId("in-full-title"), `The outcome of every offset${own}`);
  if (of == null) return;
  const members = Object.entries(of.members).map(([number, one]) => ({ number, ...one }));
  say(byId("group-says"), [together(of, members), whose(of)].filter(Boolean).join(" "));
  const row = ({ name }) => element("tr", {}, element("th", { scope: "row" }, name), ...[1, 2, 3, 4, 5].map(() => element("td")));
  keyed(byId("members"), members, ({ number }) => number, row, (node, one) => {
    const [, behind, rate, waits, partitions, state] = node.children;
    node.className = one.missing || Number(one.number) === of.slowest ? "held" : "";
    say(behind, words.count(one.lag_records));
    say(rate, words.rate(one.records_per_s));
    say(waits, one.waiting == null ? words.count(null) : words.percent(one.waiting));
    say(partitions, words.count(one.partitions));
    say(state, stateOf(one, Number(one.number) === of.slowest));
  });
}

function together(of, members) {
  const missing = members.filter((one) => one.missing).map((one) => one.name);
  if (missing.length) return `A group of ${of.workers}: waiting for ${missing.join(", ")}.`;
  const facts = [`${of.workers} workers`];
  if (of.records_per_s != null) facts.push(`${words.rate(of.records_per_s)} records/s`);
  if (of.lag_records != null) facts.push(`${words.count(of.lag_records)} records behind`);
  const slow = of.slowest == null ? "" : ` The others wait for ${members[of.slowest].name}.`;
  return `${facts.join(", ")}.${slow}`;
}

const whose = (of) => (of.worker === CHIEF ? "" : `This is worker ${of.worker}; the chief, ${of.chief.replace(/:\d+$/, "")}, saves and takes commands.`);

function stateOf(one, slow) {
  if (one.missing) return "not there";
  return [slow ? "slowest" : "", ...(one.states ?? [])].filter(Boolean).join(", ");
}
