#!/usr/bin/env python3
"""Measures how jobs of Coxswain, torchft and torchrun go on after failures.

    tests/bench/recovery.py --quick                       # 5 failures of each
    tests/bench/recovery.py --json out.jsonl --markdown out.md
    tests/bench/recovery.py --peers coxswain --kinds kill,stop --ranks 4
    tests/bench/recovery.py --render out.jsonl            # only the table

On a CPU: the same small model, in PyTorch, over Gloo, for all; failures/kinds.py
defines what is measured. Needs //cli:coxswain and //capi:libcoxswain_c.so
built, and tools/install_torchft.sh for torchft. All of it takes hours, also in
parts: --json FILE goes on where FILE ends. docs/benchmarks.md says how to read
the results.
"""

import argparse
import contextlib
import glob
import hashlib
import os
import shlex
import signal
import subprocess
import sys
import time
import traceback

sys.dont_write_bytecode = True  # the folder is under version control
FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(FOLDER))
sys.path.insert(0, FOLDER)

import report  # noqa: E402
from failures import coxswain_job, kinds, summary  # noqa: E402
from failures import torchft_job, torchrun_job, trace  # noqa: E402
from failures.preload import Plain, Preload  # noqa: E402
from failures.together import Together  # noqa: E402

# The job, its settings, and which of them are measured by default. By itself
# torchrun would need an hour more, and has no timeout for stopped workers.
PEERS = {
    "coxswain": (coxswain_job.CoxswainJob, coxswain_job.SETTINGS,
                 ["default", "tuned"]),
    "torchft": (torchft_job.TorchftJob, torchft_job.SETTINGS,
                ["default", "tuned"]),
    "torchrun": (torchrun_job.TorchrunJob, torchrun_job.SETTINGS, ["tuned"]),
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
    every_setting = sorted({
        one for _, known, _ in PEERS.values() for one in known
    })
    parser.add_argument("--peers", type=names(PEERS), default=list(PEERS))
    parser.add_argument("--kinds", type=names(summary.KINDS),
                        default=list(summary.KINDS))
    parser.add_argument("--settings", type=names(every_setting),
                        help="default and tuned; of torchrun only tuned")
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
                        help="append results as JSON lines, as they come; "
                        "what it has of the same versions is not measured "
                        "again, so that it may be stopped and started anew")
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


def version_of_program():
    """Returns the last commit that changed what is measured of Coxswain."""
    program = [".", ":!docs", ":!tests", ":!*.md"]
    commit = output_of("git", "-C", ROOT, "log", "-1", "--format=%h", "--",
                       *program)
    changed = output_of("git", "-C", ROOT, "status", "--porcelain", "--",
                        *program)
    return (commit or "of no commit") + ("-dirty" if changed else "")


def version_of_benchmark():
    """Returns a digest of what may change what is measured."""
    digest = hashlib.sha256()
    for path in sorted(glob.glob(os.path.join(FOLDER, "failures", "*.py"))):
        if path != summary.__file__:
            with open(path, "rb") as file:
                digest.update(file.read())
    return digest.hexdigest()[:8]


def find_tools(options):
    """Returns paths of what is measured, and its versions, both by name. What
    none of the peers needs is not installed."""
    tools = {
        "coxswain": os.path.join(ROOT, "bazel-bin/cli/coxswain"),
        "c_library": os.path.join(ROOT, "bazel-bin/capi/libcoxswain_c.so"),
        "python": output_of(os.path.join(ROOT, "tools/install_torch.sh")),
        "torchft_python": output_of(
            os.path.join(ROOT, "tools/install_torchft.sh")
        ) if "torchft" in options.peers else "",
    }
    version = "import importlib.metadata as m; print(m.version('%s'))"
    return tools, {
        "coxswain": version_of_program(),
        "benchmark": version_of_benchmark(),
        "preload": options.preload,
        "torch": output_of(tools["python"], "-c", version % "torch"),
        "torchft": output_of(tools["torchft_python"], "-c", version % "torchft")
        or "-",
    }


