"""Our sockets over links of a limited speed, between hosts that are network
namespaces of this machine (hosts.py); skipped where these cannot be made.

`tcp_gigabit_*`: two hosts, 1 Gbit/s each way. Raw sockets exchange as many
bytes as an all-reduce does over the same link, in turns with it. PowerSGD's
computing is what the same exchange takes the same two processes' twins on one
host through shared memory, where bytes cost next to nothing.

`tcp_slow_host_*`: four hosts with a bridge between them, and a link of 1 Gbit/s
to each but the last, which has half of that. In an all-reduce of W ranks each
sends, and receives, 2 (W - 1) / W of the bytes, and that over the slowest link
is the bound. The rate is that of tc, which counts the heads of frames, too;
frames have 9000 bytes, of which these are 0.7%.
The ranks are in their second generation, and form the ring that was chosen by
what the first one has measured of the links."""

import hosts as networks
import models
import ranks
from measure import Benchmark, Result, Row, milliseconds

BYTES = 100_000_000
MBIT = 1000  # a second
HOOK = "powersgd(rank=4,start_step=2)"
ROUNDS = 7
WARM_UP = 1
HOOK_ROUNDS = 21
HOOK_WARM_UP = 6  # buckets are divided anew, and the hook starts


def _rate(mbit):
    return "%dmbit" % mbit


def _job(hosts, command, cores):
    return ranks.Ranks(
        command,
        size=len(hosts),
        cores=cores,
        prefix=lambda rank: hosts[rank].within(),
        arguments=lambda rank: ["--address", hosts[rank].address],
    )


def _in_turn(context, subjects, rounds, warm_up):
    """Seconds by name; each subject returns those of one call."""
    rounds = warm_up + (context.samples or rounds)
    times = {name: [] for name in subjects}
    for number in range(rounds):
        for name, subject in subjects.items():
            context.progress("round %d of %d: %s" % (number + 1, rounds, name))
            seconds = subject()
            if number >= warm_up:
                times[name].append(seconds)
    return times


RAW = Row(
    "tcp_gigabit_100m_2",
    "raw sockets",
    "ms",
    "an all-reduce of 100 MB of float32, 2 hosts with a link of 1 Gbit/s, "
    "against two sockets that exchange as many bytes",
    0.95,
)
POWERSGD = Row(
    "tcp_gigabit_powersgd_2",
    "through shm",
    "ms",
    "an exchange of ResNet-50's gradients by powersgd(rank=4) over that link, "
    "against the same on one host through shared memory",
    1 / 1.1,
)


def _raw(context, hosts):
    command = [context.comm_worker, "--backend", "tcp"]
    with _job(hosts, command, context.cores) as job:

        def take(command):
            return lambda: job.slowest("%s %d 1" % (command, BYTES), "median")

        times = _in_turn(
            context,
            {"ours": take("allreduce"), "raw": take("exchange")},
            ROUNDS,
            WARM_UP,
        )
    return Result(RAW, milliseconds(times["ours"]), milliseconds(times["raw"]))


def _powersgd(context, hosts):
    command = ranks.ours(
        context.worker,
        *("--view", "--hook", HOOK),
        *("--shapes", ranks.shapes_text(models.resnet50())),
    )
    between = command + ["--backend", "tcp"]
    alone = command + ["--backend", "shm"]
    cores = context.cores
    with _job(hosts, between, cores) as ours, ranks.Ranks(
        alone, cores=cores
    ) as peer:
        times = _in_turn(
            context,
            {
                "ours": lambda: ours.slowest("exchange"),
                "peer": lambda: peer.slowest("exchange"),
            },
            HOOK_ROUNDS,
            HOOK_WARM_UP,
        )
    return Result(
        POWERSGD, milliseconds(times["ours"]), milliseconds(times["peer"])
    )


def measure_gigabit(context):
    with networks.cable(_rate(MBIT)) as hosts:
        return [_raw(context, hosts), _powersgd(context, hosts)]


HOSTS = 4
SLOW_HOST = Row(
    "tcp_slow_host_4",
    "its slowest link",
    "ms",
    "an all-reduce of 100 MB of float32, 4 hosts, one with a link of half the "
    "speed of the others', in a ring chosen by measured links",
    1 / 1.06,
)


def measure_slow_host(context):
    slow = MBIT // 2
    rates = [_rate(MBIT)] * (HOSTS - 1) + [_rate(slow)]
    bound = 2 * (HOSTS - 1) / HOSTS * BYTES * 8 / (slow * 1e6)
    with networks.switch(rates) as hosts, _job(
        hosts, [context.comm_worker, "--backend", "tcp"], context.cores
    ) as job:
        ring = job.ask("regroup")[0]["ring"]
        if "slowest" not in ring or "not measured" in ring:
            raise ranks.RankError("a ring without all links: " + ring)
        times = _in_turn(
            context,
            {
                "ours": lambda: job.slowest(
                    "allreduce %d 1" % BYTES, "median"
                )
            },
            ROUNDS,
            WARM_UP,
        )
    return [Result(SLOW_HOST, milliseconds(times["ours"]), [1e3 * bound])]


BENCHMARKS = [
    Benchmark([RAW, POWERSGD], measure_gigabit),
    Benchmark([SLOW_HOST], measure_slow_host),
]
