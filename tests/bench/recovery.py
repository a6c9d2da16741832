#!/usr/bin/env python3
"""Measures how jobs of Coxswain, torchft and torchrun go on after failures.

    tests/bench/recovery.py --quick                       # 5 failures of each
    tests/bench/recovery.py --json out.jsonl --markdown out.md
    tests/bench/recovery.py --peers coxswain --kinds kill,stop --ranks 4
    tests/bench/recovery.py --render out.jsonl            # only the table

On a CPU: the same small model, in PyTorch, over Gloo, for all; failures/kinds.py
defines what is measured. Needs //cli:coxswain and //capi:libcoxswain_c.so
built, and tools/install_torchft.sh for torchft. All of it takes hours: results
are written as they come. docs/benchmarks.md says how to read them.
"""

import argparse
import contextlib
import os
import random
import shlex
import signal
import subprocess
import sys
import traceback

sys.dont_write_bytecode = True  # the folder is under version control
FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(FOLDER))
sys.path.insert(0, FOLDER)

import report  # noqa: E402
from failures import coxswain_job, kinds, summary  # noqa: E402
from failures import torchft_job, torchrun_job, trace  # noqa: E402
from failures.preload import Plain, Preload  # noqa: E402

PEERS = {
    "coxswain": (coxswain_job.CoxswainJob, coxswain_job.SETTINGS),
    "torchft": (torchft_job.TorchftJob, torchft_job.SETTINGS),
    "torchrun": (torchrun_job.TorchrunJob, torchrun_job.SETTINGS),
}


def names(known):
    """Returns the parser of an option that takes names with commas between."""
    def parse(text):
        found = text.split(",")
        unknown = [one for one in found if one not in known]
        if unknown:
            raise argparse.ArgumentTypeError(
                "there is no %s; there are %s"
                % (", ".join(unknown), ", ".join(known))
            )
        return found

    return parse


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    every_setting = sorted({s for _, known in PEERS.values() for s in known})
    parser.add_argument("--peers", type=names(PEERS), default=list(PEERS))
    parser.add_argument("--kinds", type=names(summary.KINDS),
                        default=list(summary.KINDS))
    parser.add_argument("--settings", type=names(every_setting),
                        default=["default", "tuned"])
    parser.add_argument("--ranks", default="4,8",
                        type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--failures", type=int, default=50, metavar="N",
                        help="of each kind (50)")
    parser.add_argument("--quick", action="store_true",
                        help="5 failures of each kind, a tenth of the trace")
    parser.add_argument("--trace-steps", type=int, default=3000)
    parser.add_argument("--limit", type=float, default=75, metavar="SECONDS",
                        help="after which a failure counts as not over (75)")
    parser.add_argument("--preload", action="store_true",
                        help="workers of Coxswain and torchft find torch "
                        "loaded; those of torchrun load it, as after a restart")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE",
                        help="append results as JSON lines")
    parser.add_argument("--markdown", metavar="FILE",
                        help="write the table, between its markers if the "
                        "file has them, as docs/benchmarks.md does")
    parser.add_argument("--render", nargs="+", metavar="FILE",
                        help="measure nothing: the table of such files")
    parsed = parser.parse_args(arguments)
    if parsed.quick:
        parsed.failures = 5
        parsed.trace_steps //= 10
    if min(parsed.ranks) < 3:
        parser.error("--ranks: two at once are killed, so at least 3 are needed")
    return parsed


