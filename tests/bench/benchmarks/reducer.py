"""What a step of the reducer costs when the communicator costs nothing."""

import models
from copier import Copier
from measure import Benchmark, Result, Row, Subject

# What is allowed: a part of the time that copying the gradients takes, and
# microseconds for each parameter.
COPY_PART = 0.01
MICROSECONDS = 2

LARGE = [(1024, 1024)] * 16
SMALL = [(1000,)] * 2000


def _benchmark(name, what, shapes):
    def row(mode, help_text, goal):
        return Row(
            "reducer_%s_%s" % (name, mode),
            "1% of a copy + 2 us a parameter",
            "ms",
            "a step of %s, one rank; %s" % (what, help_text),
            goal=goal,
        )

    modes = {
        "view": (dict(), "gradients lie in the buckets", 1),
        "copy": (dict(copies=True), "besides copying both ways", 1),
        "view_statistics": (dict(statistics=True), "with the norm", None),
        "copy_statistics": (
            dict(copies=True, statistics=True),
            "with the norm, besides copying both ways",
            None,
        ),
    }
    rows = {
        mode: row(mode, text, goal) for mode, (_, text, goal) in modes.items()
    }

    def measure(context):
        copier = Copier(context.native, 4 * models.count(shapes))
        subjects = dict(copier.subjects)
        for mode, (options, _, _) in modes.items():
            reducer = context.native.reducer_of(shapes, **options)
            subjects[mode] = Subject(reducer.step)
            subjects["copies of " + mode] = Subject(reducer.copy)
        times = context.interleave(subjects, samples=31, warm_up=4)
        copy = copier.milliseconds(times, 2 * copier.size)
        allowed = [
            COPY_PART * one + MICROSECONDS * len(shapes) / 1e3 for one in copy
        ]
        return [
            Result(rows[mode], _besides(times, mode), allowed)
            for mode in modes
        ]

    return Benchmark(list(rows.values()), measure)


def _besides(times, mode):
    """Milliseconds of each step less those of its copies, which were taken
    next to it."""
    return [
        1e3 * (step - copies)
        for step, copies in zip(times[mode], times["copies of " + mode])
    ]


BENCHMARKS = [
    _benchmark("large", "16 parameters of 1024x1024", LARGE),
    _benchmark("small", "2000 parameters of 1000", SMALL),
]
