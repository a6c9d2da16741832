// The last steps as rows of ranks over time, and the same as a table.

import { svg } from './dom.js';
import { count, plural, seconds } from './format.js';
import { button, el, none, quiet, said, straggler, table } from './parts.js';
import {
  bars, chosenRows, columns, MAX_ROWS, median, stepsFor, totals,
} from './steps.js';

const HEIGHT = 20;
const BAR = { y: 6, height: 12 };
const PARTS = ['compute', 'wait', 'exchange'];

const at = (value) => value.toFixed(1);

function boxes(list) {
  return list.map(({ x, width }) =>
      `M${at(x)} ${BAR.y}h${at(width)}v${BAR.height}h-${at(width)}z`).join('');
}

// Triangles that point at the steps in which the rank was a straggler.
function marks(row, steps, places) {
  return steps.map((step, index) => step.stragglers.includes(row.rank)
      ? `M${at(places[index].x)} 0h7l-3.5 5.5z` : '').join('');
}

function rowPicture(row, steps, places, width) {
  const parts = bars(row, places);
  return svg('svg', {
    width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, 'aria-hidden': 'true',
  }, PARTS.map((name, index) => svg('path', { class: name, d: boxes(parts[index]) })),
  svg('path', { class: 'mark', d: marks(row, steps, places) }));
}

function rowLabel(row, steps, pinned) {
  const slow = row.straggler_steps > 0
      ? `, straggler in ${row.straggler_steps} of ${steps.length} steps` : '';
  return button('pin', row.rank, [
    el('span', { class: 'rank' }, (pinned ? '◆ ' : '') + row.rank),
    el('span', { class: 'slow' }, row.straggler_steps > 0 ? `▲${row.straggler_steps}` : ''),
  ], {
    class: 'label', 'aria-pressed': String(pinned),
    'aria-label': `Rank ${row.rank}${slow}: pin it to the top`,
    title: `${row.host} (${row.node}/${row.slot})`,
  });
}

// Step numbers, as far apart as they need to be.
function axis(steps, places, width) {
  let free = 0;
  const labels = [];
  steps.forEach((step, index) => {
    const { x, cut } = places[index];
    if (cut) {
      labels.push(svg('path', { class: 'cut', d: `M${at(x + 1)} 15l4 -6m1 6l4 -6` }));
    }
    const text = String(step.step);
    const room = text.length * 8;
    if (x < free || x + room > width) return;
    labels.push(svg('path', { class: 'tick', d: `M${at(x + 0.5)} 14v6` }),
        svg('text', { x: at(x), y: 10 }, text));
    free = x + room + 60;
  });
  return svg('svg', {
    width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, class: 'axis',
    'aria-hidden': 'true',
  }, labels);
}

function sample(name) {
  const d = name === 'mark' ? 'M8 4h9l-4.5 7z' : 'M1 2h22v10h-22z';
  return svg('svg', { width: 24, height: 14, viewBox: '0 0 24 14', 'aria-hidden': 'true' },
      svg('path', { class: name, d }));
}

const LEGEND = [
  ['compute', 'compute'],
  ['wait', 'wait for peers or a decision'],
  ['exchange', 'exchange that compute did not hide'],
  ['mark', 'straggler in this step'],
];

function legend() {
  return el('ul', { class: 'legend' }, LEGEND.map(([name, meaning]) =>
      el('li', null, sample(name), ' ', meaning)));
}

// The stripes of exchange: different from compute also without colour.
function stripes() {
  return svg('svg', { width: 0, height: 0, class: 'defs', 'aria-hidden': 'true' },
      svg('defs', null, svg('pattern', {
        id: 'stripes', width: 4, height: 4, patternUnits: 'userSpaceOnUse',
        patternTransform: 'rotate(45)',
      }, svg('rect', { class: 'stripe-ground', width: 4, height: 4 }),
      svg('rect', { class: 'stripe', width: 2, height: 4 }))));
}

