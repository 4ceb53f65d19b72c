// Commands: save, restore, pause, resume.

import { request } from "./access.js";
import { byId, element, say } from "./dom.js";
import { measuredOn } from "./parts.js";
import * as words from "./words.js";

class Refused extends Error {
  constructor(problem) {
    const fix = problem.status === 422 ? "" : problem.fix; // for wrong input the detail says how to write it; the fix is for programs
    super([problem.detail, fix].filter(Boolean).map(sentence).join(" "));
  }
}

const sentence = (text) => (/[.!?]$/.test(text) ? text : `${text}.`);

// Sends a command and returns its answer; null if it needs a token and the person cancels.
export async function sendCommand(path, body) {
  const answer = await post(path, body);
  if (answer === null) return null;
  if (answer.ok) return await answer.json();
  throw new Refused(await answer.json().catch(() => ({ status: answer.status, detail: `The service answered ${answer.status}.` })));
}

async function post(path, body) {
  const headers = { "content-type": "application/json" };
  try {
    return await request(path, { method: "POST", headers, body: JSON.stringify(body ?? {}) }, true);
  } catch {
    throw new Refused({ detail: "The service does not answer.", fix: "Check that it runs, and try again." });
  }
}

// Sets up the dialog that shows what a restore would do, and does it once it is confirmed. Returns the function that opens it.
// `live` returns the live metrics, to compare with.
export function restoring(notify, live) {
  const dialog = byId("restore");
  const confirm = byId("do-restore");
  const skip = byId("skip");
  let number = null;
  let requests = 0;
  let openings = 0;

  function open(wanted, note, best) {
    number = wanted;
    openings += 1;
    offerBest(best);
    say(byId("restore-title"), `Restore checkpoint ${number}?`);
    say(byId("note"), note ? `Its note: ${note}` : "");
    byId("reason").value = "";
    skip.value = "";
    say(confirm, `Restore checkpoint ${number}`);
    dialog.showModal();
    return showPlan();
  }

  // Offers the best checkpoint by the watched metric in place of the one that was chosen.
  function offerBest(best) {
    const offer = byId("to-best");
    offer.hidden = best === null || best === number;
    if (offer.hidden) return;
    say(offer.firstChild, `Choose the best instead: checkpoint ${best}`);
    offer.firstChild.onclick = () => {
      dialog.close();
      open(best, null, best);
    };
  }

  // Shows the plan before it can be confirmed. Other ranges to skip need a new plan, and only the last one asked for counts.
  async function showPlan() {
    const request = ++requests;
    byId("plan").replaceChildren(element("p", {}, "Working out what would be read again …"));
    showRefusal(null);
    confirm.disabled = true;
    try {
      const plan = await sendCommand(`/checkpoints/${number}/restore`, { skip: ranges(), dry_run: true });
      if (plan === null) return dialog.close();
      if (request !== requests || !dialog.open) return;
      byId("plan").replaceChildren(...described(plan, live()));
      confirm.disabled = false;
    } catch (refused) {
      if (request !== requests) return;
      byId("plan").replaceChildren();
      showRefusal(refused);
    }
  }

  function ranges() {
    return skip.value.split(/[\s,]+/).filter(Boolean);
  }

  // Until it is answered, the dialog may have been closed, and opened for another checkpoint.
  async function carryOut() {
    const [restored, opening] = [number, openings];
    confirm.disabled = true;
    showRefusal(null);
    const reason = byId("reason").value.trim() || null;
    try {
      const answer = await sendCommand(`/checkpoints/${restored}/restore?wait=60s`, { skip: ranges(), reason });
      if (answer === null) return;
      if (opening === openings) dialog.close();
      const published = answer.checkpoint?.number;
      notify(published == null ? `Checkpoint ${restored} is being restored.` : `Restored checkpoint ${restored}, as checkpoint ${published}.`);
    } catch (refused) {
      if (opening === openings && dialog.open) showRefusal(refused);
      else notify(`Checkpoint ${restored} was not restored. ${refused.message}`);
    } finally {
      if (opening === openings) confirm.disabled = false;
    }
  }

  function showRefusal(refused) {
    byId("refusal").hidden = refused === null;
    say(byId("refusal"), refused?.message ?? "");
  }

  confirm.addEventListener("click", carryOut);
  skip.addEventListener("change", showPlan);
  return open;
}

function described(plan, live) {
  const now = words.parsed(plan.as_of);
  const written = words.parsed(plan.created_at);
  const time = plan.takes_s == null ? null : plan.takes_s < 1 ? "under a second" : `about ${words.span(plan.takes_s)}`;
  const watched = plan.measured?.watched;
  const scored = plan.metrics?.[watched] == null ? null : `When it was made: ${measuredOn(plan, watched)}.`;
  const [then, today] = [plan.metrics?.[watched], live?.[watched]];
  const compared = then == null || typeof today !== "number" ? null : `Now: ${words.plain(watched)} ${words.metric(today)}, ${today < then ? "−" : "+"}${words.metric(Math.abs(today - then))}.`;
  const takes = time === null ? "" : `, which takes ${time} at the best recent rate`;
  const skipped = plan.skipped ? `${words.count(plan.skipped)} are skipped, by this command or an earlier one.` : null;
  const kept = plan.gone == null ? "Kafka could not be asked whether it still has them all." : "Kafka still has them all.";
  const gone = plan.replayed && !plan.gone ? kept : null;
  const advice = plan.advice ? `Note: ${plan.advice}.` : null;
  return [
    `The model goes back to how it was ${words.span(Math.max(0, now - written))} ago (${words.moment(written, now)}, step ${words.count(plan.step)}), and learns on from there.`,
    scored,
    compared,
    plan.replayed ? `${words.count(plan.replayed)} offsets are read again${takes}.` : "No offset is read again.",
    skipped,
    gone,
    advice,
    "The checkpoints made since stay on disk until they are pruned.",
  ]
    .filter(Boolean)
    .map((text) => element("p", text === advice ? { class: "mind" } : {}, text));
}
