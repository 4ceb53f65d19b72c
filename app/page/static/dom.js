// Elements without any markup in strings, so that nothing a record or a person wrote is ever read as markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function drawn(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

// Only what differs is touched: a reader's cursor, a selection and a focus stay where they are.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Keep one child for each item, by key, in order; `update` fills it.
export function keyed(parent, items, key, make, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = null;
  for (const item of items) {
    const name = String(key(item));
    let child = known.get(name);
    if (child === undefined) {
      child = make(item);
      child.dataset.key = name;
    }
    known.delete(name);
    update(child, item);
    const next = place === null ? parent.firstChild : place.nextSibling;
    if (next !== child) parent.insertBefore(child, next);
    place = child;
  }
  for (const gone of known.values()) gone.remove();
}
