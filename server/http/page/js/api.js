// Reads the coordinator's JSON, with a deadline and without asking twice for
// what has not changed.

const TIMEOUT_MS = 8000;
const MAX_REMEMBERED = 64;

// What the coordinator answered instead: it is there, but does not do it.
export class Refusal extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function refusalOf(response) {
  let error = {};
  try {
    error = (await response.json()).error || {};
  } catch {
    // Not JSON: the status has to do.
  }
  return new Refusal(response.status, error.code || '',
      error.message || `it answered ${response.status}`);
}

export class Api {
  constructor() {
    this.remembered = new Map();  // path: {tag, answer}
  }

  // The answer to GET /api/v1/`path`; throws a Refusal, or another error where
  // no coordinator answers.
  async get(path) {
    const before = this.remembered.get(path);
    const headers = before ? { 'If-None-Match': before.tag } : {};
    const response = await fetch('/api/v1/' + path, {
      headers, cache: 'no-store', signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    if (response.status === 304 && before) return this.aged(before);
    if (!response.ok) throw await refusalOf(response);
    const answer = await response.json();
    this.remember(path, response.headers.get('ETag'), answer);
    return answer;
  }

  // Nothing but the time has changed.
  aged(before) {
    const passed = (performance.now() - before.read) / 1000;
    return { ...before.answer, now: before.answer.now + passed };
  }

  remember(path, tag, answer) {
    this.remembered.delete(path);
    if (!tag) return;
    this.remembered.set(path, { tag, answer, read: performance.now() });
    if (this.remembered.size > MAX_REMEMBERED) {
      this.remembered.delete(this.remembered.keys().next().value);
    }
  }

  forget() {
    this.remembered.clear();
  }
}
