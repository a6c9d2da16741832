// The status page: asks the coordinator once a second while the page is
// visible, and shows the answers.

import { Api, Refusal } from './js/api.js';
import { el, said, update } from './js/dom.js';
import { clock, plural } from './js/format.js';
import { jobPage } from './js/job.js';
import { jobsPage } from './js/jobs.js';
import { News } from './js/news.js';
import { time } from './js/parts.js';
import { JobReader } from './js/reader.js';
import { asRank, MAX_PINS, parseRoute, routeHref } from './js/route.js';

const INTERVAL_MS = 1000;
const LABEL_PIXELS = 88;
const RETRY = 'Trying again every second; what is shown is from before.';

const byId = (id) => document.getElementById(id);
const content = byId('content');
const api = new Api();
const news = new News(byId('news'));

let route = parseRoute(location.hash);
let reader = null;
let jobs = null;  // the answer of /jobs
let view = freshView();
let filter = '';
let version = null;
let lostAt = null;  // Unix seconds

function freshView() {
  return { job: null, steps: null, events: [], gone: '', firstMember: 0, kind: 'membership' };
}

function plotWidth() {
  const card = content.querySelector('.card.steps');
  const room = card ? card.clientWidth - 26 : content.clientWidth - 28;
  return Math.max(120, Math.floor(room - LABEL_PIXELS));
}

function draw(width) {
  update(content, route.job === null ? jobsPage(jobs, filter)
    : jobPage(route.job, { ...view, pins: route.pins, width }));
}

function render() {
  const width = plotWidth();
  draw(width);
  // Where the picture is new, or brought the scroll bar.
  if (route.job !== null && plotWidth() !== width) draw(plotWidth());
  content.classList.toggle('stale', lostAt !== null);
}

function renderTop() {
  update(byId('path'), route.job === null ? [] : [
    el('a', { href: '#/' }, 'Jobs'), ' / ',
    el('span', { 'aria-current': 'page' }, said(route.job)),
  ]);
  if (!version) return;
  update(byId('coordinator'), [
    `${version.version}, term ${version.term}, since `, time(version.started_at),
    version.leader ? '' : ', not leading',
  ]);
}

// Says so once, not each second: it is read aloud.
function say(text, bad) {
  const line = byId('reach');
  if (line.textContent !== text) line.textContent = text;
  line.className = bad ? 'poor' : '';
}

function unreachable(error) {
  lostAt = lostAt ?? Date.now() / 1000;
  const refused = error instanceof Refusal;
  say(refused
    ? `The coordinator is there, but does not answer since ${clock(lostAt)}: ` +
        `${error.message}. ${RETRY}`
    : `The coordinator is not reachable since ${clock(lostAt)}. ${RETRY}`, true);
}

function reached() {
  if (lostAt !== null) {
    say(`Reached again at ${clock(Date.now() / 1000)}, after not being ` +
        `reachable since ${clock(lostAt)}.`, false);
  }
  lostAt = null;
}

// One that was started anew knows nothing of the numbers of events.
async function readVersion() {
  const answer = await api.get('version');
  if (version && version.started_at !== answer.started_at) {
    api.forget();
    if (reader) reader.forgetEvents();
  }
  version = answer;
}

async function readJob(mine) {
  const from = reader;
  try {
    const [job, steps, events] = await Promise.all([
      from.job(view.firstMember), from.steps(mine.pins, plotWidth()), from.readEvents(),
    ]);
    if (from !== reader) return;
    Object.assign(view, { job, steps, events, gone: '' });
    news.job(job);
  } catch (error) {
    if (!(error instanceof Refusal) || error.status !== 404) throw error;
    if (from === reader) view.gone = `${error.message}. It may have been forgotten after its end.`;
  }
}

async function readAll() {
  await readVersion();
  if (route.job === null) {
    jobs = await api.get('jobs');
    news.jobs(jobs.jobs);
  } else {
    await readJob(route);
  }
}

let wake = null;

function pause(ms) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    wake = () => {
      clearTimeout(timer);
      resolve();
    };
  });
}

function visible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    document.addEventListener('visibilitychange', resolve, { once: true });
  });
}

async function poll() {
  for (;;) {
    await visible();
    const begun = performance.now();
    try {
      await readAll();
      reached();
    } catch (error) {
      unreachable(error);
    }
    renderTop();
    render();
    // A big answer is not asked for as often.
    await pause(Math.max(INTERVAL_MS, 4 * (performance.now() - begun)));
  }
}

function followRoute() {
  const before = route;
  route = parseRoute(location.hash);
  if (route.job !== before.job || (route.job !== null && reader === null)) {
    reader = route.job === null ? null : new JobReader(api, route.job);
    view = freshView();
    news.clear();
    document.title = (route.job === null ? 'Jobs' : route.job) + ' – Coxswain';
  }
  renderTop();
  render();
  if (route.job !== before.job) {
    byId('title').focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }
  if (wake) wake();
}

function pin(ranks) {
  location.hash = routeHref(route.job, ranks);
}

function togglePin(rank) {
  const pins = route.pins.includes(rank) ? route.pins.filter((other) => other !== rank)
    : [...route.pins, rank].slice(-MAX_PINS);
  const done = pins.includes(rank) ? 'pinned' : 'no longer pinned';
  news.announce(`Rank ${rank} is ${done}; ${plural(pins.length, 'pin')}.`);
  pin(pins);
}

const CLICKS = {
  skip: (value, event) => {
    event.preventDefault();
    content.focus();
  },
  pin: (value) => togglePin(Number(value)),
  unpin: () => pin([]),
  members: (value) => {
    view.firstMember = Number(value);
    if (wake) wake();
  },
};

document.addEventListener('click', (event) => {
  const target = event.target.closest('[data-action]');
  const act = target && CLICKS[target.dataset.action];
  if (act) act(target.dataset.value, event);
});

document.addEventListener('submit', (event) => {
  event.preventDefault();
  const input = byId('pin-rank');
  const rank = input ? asRank(input.value) : null;
  if (rank === null || (view.job && rank >= view.job.world_size)) {
    news.announce(`There is no such rank: ${input.value}`);
    return;
  }
  input.value = '';
  if (!route.pins.includes(rank)) togglePin(rank);
});

document.addEventListener('input', (event) => {
  if (event.target.id === 'filter') filter = event.target.value;
  if (event.target.id === 'kind') view.kind = event.target.value;
  render();
});

window.addEventListener('hashchange', followRoute);
window.addEventListener('resize', render);
followRoute();
poll();
