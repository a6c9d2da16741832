// A pipeline: one of its steps as lanes over time, and where each rank is in it.

import { svg } from './dom.js';
import { count, seconds } from './format.js';
import { el, none, quiet, said, straggler, table } from './parts.js';

// The bounds of what is drawn, whatever the size of the job.
const MAX_LANES = 32;
const MAX_ROWS = 64;
const HEIGHT = 20;
const BAR = { y: 6, height: 12 };

const at = (value) => value.toFixed(1);

// "2F7" is a pass forward; B, I and W go back.
function isForward(action) {
  return /^[0-9]+F/.test(action);
}

function boxes(passes, scale) {
  return passes.map(({ begin, end }) => {
    const width = Math.max((end - begin) * scale - 1, 0.5);
    return `M${at(begin * scale)} ${BAR.y}h${at(width)}v${BAR.height}h-${at(width)}z`;
  }).join('');
}

// Triangles that point at where the ranks of a lane are.
function marks(ranks, scale, width) {
  return ranks.map((rank) =>
      `M${at(Math.min(rank.at * scale, width - 7))} 0h7l-3.5 5.5z`).join('');
}

function lanePicture(passes, ranks, scale, width) {
  return svg('svg', {
    width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, 'aria-hidden': 'true',
  },
  svg('path', { class: 'compute',
    d: boxes(passes.filter((pass) => isForward(pass.action)), scale) }),
  svg('path', { class: 'back',
    d: boxes(passes.filter((pass) => !isForward(pass.action)), scale) }),
  svg('path', { class: 'mark', d: marks(ranks, scale, width) }));
}

function sample(name) {
  const d = name === 'mark' ? 'M8 4h9l-4.5 7z' : 'M1 2h22v10h-22z';
  return svg('svg', { width: 24, height: 14, viewBox: '0 0 24 14', 'aria-hidden': 'true' },
      svg('path', { class: name, d }));
}

const LEGEND = [
  ['compute', 'forward'],
  ['back', 'backward'],
  ['mark', 'where a rank is now'],
];

function caption(pipeline) {
  return [
    `One step of ${pipeline.schedule}, ${count(pipeline.micro_batches)} micro-batches, `,
    pipeline.measured
      ? 'as planned: computed with the median times that the ranks report of their passes. '
      : 'as planned: the ranks have measured no passes yet, so each pass takes one unit. ',
    'It is not a recording of a step.',
  ];
}

function lanes(pipeline, width) {
  const drawn = pipeline.lanes.slice(0, MAX_LANES);
  if (drawn.length === 0) return none('The schedule is too long to be drawn.');
  const last = Math.max(...drawn.flatMap((lane) => lane.map((pass) => pass.end)), 0);
  const scale = last > 0 ? width / last : 0;
  return el('figure', null,
      el('figcaption', { id: 'pipeline-summary' }, caption(pipeline)),
      el('ul', { class: 'legend' }, LEGEND.map(([name, meaning]) =>
          el('li', null, sample(name), ' ', meaning))),
      el('div', { class: 'rows', role: 'group', 'aria-labelledby': 'pipeline-summary' },
          drawn.map((lane, index) => el('div', { class: 'line', 'data-key': 'l' + index },
              el('span', { class: 'label head' }, `pp ${index}`),
              lanePicture(lane, pipeline.ranks.filter((rank) =>
                rank.lane === index && rank.at !== null), scale, width)))));
}

const COLUMNS = [
  { name: 'Rank', number: true, of: (rank) => count(rank.rank) },
  { name: 'pp', number: true, of: (rank) => count(rank.lane) },
  { name: 'Is in', text: true, of: (rank) => said(rank.action || 'not known') },
  { name: 'For', number: true, of: (rank) => seconds(rank.seconds) },
  { name: 'Step', number: true, of: (rank) => count(rank.step) },
  { name: 'Waits for', text: true, of: (rank) => rank.waits_for.join(', ') || 'no rank' },
  { name: 'Wait for it', number: true,
    of: (rank) => (rank.waiters > 0 ? straggler(count(rank.waiters)) : '0') },
];

// Those that others wait for first.
function rows(ranks) {
  return [...ranks].sort((a, b) => b.waiters - a.waiters || a.rank - b.rank)
      .slice(0, MAX_ROWS);
}

// pipeline: of /jobs/NAME; absent where the job has none.
export function pipelineParts(pipeline, width) {
  return [
    pipeline.findings.length > 0 &&
        el('ol', { class: 'findings' },
            pipeline.findings.map((finding) => el('li', null, said(finding)))),
    lanes(pipeline, width),
    table('Where the ranks are in the pipeline', COLUMNS, rows(pipeline.ranks),
        (rank) => rank.rank),
    quiet('Places are those of the last heartbeats, up to some seconds old. A rank waits for the ' +
        'sender of the message that it is to receive, the receiver of one that it cannot ' +
        'send yet, or, at the end of its list, those that it exchanges gradients with.'),
  ];
}
