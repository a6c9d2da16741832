"""What the coordinator's schedule costs: a rank's step with tickets and
decisions against one without, rounds of grants against bare sockets, and the
bytes that accumulation saves."""

import statistics

import ranks
from measure import Benchmark, Result, Row

# A step has this much to compute, so that the verdict has time to arrive.
COMPUTE = 3e-3
STEPS = 60  # in a row
ROUNDS = 15
WARM_UP = 2
# The goals: microseconds of a rank's step, and of a round of two.
LIMIT = 20
ROUND_OF_TWO = 300
TIMES_EPOLL = 4

_OF = ", 2 ranks with a core each, shared memory, 16 gradients of 16 KiB"
_HERE = "a step that computes for 3 ms"
_ELSEWHERE = "a step that waits 3 ms, as for a device that computes"
THREAD = Row(
    "schedule_audit_thread",
    "20 us",
    "us",
    "processor time of the training thread in its ticket and its decision, "
    + _HERE
    + _OF,
    goal=1,
)
STEP = Row(
    "schedule_audit_step",
    "20 us",
    "us",
    _HERE + ", less the same without enforcement" + _OF,
    goal=1,
)
DEVICE = Row(
    "schedule_audit_step_elsewhere",
    "20 us",
    "us",
    _ELSEWHERE + ", less the same without enforcement" + _OF,
    goal=1,
)
SPARE = Row(
    "schedule_audit_step_spare",
    "20 us",
    "us",
    _HERE + ", less the same without enforcement, 1 rank that leaves the "
    "coordinator and gRPC a core",
    goal=1,
)
PROCESS = Row(
    "schedule_audit_process",
    "enforcement=off",
    "us",
    "processor time of all threads of a rank, " + _HERE + _OF,
)
BARE = Row(
    "schedule_audit_bare",
    "enforcement=off",
    "us",
    "a step that computes nothing and waits for its decision" + _OF,
)
_COMMANDS = {
    "here": "%g here" % COMPUTE,
    "elsewhere": "%g elsewhere" % COMPUTE,
    "bare": "0 here",
}


def _microseconds(values):
    return [1e6 * value for value in values]


def _everywhere(context):
    """All processors for everyone."""
    return ["taskset", "-c", ",".join(map(str, context.cores))]


def _take_steps(context, rounds, commands, **placement):
    """Answers of all ranks by enforcement and kind of step, taken in turn."""
    kinds = [
        (enforcement, kind)
        for kind in commands
        for enforcement in ("off", "audit")
    ]
    taken = {kind: [] for kind in kinds}
    worker = ranks.ours(context.schedule_worker)
    with ranks.Ranks(worker, **placement) as job:
        for number in range(WARM_UP + rounds):
            context.progress("round %d of %d" % (number + 1, WARM_UP + rounds))
            # Each goes first in every other round.
            for enforcement, kind in kinds[:: 1 - 2 * (number % 2)]:
                answers = job.ask(
                    "steps %s %d %s" % (enforcement, STEPS, _COMMANDS[kind])
                )
                if number >= WARM_UP:
                    taken[(enforcement, kind)].append(answers)
    return taken


def _more(with_enforcement, without):
    """Of neighbours in time. Below zero is noise, and no gain; a ratio needs
    more than zero."""
    pairs = zip(with_enforcement, without)
    return [max(0.1, one - other) for one, other in pairs]


def measure_spare(context):
    rounds = context.samples or ROUNDS
    place = _everywhere(context)
    taken = _take_steps(
        context, rounds, ("here",), size=1, prefix=lambda _: place
    )
    walls = [
        _microseconds(answers[0]["wall"] for answers in taken[(how, "here")])
        for how in ("audit", "off")
    ]
    return [Result(SPARE, _more(*walls), [float(LIMIT)] * rounds)]


def measure_audit(context):
    rounds = context.samples or ROUNDS
    taken = _take_steps(context, rounds, _COMMANDS, cores=context.cores)

    def of(enforcement, kind, what="wall"):
        """Of the slowest rank, which the other one waits for."""
        return _microseconds(
            max(answer[what] for answer in answers)
            for answers in taken[(enforcement, kind)]
        )

    def more(kind):
        return _more(of("audit", kind), of("off", kind))

    limits = [float(LIMIT)] * rounds
    return [
        Result(THREAD, of("audit", "here", "in_gate_cpu"), limits),
        Result(STEP, more("here"), limits),
        Result(DEVICE, more("elsewhere"), limits),
        Result(PROCESS, of("audit", "here", "cpu"), of("off", "here", "cpu")),
        Result(BARE, of("audit", "bare"), of("off", "bare")),
    ]


def _rounds_of(size, rounds):
    of = (
        "p50 from the first ticket to the last decision, which grants, %d workers in one "
        "process, each with its own Attach stream" % size
    )
    against = Row(
        "schedule_strict_%d" % size,
        "epoll round",
        "us",
        of,
        # A ratio of at least 1/4: at most four times as long.
        1 / TIMES_EPOLL if size == 64 else None,
    )
    rows = [against]
    if size == 2:
        rows.append(
            Row("schedule_strict_2_limit", "300 us", "us", of, goal=1)
        )

    def measure(context):
        samples = context.samples or 7
        ours, theirs = [], []
        everywhere = _everywhere(context)
        with ranks.Ranks(
            ranks.ours(context.schedule_worker),
            size=1,
            prefix=lambda _: everywhere,
        ) as job:
            for number in range(1 + samples):
                context.progress("round %d of %d" % (number + 1, 1 + samples))
                strict = job.ask("strict %d %d" % (size, rounds))[0]
                epoll = job.ask("epoll %d %d" % (size, rounds))[0]
                if number:
                    ours.append(1e6 * strict["p50"])
                    theirs.append(1e6 * epoll["p50"])
        results = [Result(against, ours, theirs)]
        if size == 2:
            limits = [float(ROUND_OF_TWO)] * len(ours)
            results.append(Result(rows[1], ours, limits))
        return results

    return Benchmark(rows, measure)


def _wire_bytes(count):
    row = Row(
        "schedule_wire_bytes_%d" % count,
        "formula",
        "B",
        "bytes on the wire of an optimizer step that sums up k=%d "
        "micro-batches, 2 ranks over tcp; the formula is 1/k of the step that "
        "exchanges each of them" % count,
        goal=1,
        exact=True,
    )

    def measure(context):
        command = ranks.ours(context.schedule_worker, "--backend", "tcp")
        with ranks.Ranks(command, cores=context.cores) as job:
            # The first exchange of a reducer also compares the ranks.
            job.ask("wire 1 each")
            each = job.ask("wire %d each" % count)
            window = job.ask("wire %d window" % count)
        if statistics.mean(answer["bytes"] for answer in window) == 0:
            raise ranks.RankError("nothing was counted")
        return [
            Result(
                row,
                [answer["bytes"] for answer in window],
                [answer["bytes"] / count for answer in each],
            )
        ]

    return Benchmark([row], measure)


BENCHMARKS = [
    Benchmark([THREAD, STEP, DEVICE, PROCESS, BARE], measure_audit),
    Benchmark([SPARE], measure_spare),
    _rounds_of(2, 1000),
    _rounds_of(16, 500),
    _rounds_of(64, 200),
] + [_wire_bytes(count) for count in (1, 2, 4, 8)]
