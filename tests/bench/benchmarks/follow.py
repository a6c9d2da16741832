"""What it costs torch's DistributedDataParallel to be followed: announced to
the coordinator, and decided, while torch exchanges over Gloo, or Coxswain does
over shared memory; and what PowerSGD saves over a slow link between two hosts,
which are network namespaces (hosts.py)."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile

import hosts as networks
from measure import Benchmark, Result, Row

ROUNDS = 8
STEPS = 25  # of each side in a round
LIMIT = 30  # us a bucket
TIMEOUT = 600

_BENCH = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_TREE = os.path.dirname(os.path.dirname(_BENCH))

_OF = ", 2 ranks on one host, torch's Gloo"
_BUCKETS = "64 layers of 16 KiB, in buckets of one" + _OF
_COST = (
    "processor time of the training thread that a bucket of 16 KiB costs "
    "beside plain DistributedDataParallel's, 0.1 us or more, "
)
BUCKET = Row(
    "follow_bucket", "%d us" % LIMIT, "us", _COST + _BUCKETS, goal=1
)
BUCKET_HOOK = Row(
    "follow_bucket_hook",
    "the hook alone",
    "us",
    _COST + "with torch's own allreduce_hook, in Python, " + _BUCKETS,
)
STEP_SMALL = Row("follow_step_small", "DDP", "ms", "a step of " + _BUCKETS)
STEP = Row(
    "follow_step",
    "DDP",
    "ms",
    "a step of 8 layers of 4 MiB, 32 samples" + _OF,
    goal=0.98,
)
STEP_HOOK = Row(
    "follow_step_hook",
    "the hook alone",
    "ms",
    "the same with torch's own allreduce_hook, in Python",
)
STEP_COXSWAIN = Row(
    "follow_step_coxswain",
    "DDP",
    "ms",
    'the same with exchange="coxswain", over shared memory',
    goal=1.2,
)
# The plan has one hook for all models of a job, so the sides are two jobs.
STEP_OWN = Row(
    "follow_step_own",
    "the hook allreduce",
    "ms",
    'a step with exchange="coxswain" of 64 layers of 16 KiB, in buckets of one, '
    "2 ranks on one host, by a hook in Python that yields one all-reduce",
)
LINK = "1gbit"
LINK_HOOK = "powersgd(rank=4,start_step=2)"
LINK_STEPS = 5
GIGABIT = Row(
    "follow_gigabit_powersgd",
    "DDP",
    "ms",
    'a step with exchange="coxswain" of 8 layers of 4 MiB and one sample, by '
    "powersgd(rank=4), 2 hosts with a link of 1 Gbit/s",
    goal=5,
)


def _launcher(context, *arguments):
    if not context.coxswain or not context.c_library:
        raise RuntimeError("needs --coxswain and --c-library")
    return [
        context.coxswain, "run", "--no-prefix", "--log-level", "error",
        *arguments, "--", sys.executable,
        os.path.join(_BENCH, "followed_ddp.py"),
    ]


def _environment(context, **more):
    return dict(
        os.environ,
        COXSWAIN_LIBRARY=context.c_library,
        PYTHONPATH=os.path.join(_TREE, "python"),
        **more,
    )


def _measure(context, model, *more):
    command = _launcher(context, "--nproc", "2") + [
        model,
        "--rounds", str(context.samples or ROUNDS), "--steps", str(STEPS),
        *more,
    ]
    cores = context.cores
    done = subprocess.run(
        command,
        env=_environment(context),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT,
        check=False,
        # Not the one core of this process.
        preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if cores else None,
    )
    return _rounds(command, done.returncode, done.stdout, done.stderr)


def _rounds(command, code, output, error):
    lines = [line for line in output.splitlines() if line[:1] == "{"]
    if code != 0 or not lines:
        raise RuntimeError("%s ended with %d: %s" % (command, code, error))
    return [json.loads(line) for line in lines]


@contextlib.contextmanager
def _coordinator(context, host):
    """Yields the address of a coordinator on that host."""
    with tempfile.TemporaryDirectory(prefix="coxswain-bench-") as folder:
        port = os.path.join(folder, "port")
        process = subprocess.Popen(
            host.within()
            + [context.coxswain, "serve", "--insecure"]
            + ["--listen", host.address + ":0", "--port-file", port]
            + ["--state-dir", os.path.join(folder, "state")]
            + ["--log-level", "warning"],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            process.stdout.readline()  # It listens.
            with open(port) as file:
                yield "%s:%s" % (host.address, file.read().strip())
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()


def measure_gigabit(context):
    if not context.coxswain or not context.c_library:
        raise RuntimeError("needs --coxswain and --c-library")
    cores = context.cores
    with networks.cable(LINK) as hosts, _coordinator(
        context, hosts[0]
    ) as address:
        processes = []
        for number, host in enumerate(hosts):
            command = host.within() + _launcher(
                context,
                *("--nnodes", "2", "--nproc", "1", "--node", host.name),
                *("--coordinator", address, "--job", "bench"),
            )
            command += ["exchange", "--hook", LINK_HOOK]
            command += ["--rounds", str(context.samples or ROUNDS)]
            command += ["--steps", str(LINK_STEPS)]
            mine = {cores[number % len(cores)]} if cores else None
            processes.append(
                subprocess.Popen(
                    command,
                    env=_environment(context, GLOO_SOCKET_IFNAME=host.device),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    preexec_fn=(lambda mine=mine: os.sched_setaffinity(0, mine))
                    if mine
                    else None,
                )
            )
        ended = [process.communicate(timeout=TIMEOUT) for process in processes]
        rounds = _rounds(
            command,
            max(abs(process.returncode) for process in processes),
            "".join(output for output, _ in ended),
            "".join(error for _, error in ended),
        )
    return [_steps(GIGABIT, rounds, "coxswain", "plain")]


def _milliseconds(rounds, name):
    return [1e3 * one[name] for one in rounds]


def _steps(row, rounds, ours, peer):
    return Result(row, _milliseconds(rounds, ours), _milliseconds(rounds, peer))


def measure_small(context):
    rounds = _measure(context, "small")

    def costs(name):
        return [
            max(
                1e6
                * (one[name + "_thread"] - one["plain_thread"])
                / one["buckets"],
                # No ratio has a sense below.
                0.1,
            )
            for one in rounds
        ]

    return [
        Result(BUCKET, costs("ours"), [LIMIT] * len(rounds)),
        Result(BUCKET_HOOK, costs("both"), costs("hook")),
        _steps(STEP_SMALL, rounds, "ours", "plain"),
    ]


def measure_large(context):
    rounds = _measure(context, "large")
    return [
        _steps(STEP, rounds, "ours", "plain"),
        _steps(STEP_HOOK, rounds, "both", "hook"),
        _steps(STEP_COXSWAIN, rounds, "coxswain", "plain"),
    ]


def measure_own(context):
    own, library = [
        _measure(context, "small", "--hook", hook)
        for hook in ("mean", "allreduce")
    ]
    return [
        Result(
            STEP_OWN,
            _milliseconds(own, "coxswain"),
            _milliseconds(library, "coxswain"),
        )
    ]


BENCHMARKS = [
    Benchmark([BUCKET, BUCKET_HOOK, STEP_SMALL], measure_small),
    Benchmark([STEP, STEP_HOOK, STEP_COXSWAIN], measure_large),
    Benchmark([STEP_OWN], measure_own),
    Benchmark([GIGABIT], measure_gigabit),
]
