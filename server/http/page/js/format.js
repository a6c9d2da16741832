// Numbers, sizes and times as people read them. Unknown is an en dash.

export const UNKNOWN = '–';

const known = (value) => typeof value === 'number' && Number.isFinite(value);

export function count(value) {
  return known(value) ? value.toLocaleString('en-US') : UNKNOWN;
}

export function number(value, digits = 1) {
  return known(value) ? value.toFixed(digits) : UNKNOWN;
}

// Powers of 1000, as disks and networks count.
export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  const units = ['B', 'kB', 'MB', 'GB', 'TB', 'PB', 'EB'];
  let size = Math.abs(value);
  let unit = 0;
  while (size >= 999.5 && unit < units.length - 1) {
    size /= 1000;
    ++unit;
  }
  const digits = unit === 0 || size >= 100 ? 0 : 1;
  return `${value < 0 ? '−' : ''}${size.toFixed(digits)} ${units[unit]}`;
}

// A short time, with the unit that fits.
export function seconds(value) {
  if (!known(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size < 0.0005) return `${(value * 1e6).toFixed(0)} µs`;
  if (size < 0.1) return `${(value * 1e3).toFixed(1)} ms`;
  if (size < 1) return `${(value * 1e3).toFixed(0)} ms`;
  return span(value);
}

// A longer one: the two units that matter.
export function span(value) {
  if (!known(value)) return UNKNOWN;
  const whole = Math.max(0, value);
  if (whole < 10) return `${whole.toFixed(1)} s`;
  if (whole < 60) return `${Math.floor(whole)} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${Math.floor(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor(whole / 60) % 60} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor(whole / 3600) % 24} h`;
}

export function age(now, at) {
  return known(at) && known(now) ? `${span(now - at)} ago` : UNKNOWN;
}

const two = (value) => String(value).padStart(2, '0');

// Unix seconds as 2026-11-23 07:12:45.
export function moment(at) {
  if (!known(at)) return UNKNOWN;
  const date = new Date(at * 1000);
  if (Number.isNaN(date.getTime())) return UNKNOWN;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ` +
      clock(at);
}

export function clock(at) {
  const date = new Date(at * 1000);
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

// member_lost: "member lost".
export function words(name) {
  return String(name).replaceAll('_', ' ');
}

export function plural(many, one, more = one + 's') {
  return `${count(many)} ${many === 1 ? one : more}`;
}
