#!/usr/bin/env python3
"""What overlap and compression gain on a slow link: two network namespaces on
this machine, joined by a link of 1 Gbit/s (tc tbf, in both directions).

  tools/run_bazel.sh build //tests/bench/worker //cli:coxswain \\
    //examples/fashion_mnist:train
  sudo tests/bench/shaped_link.py [--rate 1gbit] [--trace FILE] [PART]...

The parts are overlap, buckets, hooks and accumulation; all of them by default.
Each prints a table in Markdown. Needs root and iproute2, and for `hooks` the
Debian package dataset-fashion-mnist. `accumulation` compares with PyTorch's
DistributedDataParallel if the interpreter that runs this has torch, as that of
tools/install_torch.sh. Changes nothing outside its namespaces.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True  # the folder is under version control

import hosts as networks  # noqa: E402
import ranks  # noqa: E402
from benchmarks.exchange import buckets_command  # noqa: E402
from measure import Unable  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(ranks.FOLDER))
BINARIES = os.path.join(ROOT, "bazel-bin")
PARAMETER_BYTES = 4 * 24 * (1024 * 1024 + 1024)  # of the worker's perceptron
HOOKS = ("allreduce", "powersgd(rank=2,start_step=20)")


def check_programs(binaries):
    for program in ("tests/bench/worker/worker", "cli/coxswain"):
        path = os.path.join(binaries, program)
        if not os.path.exists(path):
            raise Unable(path + " is missing; see --help for what to build")


def worker_job(hosts, options, *arguments):
    program = os.path.join(options.binaries, "tests/bench/worker/worker")
    return ranks.Ranks(
        ranks.ours(program, "--view", *arguments),
        prefix=lambda rank: hosts[rank].within(),
        arguments=lambda rank: ["--address", hosts[rank].address],
    )


def take(job, commands, rounds, warm_up=1):
    """Median milliseconds by command; they are taken in turn."""
    times = {name: [] for name in commands}
    for number in range(warm_up + rounds):
        for name in commands:
            seconds = job.slowest(name)
            if number >= warm_up:
                times[name].append(1e3 * seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def table(headings, rows):
    print("| " + " | ".join(headings) + " |")
    print("|---|" + "--:|" * (len(headings) - 1))
    for row in rows:
        cells = ["%.1f" % c if isinstance(c, float) else str(c) for c in row]
        print("| " + " | ".join(cells) + " |")
    print(flush=True)


def overlap(hosts, options):
    rows = []
    for inputs in options.rows:
        with worker_job(hosts, options, "--rows", str(inputs)) as job:
            job.ask("step")  # buckets are divided anew
            times = take(
                job,
                ("compute", "exchange", "step_in_turn", "step"),
                options.rounds,
            )
        compute, exchange = times["compute"], times["exchange"]
        rows.append(
            (inputs, compute, exchange, compute + exchange)
            + (times["step_in_turn"], max(compute, exchange), times["step"])
        )
    print("Perceptron, %.1f MB of gradients" % (PARAMETER_BYTES / 1e6))
    print("(rows of input: how much there is to compute), ms:\n")
    table(
        ("rows", "backward", "exchange", "sum", "one after the other")
        + ("larger of the two", "overlapped"),
        rows,
    )
    if options.trace:
        middle = options.rows[len(options.rows) // 2]
        extra = ("--rows", str(middle), "--trace", options.trace)
        with worker_job(hosts, options, *extra) as job:
            for _ in range(4):
                job.ask("step")
        print("trace of 4 steps with %d rows: %s\n" % (middle, options.trace))


def buckets(hosts, options):
    middle = options.rows[len(options.rows) // 2]
    rows = []
    for size in (1, 5, 25, 100):
        with worker_job(hosts, options, "--rows", str(middle)) as job:
            job.ask("step")
            job.ask(buckets_command(size))
            times = take(job, ("step_in_turn", "step"), options.rounds)
        rows.append(("%d MiB" % size, times["step_in_turn"], times["step"]))
    print("The same with %d rows, by size of buckets, ms:\n" % middle)
    table(("buckets", "one after the other", "overlapped"), rows)


def read_trace(path):
    """Events; the array's end may be missing."""
    with open(path, encoding="utf-8") as file:
        text = file.read().rstrip().rstrip(",")
    return json.loads(text if text.endswith("]") else text + "]")


