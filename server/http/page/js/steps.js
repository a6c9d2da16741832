// Which ranks and steps the picture shows, and where on the time axis.

// The bound of what is drawn, whatever the size of the job.
export const MAX_ROWS = 24;
const STEPS = { least: 12, most: 48, pixels: 24 };
// A step that took longer than so many medians is drawn shorter.
const LONGEST = 4;
const PARTS = ['compute_seconds', 'wait_seconds', 'exchange_seconds'];

export function stepsFor(width) {
  return Math.max(STEPS.least, Math.min(STEPS.most, Math.floor(width / STEPS.pixels)));
}

// Ranks beside those of the first answer, by what it says of all of them: at
// most `most`, pinned ones first.
export function missingRanks(answer, pins, most) {
  const times = new Map();
  for (const step of answer.steps) {
    for (const rank of [step.slowest_rank, ...step.stragglers]) {
      times.set(rank, (times.get(rank) || 0) + 1);
    }
  }
  const slow = [...times].sort((a, b) => b[1] - a[1] || a[0] - b[0]).map(([rank]) => rank);
  const have = new Set(answer.ranks.map((row) => row.rank));
  return [...new Set([...pins, ...slow])]
      .filter((rank) => rank >= 0 && rank < answer.world_size && !have.has(rank))
      .slice(0, most);
}

function often(row, steps) {
  return row.straggler_steps * 4 >= steps.length && row.straggler_steps > 0
      ? row.straggler_steps : 0;
}

export function chosenRows(answer, pins) {
  const pinned = (row) => (pins.includes(row.rank) ? 1 : 0);
  const order = (a, b) => pinned(b) - pinned(a) ||
      often(b, answer.steps) - often(a, answer.steps);
  const slowest = [...answer.ranks].sort((a, b) => order(a, b) ||
      b.straggler_steps - a.straggler_steps || a.rank - b.rank);
  return slowest.slice(0, MAX_ROWS)
      .sort((a, b) => order(a, b) || a.rank - b.rank);
}

export function median(values) {
  const sorted = values.filter((value) => typeof value === 'number').sort((a, b) => a - b);
  return sorted.length > 0 ? sorted[(sorted.length - 1) >> 1] : null;
}

export function mean(values) {
  const known = values.filter((value) => typeof value === 'number');
  return known.length > 0 ? known.reduce((a, b) => a + b, 0) / known.length : null;
}

// [{x, width, scale, cut}] in pixels, for each step.
export function columns(steps, width) {
  const typical = median(steps.map((step) => step.duration_max_seconds)) || 0;
  const shown = steps.map((step) => {
    const whole = step.duration_max_seconds || 0;
    const cut = typical > 0 && whole > LONGEST * typical;
    return { whole, cut, drawn: cut ? LONGEST * typical : whole };
  });
  const all = shown.reduce((sum, step) => sum + step.drawn, 0) || 1;
  let x = 0;
  return shown.map(({ whole, cut, drawn }) => {
    const place = { x, width: drawn / all * width, cut, scale: 0 };
    place.scale = whole > 0 ? place.width / whole : 0;
    x += place.width;
    return place;
  });
}

// The row's parts as [[{x, width}]] in the order of PARTS; a hair is left
// between steps, so that they can be told apart.
export function bars(row, places) {
  const parts = PARTS.map(() => []);
  places.forEach((place, step) => {
    let x = place.x;
    const end = place.x + Math.max(place.width - 2, place.width * 0.8);
    PARTS.forEach((name, part) => {
      const value = row[name][step];
      if (typeof value !== 'number' || !(value > 0)) return;
      const right = Math.min(end, x + value * place.scale);
      if (right > x) parts[part].push({ x, width: right - x });
      x = right;
    });
  });
  return parts;
}

export function totals(row) {
  return PARTS.map((name) => mean(row[name]));
}
