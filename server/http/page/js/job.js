// One job: what is wrong first, then what it does, then what it was.

import { bytes, count, number, plural, words } from './format.js';
import { picture } from './picture.js';
import { pipelineParts } from './pipeline.js';
import {
  ago, button, el, facts, none, quiet, said, section, state, straggler, table, when,
} from './parts.js';

export const MEMBERS_PER_PAGE = 64;
export const MAX_EVENTS = 200;

function head(job, plan) {
  const attached = job.members.filter((member) => member.state === 'attached').length;
  const whole = job.members.length === job.member_count;
  return section('now', 'Now',
      facts([
        ['State', state(job.state)],
        ['Generation', count(job.generation)],
        job.attempt > 0 && ['Attempt', count(job.attempt)],
        ['World size', `${count(job.world_size)}, at least ${count(job.min_world_size)}`],
        job.mesh && ['Mesh', said(job.placement ? `${job.mesh}; ${job.placement}` : job.mesh)],
        whole && job.state === 'running' && ['Attached', attached < job.world_size
          ? straggler(`${attached} of ${job.world_size}`) : `${attached} of ${job.world_size}`],
        ['Spares', count(job.spares.length)],
        ['Step', count(job.step)],
        ['Steps/s', number(job.steps_per_second)],
        ['Hook', plan ? said(plan.hook) : '–'],
        job.ring && ['Ring', said(`${job.ring.order}, since generation ` +
            `${job.ring.since_generation}; ${job.ring.reason}`)],
        ['Left processes', bytes(job.traffic.wire_bytes)],
        ['Saved by hooks', bytes(job.traffic.saved_bytes)],
      ]),
      job.last_event && el('p', null, 'Last event: ', said(job.last_event)));
}

const ROUND_COLUMNS = [
  { name: 'Round', number: true, of: (round) => count(round.round) },
  { name: 'Stream', of: (round) => said(round.stream) },
  { name: 'Step', number: true, of: (round) => count(round.step) },
  { name: 'Decision', of: (round) => (round.commit ? 'commit' : 'skip') },
  { name: 'Tickets within', number: true,
    of: (round) => number(round.tickets_seconds * 1000, 1) + ' ms' },
  { name: 'Last rank', number: true, of: (round) => count(round.last_rank) },
  { name: 'Reason', long: true, of: (round) => said(round.reason) },
];

function report(job, now) {
  const title = 'Who waits for whom';
  if (!job.report) {
    return section('report', title, none('No generation has begun yet.'));
  }
  const { findings, odd_ranks: odd, history: rounds } = job.report;
  return section('report', title,
      job.state === 'ended' &&
          el('p', null, 'As it was at the end, ', when(now, job.report.ended_at), ':'),
      findings.length > 0
        ? el('ol', { class: 'findings' }, findings.map((finding) => el('li', null, said(finding))))
        : none('No rank is waited for.'),
      odd.length > 0 && el('p', null, straggler('outlier'), ' ', plural(odd.length, 'rank'),
          ': ', odd.slice(0, 16).join(', '), odd.length > 16 ? ', …' : ''),
      rounds.length > 0 && el('details', { 'data-key': 'rounds' },
          el('summary', null, `The last ${plural(rounds.length, 'decision')}`),
          table('Decisions', ROUND_COLUMNS, rounds,
              (round) => round.stream + ' ' + round.round)));
}

function flags(member) {
  return [
    member.straggler && straggler(), member.straggler && member.odd && ' ',
    member.odd && straggler('outlier'), !member.straggler && !member.odd && 'none',
  ];
}

function memberColumns(now, placed) {
  const columns = [
    { name: 'Rank', number: true,
      of: (member) => (member.rank < 0 ? 'spare' : count(member.rank)) },
    { name: 'State', of: (member) => state(member.state) },
    { name: 'Marks', of: flags },
    { name: 'Host', text: true, of: (member) => said(member.host) },
    { name: 'Node/slot', text: true, of: (member) => said(`${member.node}/${member.slot}`) },
    { name: 'Step', number: true,
      of: (member) => (member.restored && member.step === 0 ? '–' : count(member.step)) },
    { name: 'Silent', number: true, of: (member) => ago(now, member.heard_at) },
    { name: 'Progress', number: true, of: (member) => ago(now, member.progressed_at) },
    { name: 'Does', long: true, of: (member) => said(member.activity || 'computes') },
    { name: 'Sent', number: true, of: (member) => bytes(member.wire_bytes) },
    { name: 'Address', text: true, of: (member) => said(member.address) },
  ];
  if (placed) {
    columns.splice(1, 0, { name: 'In the mesh', text: true,
      of: (member) => said(member.coordinates || '–') });
  }
  return columns;
}

