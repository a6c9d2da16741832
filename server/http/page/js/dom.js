// Builds elements, and brings what is on the page up to date without replacing
// what has not changed: focus, selections and scroll positions stay.
//
// Everything that comes from the coordinator enters the page here, as text
// nodes or attribute values; nothing is parsed as HTML.

const SVG = 'http://www.w3.org/2000/svg';
const MAX_TEXT = 2000;
// The reader's own: what is open, typed or chosen is not overwritten.
const KEPT = new Set(['open', 'value', 'checked']);

function text(value) {
  const whole = String(value);
  const shown = whole.length > MAX_TEXT ? whole.slice(0, MAX_TEXT) + '…' : whole;
  return document.createTextNode(shown);
}

function nodesOf(children) {
  return children.flat(Infinity)
      .filter((child) => child !== null && child !== undefined && child !== false)
      .map((child) => (child instanceof Node ? child : text(child)));
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === false || value === null || value === undefined) continue;
    node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...nodesOf(children));
  return node;
}

export function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

// Text of a peer: its direction of writing does not reach what is around it.
export function said(value) {
  return el('bdi', null, value);
}

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.getAttribute('data-key') : null;
}

function same(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName &&
      keyOf(one) === keyOf(other);
}

function morphAttributes(old, fresh) {
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !KEPT.has(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (KEPT.has(name) && old.nodeName !== 'OPTION') continue;
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
}

function morph(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  morphAttributes(old, fresh);
  reconcile(old, [...fresh.childNodes]);
}

// Makes the children of `parent` like `content`: nodes, and what becomes text.
export function update(parent, content) {
  const focused = document.activeElement;
  reconcile(parent, nodesOf([content]));
  // An element that moves to another place loses it.
  if (focused.isConnected && focused !== document.activeElement) {
    focused.focus({ preventScroll: true });
  }
}

function reconcile(parent, fresh) {
  const keyed = new Map();
  for (const child of parent.childNodes) {
    if (keyOf(child) !== null) keyed.set(keyOf(child), child);
  }
  let at = parent.firstChild;
  for (const wanted of fresh) {
    const known = keyOf(wanted) !== null ? keyed.get(keyOf(wanted)) : null;
    if (known && known !== at && same(known, wanted)) {
      parent.insertBefore(known, at);
      at = known;
    }
    if (at && same(at, wanted)) {
      morph(at, wanted);
      at = at.nextSibling;
    } else {
      parent.insertBefore(wanted, at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}
