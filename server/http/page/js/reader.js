// Reads what the page shows. Keeps what one answer alone does not have: the
// events read so far, and the rows of ranks beside the first ones.

import { Refusal } from './api.js';
import { MAX_EVENTS, MEMBERS_PER_PAGE } from './job.js';
import { MAX_ROWS, missingRanks, stepsFor } from './steps.js';

const EVENTS_AT_ONCE = 1000;
// Requests for single ranks in one round.
const MAX_EXTRA = 8;
// Kept beyond what is shown, as the reader may choose among them.
const MAX_KEPT = 5 * MAX_EVENTS;

export class JobReader {
  constructor(api, name) {
    this.api = api;
    this.path = 'jobs/' + encodeURIComponent(name);
    this.slowestFirst = true;
    this.forgetEvents();
  }

  // They are numbered anew by each start of the coordinator.
  forgetEvents() {
    this.events = [];
    this.after = 0;
  }

  job(firstMember) {
    return this.api.get(`${this.path}?first_rank=${firstMember}&ranks=${MEMBERS_PER_PAGE}`);
  }

  async readEvents() {
    const answer = await this.api.get(
        `${this.path}/events?after=${this.after}&limit=${EVENTS_AT_ONCE}`);
    if (answer.last < this.after) {
      this.forgetEvents();
      return this.readEvents();
    }
    this.after = answer.last;
    this.events = [...this.events, ...answer.events].slice(-MAX_KEPT);
    return this.events;
  }

  async steps(pins, width) {
    const last = stepsFor(width);
    const answer = await this.firstRows(last);
    const extra = missingRanks(answer, pins, MAX_EXTRA);
    const others = await Promise.all(extra.map((rank) => this.rows(last, rank, 1)));
    return { ...answer, ranks: others.reduce(joined(answer), answer.ranks) };
  }

  async firstRows(last) {
    if (this.slowestFirst) {
      try {
        return await this.rows(last, 0, MAX_ROWS, '&order=slowest');
      } catch (error) {
        if (!(error instanceof Refusal) || error.status !== 400) throw error;
        this.slowestFirst = false;
      }
    }
    return this.rows(last, 0, MAX_ROWS);
  }

  rows(last, first, many, more = '') {
    return this.api.get(
        `${this.path}/steps?last=${last}&first_rank=${first}&ranks=${many}${more}`);
  }
}

// A step may have ended between two answers: by its number, not by its place.
function joined(answer) {
  return (rows, other) => {
    const place = new Map(other.steps.map((step, index) => [step.step, index]));
    const fitted = other.ranks.map((row) => {
      const fit = (values) => answer.steps.map(({ step }) =>
          (place.has(step) ? values[place.get(step)] : null));
      return {
        ...row,
        compute_seconds: fit(row.compute_seconds),
        wait_seconds: fit(row.wait_seconds),
        exchange_seconds: fit(row.exchange_seconds),
      };
    });
    return [...rows, ...fitted];
  };
}