function pager(job, first) {
  if (job.member_count <= MEMBERS_PER_PAGE) return null;
  const end = Math.min(first + MEMBERS_PER_PAGE, job.member_count);
  return el('p', { class: 'controls' },
      button('members', Math.max(0, first - MEMBERS_PER_PAGE), 'Ranks before',
          { disabled: first === 0 }),
      el('span', null, `${count(first)} to ${count(end - 1)} of ${count(job.member_count)} ranks`),
      button('members', first + MEMBERS_PER_PAGE, 'Ranks after',
          { disabled: end >= job.member_count }));
}

function members(job, now, first) {
  const rows = [...job.members, ...job.spares.slice(0, MEMBERS_PER_PAGE)];
  const placed = rows.some((member) => member.coordinates);
  return section('members', 'Ranks', pager(job, first),
      rows.length > 0
        ? table('Ranks', memberColumns(now, placed), rows, (member) =>
          `${member.rank}/${member.node}/${member.slot}/${member.incarnation}`)
        : none('Nobody has joined.'),
      job.spares.length > MEMBERS_PER_PAGE &&
          quiet(`${count(job.spares.length)} spares, ${MEMBERS_PER_PAGE} of them shown.`));
}

const HOOK_COLUMNS = [
  { name: 'Hook', long: true, of: (row) => said(row.hook) },
  { name: 'Gradients', number: true, of: (row) => bytes(row.gradient_bytes) },
  { name: 'To collectives', number: true, of: (row) => bytes(row.payload_bytes) },
  { name: 'Saved', number: true, of: (row) => bytes(row.saved_bytes) },
  { name: 'Ratio', number: true, of: (row) => number(row.compression_ratio, 2) },
  { name: 'Left processes', number: true, of: (row) => bytes(row.wire_bytes) },
];

function traffic(job) {
  const rows = job.traffic.hooks;
  return section('traffic', 'Bytes by hook',
      rows.length > 0 ? table('Bytes by hook', HOOK_COLUMNS, rows, (row) => row.hook)
        : none('No gradient has been exchanged yet.'),
      quiet('Of all ranks. To collectives: what the hook made of the gradients, and ' +
          'what else was exchanged, as the parameters at the start. Saved: the ' +
          'one without the other. Left processes: what that took, for N ranks in a ring 2(N−1)/N times ' +
          'as much.'));
}

function terms(plan) {
  const pairs = Object.entries(plan.terms || {}).map(([name, value]) => `${name}=${value}`);
  return said(pairs.length > 0 ? pairs.join(' ') : 'defaults');
}

const PLAN_COLUMNS = (now) => [
  { name: 'Version', number: true, of: (plan) => count(plan.version) },
  { name: 'When', of: (plan) => plan.role },
  { name: 'Hook', long: true, of: (plan) => said(plan.hook) },
  { name: 'Accumulation', number: true, of: (plan) => count(plan.accumulation_steps) },
  { name: 'Compression from step', number: true, of: (plan) =>
    (plan.compression_start_step < 0 ? 'hook’s own' : count(plan.compression_start_step)) },
  { name: 'Terms', long: true, of: terms },
  { name: 'Seen', number: true, of: (plan) => (typeof plan.seen_at === 'number'
    ? [when(now, plan.seen_at), `, step ${count(plan.seen_step)}`] : '–') },
];

function planRows(job) {
  const version = job.plan ? job.plan.version : -1;
  const seen = new Map(job.plan_history.map((plan) => [plan.version, plan]));
  const rows = [];
  if (job.plan_next) {
    rows.push({ ...job.plan_next, role: `from step ${count(job.plan_next.at_step)}` });
  }
  if (job.plan) rows.push({ ...seen.get(version), ...job.plan, role: 'in force' });
  for (const plan of job.plan_history) {
    if (plan.version !== version) rows.push({ ...plan, role: 'before' });
  }
  return rows;
}

