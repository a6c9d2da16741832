"""What it costs that a step of PowerSGD can be taken back: time and memory."""

import ctypes
import re

import models
from gradients import Gradients
from measure import Benchmark, Result, Row, Subject, milliseconds

SPEC = "powersgd(rank=4,start_step=2)"

TIME = Row(
    "powersgd_rollback",
    "both steps committed",
    "ms",
    "a committed and a rolled back step of 16 matrices of 1024x1024",
)
MEMORY = Row(
    "powersgd_memory",
    "torch powerSGD_hook",
    "B/element",
    "peak memory besides the gradients, 16 matrices of 1024x1024",
)


def measure_time(context):
    committing = context.native.model_of(SPEC, models.SQUARE)
    wavering = context.native.model_of(SPEC, models.SQUARE)
    gradients = Gradients(committing, models.SQUARE)
    gradients.lend(wavering)

    def two_steps(model, second):
        model.step()
        model.step(commit=second)

    times = context.interleave(
        {
            "wavering": Subject(
                lambda: two_steps(wavering, False), gradients.fill
            ),
            "committing": Subject(
                lambda: two_steps(committing, True), gradients.fill
            ),
        },
        samples=15,
        warm_up=3,  # start_step
    )
    return [
        Result(
            TIME,
            milliseconds(times["wavering"]),
            milliseconds(times["committing"]),
        )
    ]


def _status(key):
    """Bytes, from /proc/self/status."""
    with open("/proc/self/status", encoding="utf-8") as file:
        found = re.search(r"^%s:\s*(\d+) kB" % key, file.read(), re.MULTILINE)
    return 1024 * int(found.group(1))


def peak_memory(work):
    """The bytes by which resident memory grew at most during work()."""
    # Memory that was freed and kept would hide what is taken now.
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w", encoding="utf-8") as file:
        file.write("5")  # resets the peak
    before = _status("VmRSS")
    work()
    return _status("VmHWM") - before


def measure_memory(context):
    import torch_peer

    model = context.native.model_of(SPEC, models.SQUARE)
    gradients = Gradients(model, models.SQUARE)
    torch_peer.group()  # once made, it stays
    elements = models.count(models.SQUARE)

    def ours():
        for _ in range(4):
            gradients.fill()
            model.step()

    def peer():
        hook = torch_peer.powersgd(gradients.buckets, gradients.shapes, 4)
        for _ in range(4):
            gradients.fill()
            hook.step()

    context.progress("memory")
    own, other = peak_memory(ours) / elements, peak_memory(peer) / elements
    return [Result(MEMORY, [own], [other])]


BENCHMARKS = [
    Benchmark([TIME], measure_time),
    Benchmark([MEMORY], measure_memory),
]
