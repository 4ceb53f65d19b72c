// Requests to the service, with a token where it asks for one. Only this module keeps the token, in memory.

import { byId, say } from "./dom.js";

const TOKEN = /^[A-Za-z0-9._~+/-]+=*$/; // the characters that a header can carry, as in app/api/tokens.py
const ONLY_READS = "urn:millrace:token-only-reads";

let token = null;
let asking = null; // the answer of the dialog while it is open: there is one, however many requests need a token
let declined = false; // whether the person has cancelled it for a read: only a command opens it again

// Fetches. Where the service wants a token, or another one, asks the person for it and fetches again; null if they cancel.
export async function request(path, options = {}, isCommand = false) {
  const before = token;
  for (;;) {
    const used = token;
    const headers = { ...options.headers, ...(used === null ? {} : { authorization: `Bearer ${used}` }) };
    const answer = await fetch(path, { ...options, headers });
    const complaint = await complaintOf(answer);
    if (complaint === null || (!isCommand && declined)) return answer;
    if (used === token && (await ask(used === null ? null : complaint, isCommand)) === null) {
      token = before; // it may be good for reading
      return null;
    }
  }
}

// Why the token is not good enough, or that there is none; null where neither is the case.
async function complaintOf(answer) {
  if (answer.status !== 401 && answer.status !== 403) return null;
  const problem = await answer.clone().json().catch(() => ({}));
  return answer.status === 401 || problem.type === ONLY_READS ? (problem.detail ?? "") : null;
}

function ask(complaint, isCommand) {
  asking ??= showDialog(complaint, isCommand).then((given) => {
    asking = null;
    if (given !== null) token = given;
    declined = given === null && !isCommand;
    return given;
  });
  return asking;
}

function showDialog(complaint, isCommand) {
  const dialog = byId("token");
  const field = byId("token-text");
  const refusal = byId("token-refusal");
  say(byId("token-title"), isCommand ? "This command needs a token" : "Reading needs a token");
  say(byId("token-why"), isCommand ? "This service accepts commands only with a token." : "This service shows its state only with a token.");
  refusal.hidden = complaint === null;
  say(refusal, complaint ?? "");
  field.value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    let given = null;
    byId("token-form").onsubmit = (event) => {
      event.preventDefault();
      const written = field.value.trim();
      refusal.hidden = TOKEN.test(written);
      if (!refusal.hidden) return say(refusal, "The token holds a character that no token has; copy it again.");
      given = written;
      dialog.close();
    };
    dialog.onclose = () => {
      field.value = "";
      resolve(given);
    };
  });
}
