#!/usr/bin/env python3
"""Tests of what bench.sh does around the measuring itself."""

import contextlib
import io
import json
import os
import re
import sys
import tempfile
import types
import unittest
import unittest.mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import bench  # noqa: E402
import hook_choice  # noqa: E402
import measure  # noqa: E402
import models  # noqa: E402
import ranks  # noqa: E402
import report  # noqa: E402
from measure import Benchmark, Context, Result, Row, Subject  # noqa: E402
from measure import faster, gigabytes_per_second, milliseconds  # noqa: E402


def time_row(goal=None, **others):
    return Row("a_time", "peer", "ms", "help", goal=goal, **others)


def speed_row(goal=None):
    return Row("a_speed", "peer", "GB/s", "help", goal, less_is_better=False)


class Clock:
    """Time that passes only while subjects run."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def spend(self, seconds):
        self.now += seconds


class ResultTest(unittest.TestCase):
    def test_a_ratio_is_of_medians(self):
        result = Result(time_row(), [1, 100, 2], [6, 4, 5])
        self.assertEqual(result.ours_median, 2)
        self.assertEqual(result.ratio, 2.5)

    def test_a_ratio_above_one_is_better_in_both_directions(self):
        self.assertEqual(Result(time_row(), [2], [6]).ratio, 3)
        self.assertEqual(Result(speed_row(), [6], [2]).ratio, 3)

    def test_a_goal_is_met_from_the_goal_on(self):
        self.assertIs(Result(time_row(goal=3), [2], [6]).met, True)
        self.assertIs(Result(time_row(goal=3), [2.1], [6]).met, False)
        self.assertIs(Result(speed_row(goal=0.9), [8.9], [10]).met, False)

    def test_without_a_goal_nothing_is_met_or_missed(self):
        self.assertIsNone(Result(time_row(), [2], [6]).met)

    def test_an_exact_row_wants_equality(self):
        row = time_row(goal=1, exact=True)
        self.assertIs(Result(row, [8], [8]).met, True)
        # Less would be as wrong as more.
        self.assertIs(Result(row, [7], [8]).met, False)
        self.assertIs(Result(row, [9], [8]).met, False)

    def test_zeros_have_a_ratio(self):
        self.assertEqual(Result(time_row(), [0], [0]).ratio, 1)
        self.assertEqual(Result(time_row(), [0], [1]).ratio, float("inf"))


class InterleaveTest(unittest.TestCase):
    def run_two(self, context_samples):
        clock = Clock()
        calls = []

        def subject(name, seconds):
            def run():
                calls.append(name)
                clock.spend(seconds)

            def prepare():
                calls.append("prepare " + name)
                clock.spend(1000)

            return Subject(run, prepare)

        context = Context(None, samples=context_samples, clock=clock)
        times = context.interleave(
            {"a": subject("a", 1), "b": subject("b", 2)}, 3, warm_up=2
        )
        return times, calls

    def test_subjects_take_turns_and_only_the_run_is_timed(self):
        times, calls = self.run_two(None)
        self.assertEqual(calls, ["prepare a", "a", "prepare b", "b"] * 5)
        self.assertEqual(times, {"a": [1] * 3, "b": [2] * 3})

    def test_the_caller_may_ask_for_other_samples(self):
        times, calls = self.run_two(1)
        self.assertEqual(len(times["a"]), 1)
        self.assertEqual(calls.count("a"), 3)

    def test_units(self):
        self.assertEqual(milliseconds([0.5]), [500])
        self.assertEqual(gigabytes_per_second(4e9, [2]), [2])
        self.assertEqual(faster([3, 1, 9], [4, 2, 2]), [4, 2, 2])


def benchmarks_of(*names, measure=None):
    return [
        Benchmark([Row(name, "peer", "ms", "help of " + name)], measure)
        for name in names
    ]


class SelectTest(unittest.TestCase):
    known = benchmarks_of("cast_bf16", "cast_fp16", "copy")

    def test_names_and_globs(self):
        self.assertEqual(
            bench.select(["copy", "*fp16"], self.known),
            ({"copy", "cast_fp16"}, []),
        )

    def test_nothing_named_is_everything(self):
        selected, unknown = bench.select([], self.known)
        self.assertEqual(len(selected), 3)
        self.assertEqual(unknown, [])

    def test_unknown_names_are_reported(self):
        self.assertEqual(
            bench.select(["copy", "cast", "x*"], self.known)[1], ["cast", "x*"]
        )


class DriverTest(unittest.TestCase):
    def main(self, *arguments):
        out, error = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out):
            with contextlib.redirect_stderr(error):
                try:
                    code = bench.main(list(arguments))
                except SystemExit as exit_:
                    code = exit_.code
        return code, out.getvalue(), error.getvalue()

    def test_the_list_has_every_file_and_needs_no_peer(self):
        code, out, _ = self.main("--list")
        self.assertEqual(code, 0)
        for name in (
            "copy_bandwidth",
            "cast_bf16",
            "powersgd_gpt2",
            "tcp_tls_64m_2",
            "tcp_gigabit_100m_2",
            "tcp_gigabit_powersgd_2",
            "tcp_slow_host_4",
        ):
            self.assertIn(name, out)
        self.assertNotIn("torch", sys.modules)

    def test_an_unknown_name_is_an_error_that_lists_the_names(self):
        code, _, error = self.main("cast_bf16", "nothing")
        self.assertEqual(code, 2)
        self.assertIn("'nothing'", error)
        self.assertIn("copy_bandwidth", error)

    def test_bad_arguments_are_refused_before_anything_is_measured(self):
        for arguments in (
            ["--samples", "0"],
            ["--json", "/nowhere/at/all"],
            ["--what"],
        ):
            code, _, error = self.main("--check", *arguments)
            self.assertEqual(code, 2, arguments)
            self.assertIn(arguments[0].lstrip("-").split("=")[0], error)

    def test_names_may_stand_between_options(self):
        code, _, error = self.main("copy*", "--samples", "3", "c*", "--check")
        self.assertEqual((code, error), (0, ""))

    def test_progress_shows_how_long_the_rest_takes(self):
        for seconds, words in ((0.2, "1s"), (59, "59s"), (600, "10m"),
                               (11400, "3h10m")):
            self.assertEqual(bench.about(seconds), words)
        now = [0.0]
        out = io.StringIO()
        terminal = bench.Terminal(out, clock=lambda: now[0])
        terminal.start(1, 3, "copy")
        terminal.progress("round 1")
        now[0] = 100.0
        terminal.start(2, 3, "cast")
        self.assertEqual(
            out.getvalue(), "[1/3] copy\n[2/3, about 3m left] cast\n"
        )

    def test_a_terminal_has_one_line_with_a_bar(self):
        near, far = os.openpty()
        with open(near, "rb", buffering=0) as shown, open(far, "w") as tty:
            with unittest.mock.patch.dict(os.environ, {"TERM": "xterm"}):
                terminal = bench.Terminal(tty, clock=lambda: 0.0)
            terminal.start(2, 4, "cast")
            terminal.progress("round 1")
            terminal.clear()
            expected = (
                "\r\x1b[K####............ [2/4, about 1s left] cast"
                "\r\x1b[K####............ [2/4, about 1s left] cast: round 1"
                "\r\x1b[K"
            )
            # A read may return what one write brought.
            text = ""
            while len(text) < len(expected):
                text += shown.read(4096).decode()
            self.assertEqual(text, expected)

    def run_benchmarks(self, benchmarks, selected):
        terminal = bench.Terminal(io.StringIO())
        with contextlib.redirect_stderr(io.StringIO()):
            return bench.run(benchmarks, selected, None, terminal)

    def test_only_selected_rows_are_reported(self):
        rows = [time_row(), speed_row()]
        both = Benchmark(rows, lambda _: [Result(r, [1], [2]) for r in rows])
        results, failed, skipped = self.run_benchmarks([both], {"a_speed"})
        self.assertEqual([r.row.name for r in results], ["a_speed"])
        self.assertEqual((failed, skipped), ([], {}))

    def test_what_fails_is_named_and_the_others_go_on(self):
        def fail(_):
            raise RuntimeError("no such hook")

        good = Benchmark([time_row()], lambda _: [Result(time_row(), [1], [2])])
        (bad,) = benchmarks_of("bad", measure=fail)
        (silent,) = benchmarks_of("silent", measure=lambda _: [])
        results, failed, skipped = self.run_benchmarks(
            [bad, silent, good], {"bad", "silent", "a_time"}
        )
        self.assertEqual([r.row.name for r in results], ["a_time"])
        self.assertEqual((failed, skipped), (["bad", "silent"], {}))

    def test_what_the_machine_is_unable_to_do_is_skipped_with_its_reason(self):
        def refuse(_):
            raise measure.Unable("it needs root")

        rows = [time_row(), speed_row()]
        results, failed, skipped = self.run_benchmarks(
            [Benchmark(rows, refuse)], {"a_time"}
        )
        self.assertEqual((results, failed), ([], []))
        self.assertEqual(skipped, {"a_time": "it needs root"})

    def test_a_network_of_hosts_without_root_is_skipped(self):
        links = bench.importlib.import_module("benchmarks.tcp_links")
        with unittest.mock.patch("os.geteuid", lambda: 1000):
            results, failed, skipped = self.run_benchmarks(
                links.BENCHMARKS, {"tcp_gigabit_100m_2", "tcp_slow_host_4"}
            )
        self.assertEqual((results, failed), ([], []))
        for name in ("tcp_gigabit_100m_2", "tcp_slow_host_4"):
            self.assertIn("root", skipped[name])


class RanksTest(unittest.TestCase):
    SCRIPT = """