function plan(job, now) {
  const rows = planRows(job);
  return section('plan', 'Plan and its history',
      rows.length > 0
        ? table('Versions of the plan', PLAN_COLUMNS(now), rows, (row) => row.version + row.role)
        : none('There is no plan yet: it comes with the first rank.'));
}

const CHECKPOINT_COLUMNS = (now) => [
  { name: 'Step', number: true, of: (saved) => count(saved.step) },
  { name: 'State', of: (saved) => [state(saved.state), saved.imported && ' imported'] },
  { name: 'Size', number: true, of: (saved) => bytes(saved.bytes) },
  { name: 'Shards', number: true, of: (saved) => count(saved.shards) },
  { name: 'Age', number: true, of: (saved) => ago(now, saved.created_at) },
  { name: 'Id', text: true, of: (saved) => said(saved.id) },
];

function checkpoints(job, now) {
  const rows = job.checkpoints;
  return section('checkpoints', 'Checkpoints',
      rows.length > 0
        ? table('Checkpoints', CHECKPOINT_COLUMNS(now), rows, (saved) => saved.id)
        : none('None is stored.'),
      job.checkpoint_count > rows.length &&
          quiet(`The newest ${rows.length} of ${count(job.checkpoint_count)}.`));
}

const OTHER_SUBJECTS = /^(plan|checkpoint|open_checkpoint|import|shard|schedule_warning)/;

function isWarning(event) {
  return event.level === 'warning' || event.level === 'error';
}

const KINDS = {
  membership: ['Membership', (event) => !OTHER_SUBJECTS.test(event.event)],
  warnings: ['Warnings and errors', isWarning],
  all: ['All', () => true],
};

// What every event has, and what has a place of its own. In the last line: names
// of an earlier version, which repeat others.
const COMMON = new Set([
  'sequence', 'time', 'level', 'event', 'job', 'generation', 'rank', 'step',
  'reason',
  'at', 'fields', 'plan', 'accumulation',
]);

function detail(event) {
  const pairs = Object.entries(event).filter(([name]) => !COMMON.has(name))
      .map(([name, value]) => `${words(name)} ${value}`);
  return said([event.reason, pairs.join(', ')].filter(Boolean).join(' – '));
}

const EVENT_COLUMNS = (now) => [
  { name: 'Time', of: (event) => when(now, Date.parse(event.time) / 1000) },
  { name: 'Event', text: true, of: (event) => [
    isWarning(event) && straggler(event.level), ' ', said(words(event.event))] },
  { name: 'Generation', number: true, of: (event) => count(event.generation) },
  { name: 'Rank', number: true, of: (event) => count(event.rank) },
  { name: 'Reason and details', long: true, of: detail },
];

function kindChoice(kind) {
  return el('p', { class: 'controls' }, el('label', { for: 'kind' }, 'Show'),
      el('select', { id: 'kind', 'data-action': 'kind' },
          Object.entries(KINDS).map(([name, [label]]) =>
              el('option', { value: name, selected: name === kind }, label))));
}

function history(events, now, kind) {
  const rows = events.filter(KINDS[kind][1]).slice(-MAX_EVENTS).reverse();
  return section('history', 'Membership and other events', kindChoice(kind),
      rows.length > 0
        ? table('Events', EVENT_COLUMNS(now), rows, (event) => event.sequence)
        : none('None since this coordinator was started.'),
      quiet(`The newest first, at most ${MAX_EVENTS}, since this coordinator was started.`));
}

// view: {job, steps, events, pins, width, firstMember, kind}
export function jobPage(name, view) {
  const { job } = view;
  const title = el('h1', { id: 'title', tabindex: '-1' }, 'Job ', said(name));
  if (view.gone) return [title, none(view.gone)];
  if (!job) return [title, none('Asking the coordinator …')];
  return [
    title,
    head(job, job.plan),
    report(job, job.now),
    section('steps', 'The last steps by rank', ...picture(view.steps, view.pins, view.width)),
    job.pipeline &&
        section('pipeline', 'Pipeline', ...pipelineParts(job.pipeline, view.width)),
    members(job, job.now, view.firstMember),
    traffic(job),
    checkpoints(job, job.now),
    plan(job, job.now),
    history(view.events, job.now, view.kind),
  ];
}

