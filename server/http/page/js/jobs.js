// The list of jobs: those that need attention first.

import { bytes, count, number, plural } from './format.js';
import { el, none, quiet, said, section, state, straggler, table } from './parts.js';

export const MAX_ROWS = 100;

// Less is more urgent.
function urgency(job) {
  if (job.state === 'running' && job.attached < job.world_size) return 0;
  if (job.stragglers.length > 0) return 1;
  return { forming: 2, running: 3 }[job.state] ?? 4;
}

export function chosenJobs(jobs, filter) {
  const wanted = filter.trim().toLowerCase();
  return jobs.filter((job) => !wanted || job.job.toLowerCase().includes(wanted))
      .map((job) => [urgency(job), job])
      .sort((a, b) => a[0] - b[0] || (a[1].job < b[1].job ? -1 : 1))
      .map(([, job]) => job);
}

export function hrefOf(name) {
  return '#/jobs/' + encodeURIComponent(name);
}

function ranks(job) {
  const of = `${count(job.attached)} of ${count(job.world_size)}`;
  return job.state === 'running' && job.attached < job.world_size
      ? straggler(`${of} attached`) : of;
}

function slow(job) {
  const many = job.stragglers.length;
  if (many === 0) return 'none';
  const named = job.stragglers.slice(0, 4).join(', ');
  return straggler(`${many === 1 ? 'rank' : 'ranks'} ${named}${many > 4 ? ', …' : ''}`);
}

const COLUMNS = [
  { name: 'Job', text: true,
    of: (job) => el('a', { href: hrefOf(job.job) }, said(job.job)) },
  { name: 'State', of: (job) => state(job.state) },
  { name: 'Attached ranks', number: true, of: ranks },
  { name: 'Stragglers', of: slow },
  { name: 'Step', number: true, of: (job) => count(job.step) },
  { name: 'Steps/s', number: true, of: (job) => number(job.steps_per_second) },
  { name: 'Left processes', number: true, of: (job) => bytes(job.wire_bytes) },
  { name: 'Hook', long: true, of: (job) => said(job.hook) },
  { name: 'Last event', long: true, of: (job) => said(job.last_event) },
];

function filterBox() {
  return el('p', { class: 'controls' },
      el('label', { for: 'filter' }, 'Name contains'),
      el('input', {
        id: 'filter', type: 'search', 'data-action': 'filter', autocomplete: 'off',
        spellcheck: 'false', maxlength: '200',
      }));
}

const LOST = [
  { name: 'Job', text: true, of: (record) => said(record.job || 'not known') },
  { name: 'Table', text: true, of: (record) => said(record.table) },
  { name: 'Key', text: true, of: (record) => said(record.key) },
  { name: 'Size', number: true, of: (record) => bytes(record.bytes) },
  { name: 'Reason', long: true, of: (record) => said(record.reason) },
];

// What of the state could not be read; nothing where all of it could.
function quarantine(answer) {
  const many = answer.quarantined_count || 0;
  if (many === 0) return [];
  const shown = answer.quarantined;
  return [section('quarantine', 'Records in quarantine',
      el('p', null, straggler(`${plural(many, 'record')} of the state could not be read`),
          ' when this coordinator or an earlier one started. Their jobs lost a generation ' +
          'or a plan; other jobs went on.' +
          (many > shown.length ? ` The newest ${count(shown.length)} are shown.` : '')),
      table('Records in quarantine', LOST, shown,
          (record) => `${record.table} ${record.key}`))];
}

// answer: of /jobs, or null while it has not come.
export function jobsPage(answer, filter) {
  const title = el('h1', { id: 'title', tabindex: '-1' }, 'Jobs');
  if (!answer) return [title, none('Asking the coordinator …')];
  if (answer.jobs.length === 0) {
    return [title, ...quarantine(answer), none('There is no job yet. One begins with: coxswain run ' +
        '--coordinator ADDRESS --job NAME -- PROGRAM')];
  }
  const found = chosenJobs(answer.jobs, filter);
  const shown = found.slice(0, MAX_ROWS);
  const rule = `${plural(shown.length, 'job')} of ${count(answer.jobs.length)}. ` +
      'First those with ranks that are not attached, then those with ' +
      'stragglers, then by state and name' +
      (found.length > shown.length
          ? `; at most ${MAX_ROWS} are shown: type a part of a name to find the others.` : '.');
  return [title, ...quarantine(answer), section('jobs', 'All jobs of this coordinator', filterBox(),
      quiet(rule), table('Jobs', COLUMNS, shown, (job) => job.job))];
}