def output_of(*command):
    try:
        return subprocess.run(
            command, check=True, text=True, stdout=subprocess.PIPE
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def find_tools(peers):
    """Returns paths of what is measured, and its versions, both by name. What
    none of the peers needs is not installed."""
    tools = {
        "coxswain": os.path.join(ROOT, "bazel-bin/cli/coxswain"),
        "c_library": os.path.join(ROOT, "bazel-bin/capi/libcoxswain_c.so"),
        "python": output_of(os.path.join(ROOT, "tools/install_torch.sh")),
        "torchft_python": output_of(
            os.path.join(ROOT, "tools/install_torchft.sh")
        ) if "torchft" in peers else "",
    }
    version = "import importlib.metadata as m; print(m.version('%s'))"
    commit = output_of("git", "-C", ROOT, "describe", "--always", "--dirty")
    return tools, {
        "coxswain": commit or "of no commit",
        "torch": output_of(tools["python"], "-c", version % "torch"),
        "torchft": output_of(tools["torchft_python"], "-c", version % "torchft")
        or "-",
    }


def start_workers(options, tools):
    """Adds how workers are started; returns what is to be closed."""
    loaded = ["torch", "torch._dynamo"]  # optimizers load both
    for peer, name, python, modules in (
        ("coxswain", "python_workers", "python", loaded),
        ("torchft", "torchft_workers", "torchft_python", loaded + ["torchft"]),
    ):
        if peer in options.peers:
            tools[name] = (
                Preload(tools[python], modules) if options.preload
                else Plain(tools[python])
            )
            yield tools[name]


def missing(peer, tools):
    """Returns why a peer cannot be run here, or nothing."""
    needed = {
        "coxswain": ["coxswain", "c_library", "python"],
        "torchft": ["torchft_python"],
        "torchrun": ["python"],
    }[peer]
    gone = [name for name in needed if not os.path.exists(tools[name])]
    return "it lacks " + ", ".join(gone) if gone else ""


def measure_kind(options, tools, peer, settings, ranks, kind):
    job_class, known = PEERS[peer]
    more = {"two_agents": True} if (
        peer == "torchrun" and kind == "newcomer"
    ) else {}

    def make_job():
        return job_class(ranks, known[settings], tools, **more)

    what = "%s, %s, %d processes, %s" % (peer, settings, ranks, kind)

    def progress(count, outcome):
        print(
            "%s: %d of %d: %s ms, newcomer %s ms, %d steps again%s" % (
                what, count, options.failures, in_ms(outcome.recovery),
                in_ms(outcome.newcomer), outcome.repeated,
                "" if outcome.trains_again else "; does not train again",
            ),
            file=sys.stderr, flush=True,
        )

    series = kinds.Series(make_job, kind, options.failures, options.limit)
    # The same victims for all.
    rng = random.Random("%d %d %s" % (options.seed, ranks, kind))
    outcomes, notes = series.run(rng, progress)
    return kinds.records(
        job_class, ranks, settings, kind, series, outcomes, notes
    )


def in_ms(value):
    return "-" if value is None else "%.0f" % (value / 1e6)


def measure_trace(options, tools, peer, settings, ranks):
    job_class, known = PEERS[peer]
    taken = []
    notes = []
    # As long as the same without failures takes, at the least.
    seconds = options.trace_steps * trace.STEP_MS / 1e3
    times = trace.schedule(random.Random(options.seed), seconds)
    for when in ([], times):
        job = job_class(ranks, known[settings], tools, step_ms=trace.STEP_MS)
        try:
            taken.append(trace.run(
                job, options.trace_steps, when, random.Random(options.seed)
            ))
        finally:
            notes += job.unexpected
            job.close()
        print(
            "%s, %s, %d processes, trace of %d failures: %s s"
            % (peer, settings, ranks, taken[-1][1], taken[-1][0]),
            file=sys.stderr, flush=True,
        )
    return [{
        "peer": job_class.NAME, "settings": settings, "ranks": ranks,
        "kind": "trace", "steps": options.trace_steps,
        "without_s": taken[0][0], "with_s": taken[1][0],
        "failures": taken[1][1], "notes": notes,
        "note": kinds.shortened(notes),
    }]


def comes_free(peer, kind, kinds_wanted):
    """Returns whether what is measured of a kind is measured with another."""
    return kind == "newcomer" and peer != "torchrun" and "kill" in kinds_wanted


def measure_all(options, tools, take):
    """Calls `take` with records as they come; returns whether all did."""
    complete = True
    for ranks in options.ranks:
        for kind in options.kinds:
            for peer in options.peers:
                if comes_free(peer, kind, options.kinds):
                    continue
                for settings in options.settings:
                    if settings not in PEERS[peer][1]:
                        continue
                    try:
                        if kind == "trace":
                            found = measure_trace(
                                options, tools, peer, settings, ranks
                            )
                        else:
                            found = measure_kind(
                                options, tools, peer, settings, ranks, kind
                            )
                    except Exception:  # whatever it is, the others go on
                        traceback.print_exc()
                        complete = False
                        continue
                    for record in found:
                        take(record)
    return complete


def show(options, machine, records):
    text = summary.markdown(machine, records)
    print(text)
    if options.markdown:
        report.write_markdown(options.markdown, text, summary.BEGIN)


def main(arguments):
    # What was started ends with this, too.
    signal.signal(signal.SIGTERM, lambda *unused: sys.exit(143))
    options = parse_arguments(arguments)
    if options.render:
        show(options, *summary.read_lines(options.render))
        return 0
    tools, versions = find_tools(options.peers)
    for peer in list(options.peers):
        reason = missing(peer, tools)
        if reason:
            print("skipped: %s: %s" % (peer, reason), file=sys.stderr)
            options.peers.remove(peer)
    command = shlex.join(["tests/bench/recovery.py", *arguments])
    machine = summary.describe_machine(command, versions)
    records = []

    def take(record):
        records.append(record)
        if options.json:
            summary.append_line(options.json, record)

    if options.json:
        summary.append_line(options.json, machine)
    with contextlib.ExitStack() as ending:
        for workers in start_workers(options, tools):
            ending.callback(workers.close)
            workers.wait()
        complete = measure_all(options, tools, take)
    show(options, machine, records)
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
