// Tells those who listen instead of look: what has changed, not each number,
// and not more often than one can hear.

import { plural } from './format.js';

const LEAST_MS = 5000;

function difference(before, now) {
  const told = [];
  if (before.state !== now.state) told.push(`Job ${now.name} is ${now.state}.`);
  if (before.generation !== now.generation) {
    told.push(`Generation ${now.generation} has ${plural(now.world_size, 'rank')}.`);
  }
  if (before.slow !== now.slow) {
    told.push(now.slow ? `Stragglers: ${now.slow}.` : 'No stragglers any more.');
  }
  return told;
}

export class News {
  constructor(line) {
    this.line = line;
    this.clear();
  }

  clear() {
    this.known = new Map();
    this.saidAt = -LEAST_MS;
  }

  say(text) {
    this.line.textContent = text.slice(0, 300);
    this.saidAt = performance.now();
  }

  // Compares with what was told last.
  note(facts) {
    if (performance.now() - this.saidAt < LEAST_MS) return;
    const told = facts.flatMap((now) =>
        (this.known.has(now.name) ? difference(this.known.get(now.name), now) : []));
    this.known = new Map(facts.map((now) => [now.name, now]));
    if (told.length > 0) this.say(told.slice(0, 3).join(' '));
  }

  job(job) {
    const slow = job.members.filter((member) => member.straggler).map((member) => member.rank);
    this.note([{
      name: job.job, state: job.state, generation: job.generation,
      world_size: job.world_size, slow: slow.slice(0, 8).join(', '),
    }]);
  }

  jobs(jobs) {
    this.note(jobs.map((job) => ({
      name: job.job, state: job.state, generation: job.generation,
      world_size: job.world_size, slow: job.stragglers.slice(0, 8).join(', '),
    })));
  }
}
