// Builds elements without markup in strings, so that text from a record or a person is never parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function drawn(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

// Changes a node's text only where it differs, so that a screen reader's cursor, a selection and the focus stay.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// The same for a text in which commands stand between backticks: they become code, each with a button that copies it.
export function sayWithCode(node, text, { copies = false } = {}) {
  if (node.dataset.said === text) return;
  node.dataset.said = text;
  const parts = text.split("`").map((part, i) => (i % 2 ? element("code", {}, part) : part));
  const clipboard = copies ? navigator.clipboard : undefined; // there is none where a page comes over HTTP from elsewhere
  node.replaceChildren(...parts.flatMap((part) => (part instanceof Element && clipboard ? [part, copyButton(part.textContent, clipboard)] : [part])));
}

function copyButton(text, clipboard) {
  const button = element("button", { type: "button", class: "quiet copy", "aria-label": `Copy ${text}` }, "Copy");
  button.addEventListener("click", async () => {
    await clipboard.writeText(text);
    say(button, "Copied");
  });
  return button;
}

// Keeps one child for each item, by key, in the items' order. `make` creates a child, `update` fills it.
export function keyed(parent, items, key, make, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let previous = null;
  for (const item of items) {
    const id = String(key(item));
    let child = known.get(id);
    if (child === undefined) {
      child = make(item);
      child.dataset.key = id;
    }
    known.delete(id);
    update(child, item);
    const next = previous === null ? parent.firstChild : previous.nextSibling;
    if (next !== child) parent.insertBefore(child, next);
    previous = child;
  }
  for (const stale of known.values()) stale.remove();
}
