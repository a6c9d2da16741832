// Pieces that several sections share.

import { el, said } from './dom.js';
import { age, clock, moment, UNKNOWN } from './format.js';

// A state in words, with a sign, so that colour is not all that tells.
const SIGNS = {
  running: ['good', '●'], attached: ['good', '●'], complete: ['good', '●'],
  forming: ['fair', '◐'], joined: ['fair', '◐'], open: ['fair', '◐'],
  detached: ['poor', '▲'], lost: ['bad', '✖'],
  ended: ['idle', '■'], left: ['idle', '■'],
};

export function state(name) {
  const [mood, sign] = SIGNS[name] || ['idle', '■'];
  return el('span', { class: 'state ' + mood },
      el('span', { 'aria-hidden': 'true' }, sign + ' '), String(name));
}

export function straggler(label = 'straggler') {
  return el('span', { class: 'state poor' },
      el('span', { 'aria-hidden': 'true' }, '▲ '), label);
}

export function time(at, text) {
  if (typeof at !== 'number') return UNKNOWN;
  const date = new Date(at * 1000);
  if (Number.isNaN(date.getTime())) return UNKNOWN;
  return el('time', { datetime: date.toISOString(), title: moment(at) }, text || moment(at));
}

export function ago(now, at) {
  return time(at, age(now, at));
}

// With the day where it is another one than that of `now`.
export function when(now, at) {
  return time(at, typeof at === 'number' && now - at < 43200 ? clock(at) : moment(at));
}

export function section(key, title, ...content) {
  return el('section', { 'data-key': key, class: 'card ' + key, 'aria-labelledby': 'h-' + key },
      el('h2', { id: 'h-' + key }, title), ...content);
}

// Names that peers give may be the same twice.
function uniqueKeys() {
  const times = new Map();
  return (key) => {
    const before = times.get(String(key)) || 0;
    times.set(String(key), before + 1);
    return `${before} ${key}`;
  };
}

// columns: [{name, number?, text?, long?, of: (row) => content}]; the first one names
// the row. Scrolls within itself where the window is too narrow.
export function table(caption, columns, rows, keyOf) {
  const kind = (column) =>
      [column.number && 'number', (column.text || column.long) && 'text', column.long && 'long']
          .filter(Boolean).join(' ') || null;
  const unique = uniqueKeys();
  const head = columns.map((column) =>
      el('th', { scope: 'col', class: kind(column) }, column.name));
  const body = rows.map((row) => el('tr', { 'data-key': unique(keyOf(row)) },
      columns.map((column, index) => index === 0
          ? el('th', { scope: 'row', class: kind(column) }, column.of(row))
          : el('td', { class: kind(column) }, column.of(row)))));
  return el('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': caption },
      el('table', null, el('caption', { class: 'unseen' }, caption),
          el('thead', null, el('tr', null, head)), el('tbody', null, body)));
}

export function facts(pairs) {
  return el('dl', { class: 'facts' }, pairs.filter(Boolean).map(([name, value]) =>
      el('div', null, el('dt', null, name), el('dd', null, value))));
}

export function none(text) {
  return el('p', { class: 'none' }, text);
}

export function quiet(...content) {
  return el('p', { class: 'quiet' }, ...content);
}

export function button(action, value, label, attributes = {}) {
  return el('button', {
    type: 'button', 'data-action': action, 'data-value': String(value), ...attributes,
  }, label);
}

export { el, said };
