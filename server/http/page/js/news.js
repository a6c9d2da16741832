// Announces to screen readers what has changed, not each number,
// and not more often than it can be read out.

import { plural } from './format.js';

const LEAST_MS = 5000;

function difference(before, now) {
  const news = [];
  if (before.state !== now.state) news.push(`Job ${now.name} is ${now.state}.`);
  if (before.generation !== now.generation) {
    news.push(`Generation ${now.generation} has ${plural(now.world_size, 'rank')}.`);
  }
  if (before.slow !== now.slow) {
    news.push(now.slow ? `Stragglers: ${now.slow}.` : 'No stragglers any more.');
  }
  return news;
}

export class News {
  constructor(line) {
    this.line = line;
    this.clear();
  }

  clear() {
    this.known = new Map();
    this.announcedAt = -LEAST_MS;
  }

  announce(text) {
    this.line.textContent = text.slice(0, 300);
    this.announcedAt = performance.now();
  }

  // Compares with what was announced last.
  note(facts) {
    if (performance.now() - this.announcedAt < LEAST_MS) return;
    const news = facts.flatMap((now) =>
        (this.known.has(now.name) ? difference(this.known.get(now.name), now) : []));
    this.known = new Map(facts.map((now) => [now.name, now]));
    if (news.length > 0) this.announce(news.slice(0, 3).join(' '));
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