def start_workers(options, tools):
    """Adds how processes of Python are started; returns what is to be closed.
    """
    loaded = ["torch", "torch._dynamo"]  # optimizers load both
    for peer, name, python, modules in (
        ("coxswain", "python_workers", "python", loaded),
        ("torchft", "torchft_workers", "torchft_python", loaded + ["torchft"]),
        ("torchrun", "torchrun_store", "python", ["torch"]),
    ):
        if peer in options.peers:
            tools[name] = (
                Preload(tools[python], modules)
                if options.preload or name == "torchrun_store"
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


class Measurements:
    """What has been measured, which is not measured again, and what comes."""

    def __init__(self, options, tools, versions):
        self.records = []
        self._complete = True
        self._options = options
        self._tools = tools
        self._versions = versions
        if options.json and os.path.exists(options.json):
            _, self.records = summary.read_lines([options.json])

    def take_all(self):
        """Returns whether all could be measured."""
        options = self._options
        for ranks in options.ranks:
            for peer in options.peers:
                _, known, usual = PEERS[peer]
                for settings in options.settings or usual:
                    if settings not in known:
                        continue
                    for take in (self._take_kinds, self._take_newcomers,
                                 self._take_trace):
                        with self._going_on():
                            take(peer, settings, ranks)
        return self._complete

    @contextlib.contextmanager
    def _going_on(self):
        """Whatever it is that one raises, the others are measured."""
        try:
            yield
        except Exception:
            traceback.print_exc()
            self._complete = False

    def _take_kinds(self, peer, settings, ranks):
        """Failures of all kinds for which the same job will do."""
        apart = ["trace"]
        if peer == "torchrun" or "kill" in self._options.kinds:
            # Measured apart, or with those that were killed.
            apart.append("newcomer")
        self._take_series(
            peer, settings, ranks,
            [one for one in self._options.kinds if one not in apart],
        )

    def _take_newcomers(self, peer, settings, ranks):
        """Those of a library that needs a job of another kind for them."""
        if peer == "torchrun" and "newcomer" in self._options.kinds:
            self._take_series(
                peer, settings, ranks, ["newcomer"], two_agents=True
            )

    def _take_series(self, peer, settings, ranks, names, **more):
        options = self._options
        job_class, known, _ = PEERS[peer]

        def make_job():
            return job_class(ranks, known[settings], self._tools, **more)

        with kinds.Jobs(make_job, options.limit) as jobs:
            for kind in names:
                with self._going_on():
                    self._take_kind(
                        jobs, kind, self._common(peer, settings, ranks),
                        known[settings].get("at_once", 1)
                        if kind in job_class.ANEW_AFTER else 1,
                    )

    def _take_kind(self, jobs, kind, common, at_once):
        options = self._options
        before = self._before(dict(common, kind=kind)).get("values_ms", [])
        seed = "%d %d %s" % (options.seed, common["ranks"], kind)
        last = time.monotonic()

        def take(outcome, notes):
            nonlocal last
            for record in kinds.records(common, kind, outcome, notes):
                self._add(record)
            now = time.monotonic()
            print(
                "%(peer)s, %(settings)s, %(ranks)d processes, " % common
                + "%s: %s; %.1f s for it" % (
                    kind, in_words(outcome), now - last
                ) + "".join("; " + one for one in notes),
                file=sys.stderr, flush=True,
            )
            last = now

        if at_once > 1:
            Together(jobs, kind, before, options.failures, seed).run(
                at_once, take
            )
        else:
            kinds.run_series(
                jobs, kind, before, options.failures, seed, take
            )

    def _take_trace(self, peer, settings, ranks):
        options = self._options
        if "trace" not in options.kinds:
            return
        job_class, known, _ = PEERS[peer]
        common = dict(
            self._common(peer, settings, ranks), kind="trace",
            steps=options.trace_steps,
        )
        before = self._before(common)
        if "without_s" in before and "with_s" in before:
            return
        taken = trace.run_both(
            lambda: job_class(
                ranks, known[settings], self._tools, step_ms=trace.STEP_MS
            ),
            options.trace_steps, options.seed,
        )
        self._add({**common, **taken})
        print(
            "%(peer)s, %(settings)s, %(ranks)d processes, " % common
            + "trace of %(failures)d failures: %(with_s)s s; "
            "without: %(without_s)s s" % taken,
            file=sys.stderr, flush=True,
        )

    def _common(self, peer, settings, ranks):
        return {
            "peer": PEERS[peer][0].NAME, "settings": settings, "ranks": ranks,
            "limit_s": self._options.limit,
            "of": {name: self._versions[name] for name in (
                "torch", "benchmark", "cpu", "cores", "preload",
                *([peer] if peer != "torchrun" else []),
            )},
        }

    def _before(self, wanted):
        """Returns what has been measured of the same, merged into one."""
        same = [
            one for one in self.records
            if summary.row(one) == summary.row(wanted)
            and one["of"] == wanted["of"]
        ]
        return summary.merged(same)[0] if same else {}

    def _add(self, record):
        self.records.append(record)
        if self._options.json:
            summary.append_line(self._options.json, record)


def in_words(outcome):
    def in_ms(value):
        return "-" if value is None else "%.0f" % (value / 1e6)

    return "%s ms, newcomer %s ms, %d steps again%s" % (
        in_ms(outcome.recovery), in_ms(outcome.newcomer), outcome.repeated,
        "" if outcome.trains_again else "; does not train again",
    )


def show(options, machines, records):
    text = summary.markdown(machines, records)
    print(text)
    if options.markdown:
        report.write_markdown(options.markdown, text, summary.BEGIN)


def end_by_signal(*unused):
    """What was started ends with this program. `timeout` sends two signals."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


def main(arguments):
    signal.signal(signal.SIGTERM, end_by_signal)
    options = parse_arguments(arguments)
    if options.render:
        show(options, *summary.read_lines(options.render))
        return 0
    tools, versions = find_tools(options)
    for peer in list(options.peers):
        reason = missing(peer, tools)
        if reason:
            print("skipped: %s: %s" % (peer, reason), file=sys.stderr)
            options.peers.remove(peer)
    command = shlex.join(["tests/bench/recovery.py", *arguments])
    machine = summary.describe_machine(command, versions)
    measurements = Measurements(options, tools, machine)
    machines = [machine]
    if options.json:
        summary.append_line(options.json, machine)
        machines, _ = summary.read_lines([options.json])
    with contextlib.ExitStack() as ending:
        for workers in start_workers(options, tools):
            ending.callback(workers.close)
            workers.wait()
        complete = measurements.take_all()
    if measurements.records:
        show(options, machines, measurements.records)
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