def summarise(events, first_step):
    """Median milliseconds of a step: from one to the next, within the hook,
    waiting for collectives, and in Finish."""
    begun, hook, waited, finish = {}, {}, {}, {}
    for event in events:
        arguments = event.get("args", {})
        step = arguments.get("step", -1)
        if step < first_step:
            continue
        if event["name"] == "gradients":
            begun[step] = event["ts"]
        elif event["name"] == "wait":
            finish[step] = event["dur"]
        elif event["name"] == "compress":
            hook[step] = hook.get(step, 0) + arguments["in_hook_us"]
        elif event["name"] == "exchange":
            waited[step] = waited.get(step, 0) + arguments["waited_us"]
    whole = [
        begun[step + 1] - begun[step] for step in begun if step + 1 in begun
    ]
    series = (whole, hook.values(), waited.values(), finish.values())
    return tuple(statistics.median(values) / 1e3 for values in series)


@contextlib.contextmanager
def coordinator(host, options, folder):
    port_file = os.path.join(folder, "port")
    serving = subprocess.Popen(
        host.within()
        + [os.path.join(options.binaries, "cli/coxswain"), "serve"]
        + ["--listen", host.address + ":0", "--port-file", port_file]
        + ["--insecure"]  # in a network of its own
        + ["--state-dir", os.path.join(folder, "state")]
        + ["--log-level", "warning"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        serving.stdout.readline()  # it listens
        with open(port_file, encoding="utf-8") as file:
            yield "%s:%s" % (host.address, file.read().strip())
    finally:
        serving.terminate()
        serving.wait()


def train(hosts, options, address, folder, number, hook):
    """The path of rank 0's trace."""
    trace = os.path.join(folder, "hook%d.json" % number)
    launchers = [
        subprocess.Popen(
            host.within()
            + [os.path.join(options.binaries, "cli/coxswain"), "run"]
            + ["--nnodes", "2", "--nproc", "1", "--node", host.name]
            + ["--coordinator", address, "--job", "link-%d" % number]
            + ["--backend", "tcp", "--trace", trace, "--"]
            + [os.path.join(options.binaries, "examples/fashion_mnist/train")]
            + ["--events", "--epochs", "1", "--hook", hook],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        for host in hosts
    ]
    if any([launcher.wait() for launcher in launchers]):
        raise Unable("training with %s failed" % hook)
    return os.path.join(folder, "hook%d.rank0.json" % number)


def hooks(hosts, options):
    rows = []
    with tempfile.TemporaryDirectory(prefix="coxswain-link-") as folder:
        with coordinator(hosts[0], options, folder) as address:
            for number, hook in enumerate(HOOKS):
                path = train(hosts, options, address, folder, number, hook)
                # Both from the step on in which the second one compresses.
                rows.append(("`%s`" % hook,) + summarise(read_trace(path), 30))
    print("The quickstart's network, 2 ranks, median of its steps, ms:\n")
    table(
        ("hook", "step", "in the hook", "in collectives")
        + ("waited for at the end",),
        rows,
    )


KINDS = ("baseline", "misplaced", "no_sync", "accumulate")


def torch_job(hosts, options, *arguments):
    return ranks.Ranks(
        ranks.torch("--view", *arguments),
        prefix=lambda rank: hosts[rank].within()
        + ["env", "GLOO_SOCKET_IFNAME=" + hosts[rank].device],
    )


def windows(count, kinds, *more):
    """Commands by name."""
    return {
        kind + "".join(more): " ".join(("window", kind, str(count)) + more)
        for kind in kinds
    }


def bounds(times, each, count, kind):
    """What a micro-batch can take at best, without overlap and with it: `c`
    computing, of which `c_forward` before the first gradient, and `s`
    exchanging, here in every micro-batch or in the last of `count`."""
    c, forward, s = times["micro"], times["forward"], times["exchange"]
    overlapped = max(c, forward + s)
    if kind == each:
        return c + s, overlapped
    return c + s / count, ((count - 1) * c + overlapped) / count


def percent(value, bound):
    return "%.1f (%+.0f%%)" % (value, 100 * (value / bound - 1))


def measure_accumulation(jobs, options):
    """Milliseconds by job and command, all taken in turn."""
    times = {name: {} for name in jobs}
    for number in range(1 + options.rounds):
        for name, (job, commands) in jobs.items():
            for key, line in commands.items():
                answers = job.ask(line)
                if number == 0:
                    continue
                for what, kept in ((key, "wall"), ("forward", "forward")):
                    if what == "forward" and key != "micro":
                        continue
                    slowest = max(answer[kept] for answer in answers)
                    times[name].setdefault(what, []).append(1e3 * slowest)
    return {
        name: {key: statistics.median(all_) for key, all_ in taken.items()}
        for name, taken in times.items()
    }


def accumulation(hosts, options):
    count = options.micro_batches
    rows = ("--rows", str(options.micro_rows))
    alone = {"micro": "micro", "exchange": "exchange"}
    peer_alone = dict(alone, exchange="allreduce %d" % PARAMETER_BYTES)
    ours = ("baseline", "no_sync")
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(worker_job(hosts, options, *rows))
        declared = stack.enter_context(
            worker_job(hosts, options, "--accumulate", str(count), *rows)
        )
        jobs = {
            "ours": (
                plain,
                {**alone, **windows(count, ours)}
                | windows(count, ours, "in_turn"),
            ),
            "declared": (
                declared,
                windows(count, ("accumulate",))
                | windows(count, ("accumulate",), "in_turn"),
            ),
        }
        if importlib.util.find_spec("torch") is not None:
            jobs["peer"] = (
                stack.enter_context(torch_job(hosts, options, *rows)),
                peer_alone | windows(count, KINDS[:3]),
            )
        else:
            print("(no torch in %s: no peer)\n" % sys.executable)
        times = measure_accumulation(jobs, options)
        refusal = plain.ask("misplaced")[0]["error"]
    print_accumulation(times, count, options, refusal)


def print_accumulation(times, count, options, refusal):
    ours = {**times["ours"], **times["declared"]}
    peer = times.get("peer")
    print("Perceptron, %.1f MB of gradients," % (PARAMETER_BYTES / 1e6))
    print(
        "%d rows of input, %d micro-batches a window,"
        % (options.micro_rows, count)
    )
    for name, one in (("ours", ours), ("torch", peer)):
        if one:
            print(
                "%s: c %.1f, c_forward %.1f, s %.1f;"
                % (name, one["micro"], one["forward"], one["exchange"])
            )
    print("ms a micro-batch (and more than its bound):\n")
    lines = []
    for kind in KINDS:
        each = "misplaced" if kind == "misplaced" else "baseline"
        line = ["`%s`" % kind]
        if kind == "misplaced":
            line += ["an error"] * 2
        else:
            turn, overlapped = bounds(ours, each, count, kind)
            line.append(percent(ours[kind + "in_turn"] / count, turn))
            line.append(percent(ours[kind] / count, overlapped))
        if peer and kind in peer:
            _, overlapped = bounds(peer, each, count, kind)
            line.append(percent(peer[kind] / count, overlapped))
        else:
            line.append("-")
        lines.append(line)
    table(
        ("", "ours, one after the other", "ours, overlapped")
        + ("torch, overlapped",),
        lines,
    )
    print("The error: %s\n" % refusal)


PARTS = {
    "overlap": overlap,
    "buckets": buckets,
    "hooks": hooks,
    "accumulation": accumulation,
}


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", default="4,16,48", metavar="N,N...")
    parser.add_argument("--micro-batches", type=int, default=4, metavar="K")
    parser.add_argument("--micro-rows", type=int, default=12, metavar="N")
    parser.add_argument("--trace", metavar="FILE")
    parser.add_argument("--binaries", metavar="FOLDER", default=BINARIES)
    parsed = parser.parse_args(arguments)
    parsed.parts = parsed.parts or list(PARTS)
    parsed.rows = [int(number) for number in parsed.rows.split(",")]
    unknown = sorted(set(parsed.parts) - set(PARTS))
    if unknown:
        parser.error("there is no part '%s'" % unknown[0])
    return parsed


def main(arguments):
    options = parse_arguments(arguments)
    try:
        check_programs(options.binaries)
        with networks.cable(options.rate) as hosts:
            print(
                "%d cores, link of %s, %s, load average %.2f\n"
                % (
                    os.cpu_count(),
                    options.rate,
                    time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
                    os.getloadavg()[0],
                )
            )
            for part in options.parts:
                PARTS[part](hosts, options)
    except (Unable, ranks.RankError) as error:
        print("shaped_link.py: %s" % error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
