#!/usr/bin/env python3
"""Measures Coxswain side by side with its peers. Called by bench.sh.

Benchmarks come from the files in benchmarks/ next to this one, which are found
by themselves. --list and the check of names need neither peers nor library.
"""

import argparse
import datetime
import fnmatch
import gc
import importlib
import os
import sys
import time
import traceback

sys.dont_write_bytecode = True  # the folder is under version control

import measure  # noqa: E402
import report  # noqa: E402

FOLDER = os.path.dirname(os.path.abspath(__file__))


def load_benchmarks(folder=os.path.join(FOLDER, "benchmarks")):
    """All benchmarks, in the order of their files' names."""
    loaded = []
    for name in sorted(os.listdir(folder)):
        if name.endswith(".py") and name != "__init__.py":
            module = importlib.import_module("benchmarks." + name[:-3])
            loaded += module.BENCHMARKS
    names = [row.name for benchmark in loaded for row in benchmark.rows]
    if len(set(names)) != len(names):
        raise ValueError("two benchmarks have one name: %s" % names)
    return loaded


def select(patterns, benchmarks):
    """Returns the names of the rows that the patterns name, all if there are
    none, and the patterns that name nothing."""
    names = [row.name for benchmark in benchmarks for row in benchmark.rows]
    if not patterns:
        return set(names), []
    found = {name: fnmatch.filter(names, name) for name in patterns}
    return (
        {name for matches in found.values() for name in matches},
        [pattern for pattern, matches in found.items() if not matches],
    )


def about(seconds):
    """A time for people: "40s", "12m", "3h10m"."""
    if seconds < 60:
        return "%ds" % max(1, round(seconds))
    minutes = round(seconds / 60)
    if minutes < 60:
        return "%dm" % minutes
    return "%dh%02dm" % divmod(minutes, 60)


