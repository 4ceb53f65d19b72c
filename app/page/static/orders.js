// Orders: save, restore, pause, resume. A token, where one is asked for, stays in this module's memory alone.

import { byId, element, say } from "./dom.js";
import * as words from "./words.js";

let token = null;

class Refused extends Error {
  constructor(problem) {
    const fix = problem.status === 422 ? "" : problem.fix; // what was typed wrongly says how to write it; the rest is for programs
    super([problem.detail, fix].filter(Boolean).map(sentence).join(" "));
  }
}

const sentence = (text) => (/[.!?]$/.test(text) ? text : `${text}.`);

// Gives an order; where it needs a token, asks for one and gives it again. Null where the person thinks better of it.
export async function order(path, body) {
  for (;;) {
    const answer = await sent(path, body);
    if (answer.ok) return await answer.json();
    const problem = await answer.json().catch(() => ({ status: answer.status, detail: `It answered ${answer.status}.` }));
    if (answer.status !== 401) throw new Refused(problem);
    const wrong = token !== null;
    token = null;
    token = await askForToken(wrong ? problem.detail : null);
    if (token === null) return null;
  }
}

async function sent(path, body) {
  const headers = { "content-type": "application/json", ...(token === null ? {} : { authorization: `Bearer ${token}` }) };
  try {
    return await fetch(path, { method: "POST", headers, body: JSON.stringify(body ?? {}) });
  } catch {
    throw new Refused({ detail: "The service does not answer.", fix: "See whether it runs, and try again." });
  }
}

function askForToken(complaint) {
  const dialog = byId("token");
  const field = byId("token-text");
  const refusal = byId("token-refusal");
  refusal.hidden = complaint === null;
  say(refusal, complaint ?? "");
  field.value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    let given = null;
    byId("token-form").onsubmit = (event) => {
      event.preventDefault();
      given = field.value.trim() || null;
      if (given !== null) dialog.close();
    };
    dialog.onclose = () => {
      field.value = "";
      resolve(given);
    };
  });
}

// The dialog that shows what a restore would do, and does it once it is confirmed.
export function restoring(tell) {
  const dialog = byId("restore");
  const go = byId("do-restore");
  const skip = byId("skip");
  let number = null;
  let looks = 0;

  function open(wanted, note) {
    number = wanted;
    say(byId("restore-title"), `Restore checkpoint ${number}?`);
    say(byId("note"), note ? `Its note: ${note}` : "");
    byId("reason").value = "";
    skip.value = "";
    say(go, `Restore checkpoint ${number}`);
    dialog.showModal();
    return look();
  }

  // Nothing is confirmed but what was shown: other ranges to pass over are looked at anew.
  async function look() {
    const asked = ++looks;
    byId("plan").replaceChildren(element("p", {}, "Working out what would be read again …"));
    complain(null);
    go.disabled = true;
    try {
      const plan = await order(`/checkpoints/${number}/restore`, { skip: ranges(), dry_run: true });
      if (plan === null) return dialog.close();
      if (asked !== looks || !dialog.open) return;
      byId("plan").replaceChildren(...described(plan));
      go.disabled = false;
    } catch (refused) {
      if (asked !== looks) return;
      byId("plan").replaceChildren();
      complain(refused);
    }
  }

  function ranges() {
    return skip.value.split(/[\s,]+/).filter(Boolean);
  }

  async function carryOut() {
    go.disabled = true;
    complain(null);
    const reason = byId("reason").value.trim() || null;
    try {
      const answer = await order(`/checkpoints/${number}/restore?wait=60s`, { skip: ranges(), reason });
      if (answer === null) return;
      dialog.close();
      const published = answer.checkpoint?.number;
      tell(published == null ? `Checkpoint ${number} is being restored.` : `Restored checkpoint ${number}; the order is checkpoint ${published}.`);
    } catch (refused) {
      complain(refused);
    } finally {
      go.disabled = false;
    }
  }

  function complain(refused) {
    byId("refusal").hidden = refused === null;
    say(byId("refusal"), refused?.message ?? "");
  }

  go.addEventListener("click", carryOut);
  skip.addEventListener("change", look);
  return open;
}

function described(plan) {
  const now = words.parsed(plan.as_of);
  const written = words.parsed(plan.created_at);
  const time = plan.takes_s == null ? null : plan.takes_s < 1 ? "under a second" : `about ${words.span(plan.takes_s)}`;
  const takes = time === null ? "" : `, which takes ${time} at the best rate of late`;
  const skipped = plan.skipped ? `${words.count(plan.skipped)} are passed over, by this order or an earlier one.` : null;
  const there = plan.gone == null ? "Kafka could not be asked whether it still has them all." : "Kafka still has them all.";
  const gone = plan.replayed && !plan.gone ? there : null;
  const advice = plan.advice ? `Mind: ${plan.advice}.` : null;
  return [
    `The model goes back to how it was ${words.span(Math.max(0, now - written))} ago (${words.moment(written, now)}, step ${words.count(plan.step)}), and learns on from there.`,
    plan.replayed ? `${words.count(plan.replayed)} offsets are read again${takes}.` : "No offset is read again.",
    skipped,
    gone,
    advice,
    "What was learnt since stays on disk as checkpoints, until it is pruned.",
  ]
    .filter(Boolean)
    .map((text) => element("p", text === advice ? { class: "mind" } : {}, text));
}