function summary(answer, steps, cut) {
  const worst = new Map();
  for (const step of steps) {
    for (const rank of step.stragglers) worst.set(rank, (worst.get(rank) || 0) + 1);
  }
  const named = [...worst].sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, 4)
      .map(([rank, times]) => `rank ${rank} in ${times}`);
  const typical = median(steps.map((step) => step.duration_max_seconds));
  return `Steps ${steps[0].step} to ${steps[steps.length - 1].step} of ` +
      `${plural(answer.world_size, 'rank')}; a step takes ${seconds(typical)} ` +
      'in the median. ' +
      (named.length > 0 ? `Stragglers: ${named.join(', ')} of ${steps.length} steps` +
          (worst.size > 4 ? `, and ${plural(worst.size - 4, 'rank')} more.` : '.')
        : 'No rank was a straggler.') +
      (cut ? ' A step marked // took more than four medians and is drawn shorter.' : '');
}

function rowsRule(answer, shown) {
  return shown < answer.world_size
      ? `${shown} of ${count(answer.world_size)} ranks are drawn, at most ${MAX_ROWS}: ` +
          'pinned ones, then those that were slowest most often, then others. '
      : 'Pinned ranks come first, then those that were stragglers in at least a ' +
          'quarter of these steps. ';
}

function last(row, name) {
  const known = row[name].filter((value) => typeof value === 'number');
  return seconds(known[known.length - 1]);
}

function asTable(rows, steps) {
  const many = [
    { name: 'Rank', number: true, of: (row) => String(row.rank) },
    { name: 'Host', text: true, of: (row) => said(row.host) },
    { name: 'Straggler', of: (row) => row.straggler_steps > 0
      ? straggler(`in ${row.straggler_steps} of ${steps.length}`) : 'no' },
    ...PARTS.map((name, part) => ({
      name: `Mean ${name}`, number: true, of: (row) => seconds(totals(row)[part]),
    })),
    ...PARTS.map((name) => ({
      name: `Last ${name}`, number: true, of: (row) => last(row, name + '_seconds'),
    })),
  ];
  return el('details', { 'data-key': 'steps-table' },
      el('summary', null, 'The same as a table'),
      table('Time of the last steps by rank', many, rows, (row) => row.rank));
}

function pinForm(pins) {
  return el('form', { class: 'controls', 'data-action': 'pin-form' },
      el('label', { for: 'pin-rank' }, 'Pin rank'),
      el('input', {
        id: 'pin-rank', type: 'text', inputmode: 'numeric', maxlength: '7',
        autocomplete: 'off', size: '5',
      }),
      el('button', { type: 'submit' }, 'Pin'),
      pins.length > 0 && button('unpin', '', 'Unpin all'));
}

// answer: of /jobs/NAME/steps, with the rows that were asked for besides.
export function picture(answer, pins, width) {
  if (!answer || answer.steps.length === 0 || answer.ranks.length === 0) {
    return [none('No rank has reported a step of this generation yet.')];
  }
  const many = Math.min(stepsFor(width), answer.steps.length);
  const from = answer.steps.length - many;
  const steps = answer.steps.slice(from);
  const trimmed = answer.ranks.map((row) => trim(row, from, steps));
  const rows = chosenRows({ ...answer, steps, ranks: trimmed }, pins);
  const places = columns(steps, width);
  return [
    el('figure', null,
        el('figcaption', { id: 'steps-summary' },
            summary(answer, steps, places.some((place) => place.cut))),
        legend(), stripes(),
        el('div', { class: 'rows', role: 'group', 'aria-labelledby': 'steps-summary' },
            el('div', { class: 'line', 'data-key': 'axis' },
                el('span', { class: 'label head' }, 'rank'), axis(steps, places, width)),
            rows.map((row) => el('div', { class: 'line', 'data-key': 'p' + row.rank },
                rowLabel(row, steps, pins.includes(row.rank)),
                rowPicture(row, steps, places, width))))),
    asTable(rows, steps),
    quiet(rowsRule(answer, rows.length), answer.rule),
    pinForm(pins),
  ];
}

// Of a row, what belongs to the steps that are drawn.
function trim(row, from, steps) {
  const parts = {};
  for (const name of PARTS) {
    parts[name + '_seconds'] = row[name + '_seconds'].slice(from);
  }
  const times = steps.filter((step) => step.stragglers.includes(row.rank)).length;
  return { ...row, ...parts, straggler_steps: times };
}