class Terminal:
    """Progress on stderr: one line that changes on a terminal (unless TERM
    calls it dumb), otherwise a line per benchmark. Once one is done it shows
    about how long the others take."""

    WIDTH = 16

    def __init__(self, stream=sys.stderr, clock=time.monotonic):
        self._stream = stream
        self._live = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._clock = clock
        self._began = None
        self.title = ""

    def start(self, number, total, what):
        if self._began is None:
            self._began = self._clock()
        done = number - 1
        place = "%d/%d" % (number, total)
        if done > 0:
            taken = self._clock() - self._began
            place += ", about %s left" % about(taken / done * (total - done))
        if self._live:
            bar = "#" * (self.WIDTH * done // total)
            bar = bar.ljust(self.WIDTH, ".")
            self.title = "%s [%s] %s" % (bar, place, what)
            self.progress("")
        else:
            self.title = "[%s] %s" % (place, what)
            print(self.title, file=self._stream, flush=True)

    def progress(self, text):
        if self._live:
            line = ": ".join(filter(None, (self.title, text)))
            print("\r\x1b[K" + line[:79], end="", file=self._stream, flush=True)

    def clear(self):
        if self._live:
            print("\r\x1b[K", end="", file=self._stream, flush=True)


def run(benchmarks, selected, context, terminal):
    """Returns the results of the selected rows, the names of those that could
    not be measured, and why others were skipped, by name: this machine is
    unable to measure them."""
    results, failed, skipped = [], [], {}
    for number, benchmark in enumerate(benchmarks, 1):
        wanted = [row.name for row in benchmark.rows if row.name in selected]
        terminal.start(number, len(benchmarks), ", ".join(wanted))
        measured = {}
        try:
            for result in benchmark.measure(context):
                measured[result.row.name] = result
        except measure.Unable as error:
            skipped.update((name, str(error)) for name in wanted)
        except Exception:  # whatever it is, the other benchmarks go on
            terminal.clear()
            traceback.print_exc()
        terminal.clear()
        gc.collect()
        results += [measured[name] for name in wanted if name in measured]
        failed += [
            name
            for name in wanted
            if name not in measured and name not in skipped
        ]
    return results, failed, skipped


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        prog="bench.sh",
        usage="./bench.sh [OPTION]... [NAME]... (see ./bench.sh --help)",
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--markdown", metavar="FILE")
    parser.add_argument("--samples", type=int, metavar="N")
    parser.add_argument("--library", metavar="FILE")
    parser.add_argument("--worker", metavar="FILE")
    parser.add_argument("--comm-worker", metavar="FILE")
    parser.add_argument("--gloo-worker", metavar="FILE")
    parser.add_argument("--schedule-worker", metavar="FILE")
    parser.add_argument("--scale-worker", metavar="FILE")
    parser.add_argument("--etcd-worker", metavar="FILE")
    parser.add_argument("--checkpoint-worker", metavar="FILE")
    parser.add_argument("--bulk-worker", metavar="FILE")
    parser.add_argument("--parameter-worker", metavar="FILE")
    parser.add_argument("--coxswain", metavar="FILE")
    parser.add_argument("--c-library", metavar="FILE")
    parsed = parser.parse_intermixed_args(arguments)
    if parsed.samples is not None and parsed.samples < 1:
        parser.error("--samples needs a whole number of at least 1")
    for option in ("json", "markdown"):
        path = getattr(parsed, option)
        folder = os.path.dirname(os.path.abspath(path or "x"))
        if path and (os.path.isdir(path) or not os.access(folder, os.W_OK)):
            parser.error("--%s: cannot write to '%s'" % (option, path))
    return parsed


def print_list(benchmarks):
    for benchmark in benchmarks:
        for row in benchmark.rows:
            print("%-28s %s" % (row.name, row.help))


def pin():
    """Keeps this process, with the threads to come, on one core: the last, as
    interrupts like the first."""
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return core


def measure_all(options, benchmarks, selected):
    cores = sorted(os.sched_getaffinity(0))
    core = pin()
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    from native import Native

    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    terminal = Terminal()
    native = Native(options.library)
    context = measure.Context(
        native,
        terminal.progress,
        options.samples,
        worker=options.worker,
        comm_worker=options.comm_worker,
        gloo_worker=options.gloo_worker,
        schedule_worker=options.schedule_worker,
        scale_worker=options.scale_worker,
        etcd_worker=options.etcd_worker,
        checkpoint_worker=options.checkpoint_worker,
        bulk_worker=options.bulk_worker,
        parameter_worker=options.parameter_worker,
        coxswain=options.coxswain,
        c_library=options.c_library,
        cores=cores,
    )
    results, failed, skipped = run(benchmarks, selected, context, terminal)
    now = datetime.datetime.now(datetime.timezone.utc)
    machine = report.describe_machine(
        now.strftime("%Y-%m-%d %H:%M UTC"),
        "core %d" % core,
        native.target().decode(),
        torch.__version__,
    )
    return results, failed, skipped, machine


def main(arguments):
    options = parse_arguments(arguments)
    benchmarks = load_benchmarks()
    selected, unknown = select(options.names, benchmarks)
    if unknown:
        print(
            "bench.sh: no benchmark is called %s. There are:"
            % ", ".join("'%s'" % name for name in unknown),
            file=sys.stderr,
        )
        for benchmark in benchmarks:
            for row in benchmark.rows:
                print("  " + row.name, file=sys.stderr)
        return 2
    if options.list:
        print_list(benchmarks)
    if options.list or options.check:
        return 0
    chosen = [
        benchmark
        for benchmark in benchmarks
        if any(row.name in selected for row in benchmark.rows)
    ]
    results, failed, skipped, machine = measure_all(options, chosen, selected)
    print(report.table(results))
    if options.json:
        report.write_json(options.json, results, machine)
    if options.markdown:
        report.write_markdown(
            options.markdown, report.markdown(results, machine)
        )
    missed = [result.row.name for result in results if result.met is False]
    if missed:
        print("goals missed: " + ", ".join(missed), file=sys.stderr)
    for name, reason in skipped.items():
        print("skipped: %s: %s" % (name, reason), file=sys.stderr)
    if failed:
        print("not measured: " + ", ".join(failed), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