import json, os
while True:
    try:
        input()
    except EOFError:
        break
    print(json.dumps(sorted(os.sched_getaffinity(0))), flush=True)
"""

    def cores_of(self, size, cores):
        command = [sys.executable, "-c", self.SCRIPT]
        with ranks.Ranks(command, size=size, cores=cores) as job:
            return job.ask("cores")

    def test_each_rank_has_a_core_where_there_are_enough(self):
        cores = sorted(os.sched_getaffinity(0))[:2]
        self.assertEqual(
            self.cores_of(len(cores), cores), [[core] for core in cores]
        )

    def test_more_ranks_than_cores_share_all(self):
        cores = sorted(os.sched_getaffinity(0))[:2]
        size = len(cores) + 1
        self.assertEqual(self.cores_of(size, cores), [cores] * size)


class ReportTest(unittest.TestCase):
    results = [
        Result(time_row(goal=5), [1.5, 2.5, 2.0], [4.0, 4.0, 6.0]),
        Result(speed_row(), [12.0], [10.0]),
    ]
    machine = {
        "cpu": "A CPU",
        "cores": 2,
        "memory": "3 GiB",
        "kernel_target": "AVX2",
        "torch": "2.0",
        "date": "today",
        "load_average": 0.25,
    }

    def test_json_has_exactly_these_fields(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "out.json")
            report.write_json(path, self.results, self.machine)
            self.assertEqual(os.listdir(folder), ["out.json"])
            with open(path, encoding="utf-8") as file:
                document = json.load(file)
        self.assertEqual(
            document,
            {
                "machine": self.machine,
                "benchmarks": [
                    {
                        "name": "a_time",
                        "ours": 2.0,
                        "peer": 4.0,
                        "peer_name": "peer",
                        "unit": "ms",
                        "ratio": 2.0,
                        "goal": 5,
                        "met": False,
                        "samples": {
                            "ours": [1.5, 2.5, 2.0],
                            "peer": [4.0, 4.0, 6.0],
                        },
                    },
                    {
                        "name": "a_speed",
                        "ours": 12.0,
                        "peer": 10.0,
                        "peer_name": "peer",
                        "unit": "GB/s",
                        "ratio": 1.2,
                        "goal": None,
                        "met": None,
                        "samples": {"ours": [12.0], "peer": [10.0]},
                    },
                ],
            },
        )

    def test_table_shows_what_was_missed(self):
        lines = report.table(self.results).splitlines()
        self.assertEqual(len(lines), 3)
        self.assertRegex(lines[1], r"^a_time +2 +4 +ms +2 +>= 5 +NO +peer$")
        self.assertRegex(lines[2], r"^a_speed +12 +10 +GB/s +1\.2 +peer$")

    def test_markdown_names_the_machine_and_the_spread(self):
        text = report.markdown(self.results, self.machine)
        self.assertIn("A CPU, 2 cores, 3 GiB, kernels for AVX2", text)
        self.assertIn("| `a_time` | 2 | 4 | ms | 12%, 12% | 2 |", text)

    def test_markdown_replaces_what_is_between_the_markers(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "page.md")
            for text in ("first\n", "second\n"):
                report.write_markdown(path, text)
                with open(path, encoding="utf-8") as file:
                    self.assertEqual(file.read(), text)
            page = "# Page\n" + report.BEGIN + "old\n" + report.END + "more\n"
            with open(path, "w", encoding="utf-8") as file:
                file.write(page)
            report.write_markdown(path, "new\n")
            with open(path, encoding="utf-8") as file:
                written = file.read()
        self.assertEqual(written, page.replace("old\n", "\nnew\n\n"))

    def test_numbers(self):
        for value, text in [
            (44695848, "44,695,848"),
            (1 / 1.5, "0.667"),
            (1234.5, "1,234"),
            (0.001234, "0.00123"),
            (0, "0"),
        ]:
            self.assertEqual(report.number(value), text)

    def test_the_machine_is_described(self):
        machine = report.describe_machine("today", "core 1", "AVX2", "2.0")
        self.assertEqual(set(self.machine) - set(machine), set())
        self.assertTrue(machine["cpu"])


class ModelsTest(unittest.TestCase):
    def test_sizes(self):
        self.assertEqual(models.count(models.resnet18()), 11173962)
        self.assertEqual(models.count(models.gpt2_small()), 124439808)
        self.assertEqual(models.count(models.SQUARE), 16 << 20)

    def test_bytes_of_the_powersgd_paper(self):
        # 183.7, 329.0 and 619.6 kB at rank 1, 2 and 4.
        wire = bench.importlib.import_module("benchmarks.wire_bytes")
        for rank, kilobytes in [(1, 183.7), (2, 329.0), (4, 619.6)]:
            size = wire.low_rank(rank)(models.resnet18(), None)
            self.assertAlmostEqual(size / 1000, kilobytes, delta=0.05)

    def test_what_is_compressed(self):
        self.assertEqual(models.factor_rank((512, 256, 3, 3), 4), 4)
        self.assertEqual(models.factor_rank((768,), 4), 0)
        self.assertEqual(models.factor_rank((4, 4), 4), 0)


class NativeTest(unittest.TestCase):
    def test_python_declares_what_the_library_defines(self):
        import native

        path = os.path.join(bench.FOLDER, "library.cc")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        defined = re.findall(r"coxswain_bench_(\w+)\(", text)
        self.assertEqual(sorted(defined), sorted(native._FUNCTIONS))

    def test_a_missing_hook_is_an_error_with_its_message(self):
        import native

        library = types.SimpleNamespace(
            model=lambda *_: None, error=lambda: b"no hook is called x"
        )
        with self.assertRaisesRegex(native.NativeError, "no hook is called"):
            native.Model(library, "x", [(2, 3)])


class HookChoiceTest(unittest.TestCase):
    def test_the_page_has_the_table_of_what_was_measured(self):
        # If not: tests/bench/hook_choice.py --update.
        _, shown, _ = hook_choice.between(hook_choice.read(hook_choice.PAGE))
        measured = hook_choice.read(hook_choice.MEASURED)
        self.assertEqual(shown, hook_choice.table(measured))

    def test_a_time_is_computing_and_the_link(self):
        # 2 MB at 1 Gbit/s are 16 ms.
        self.assertEqual(hook_choice.milliseconds((3, 2e6), 1), 19)

    def test_a_hook_pays_up_to_the_link_where_both_take_as_long(self):
        one, other = (9, 1e6), (1, 3e6)
        at = hook_choice.break_even(one, other)
        self.assertAlmostEqual(
            hook_choice.milliseconds(one, at),
            hook_choice.milliseconds(other, at),
        )
        self.assertIsNone(hook_choice.break_even((1, 1e6), (2, 3e6)))


if __name__ == "__main__":
    unittest.main()
