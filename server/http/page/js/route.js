// What the address says after '#': the list of jobs, or a job and the ranks
// that the reader has pinned.

import { hrefOf } from './jobs.js';

export const MAX_PINS = 8;
const MAX_RANK = 1 << 20;

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;  // Not an escape: a name that somebody typed.
  }
}

export function asRank(text) {
  const rank = /^\d{1,7}$/.test(text.trim()) ? Number(text) : -1;
  return rank >= 0 && rank < MAX_RANK ? rank : null;
}

export function parseRoute(hash) {
  const match = /^#\/jobs\/([^?]+)(?:\?ranks=([\d,]*))?$/.exec(hash);
  if (!match) return { job: null, pins: [] };
  const ranks = (match[2] || '').split(',').map(asRank)
      .filter((rank) => rank !== null);
  return { job: decoded(match[1]), pins: [...new Set(ranks)].slice(0, MAX_PINS) };
}

export function routeHref(job, pins) {
  return hrefOf(job) + (pins.length > 0 ? '?ranks=' + pins.join(',') : '');
}
