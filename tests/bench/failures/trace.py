"""A job with failures now and then, against the same without them."""

import concurrent.futures
import random
import signal
import threading
import time

from failures.together import stoppable

# A clock that goes 100 times as fast: a step of 10 simulated seconds takes
# 0.1 s.
CLOCK = 100
STEP_MS = 100
BETWEEN_S = (2700, 4500)  # simulated
# A supervisor starts a worker again so long after its end.
BACK_S = 1


def schedule(rng, seconds):
    """Returns when the failures of so many seconds are, in seconds from the
    beginning."""
    times, at = [], 0.0
    while True:
        at += rng.uniform(*BETWEEN_S) / CLOCK
        if at >= seconds:
            return times
        times.append(at)


def run_both(make_job, steps, seed):
    """Runs a job with failures and one without, side by side: what they have in
    common, such as a slow disk, both have. Returns what is written of them. An
    error or a signal ends both at once."""
    # As long as the same without failures takes, at the least.
    times = schedule(random.Random(seed), steps * STEP_MS / 1e3)
    stopping = threading.Event()

    def run_one(when):
        job = stoppable(make_job(), stopping)
        try:
            return run(job, steps, when, random.Random(seed)), job.unexpected
        finally:
            job.close()

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        try:
            without = pool.submit(run_one, [])
            struck = pool.submit(run_one, times)
            concurrent.futures.wait(
                [without, struck],
                return_when=concurrent.futures.FIRST_EXCEPTION,
            )
            for one in (without, struck):
                if one.done():
                    one.result()
            (without_s, _), notes = without.result()
            (with_s, killed), more = struck.result()
        except BaseException:
            # The threads are waited for, which close their jobs.
            stopping.set()
            raise
    return {
        "without_s": without_s, "with_s": with_s, "failures": killed,
        "notes": notes + more,
    }


def run(job, steps, times, rng, start_limit_s=120):
    """Runs a job for so many steps, and kills a worker at each of the times;
    returns the seconds that it took, or None if it took three times as long as
    steps alone, and how many workers were killed."""
    job.start()
    if job.until_all_train(start_limit_s) is None:
        return None, 0
    began = time.monotonic()
    goal = max(log.commits[-1].step for log in job.logs()) + steps
    limit = began + 3 * steps * STEP_MS / 1e3
    left, absent, killed = list(times), {}, 0
    while time.monotonic() < limit:
        job.poll()
        now = time.monotonic()
        for i in [i for i, due in absent.items() if now >= due]:
            del absent[i]
            job.bring_back(i)
        if left and now - began >= left[0]:
            left.pop(0)
            running = [i for i in range(job.ranks) if i not in absent]
            victim = rng.choice(running)
            job.strike(victim, signal.SIGKILL)
            absent[victim] = now + BACK_S
            killed += 1
        reached = [
            one.t for log in job.logs() for one in log.commits[-50:]
            if one.step >= goal
        ]
        if reached:
            return min(reached) / 1e9 - began, killed
    return None, killed
