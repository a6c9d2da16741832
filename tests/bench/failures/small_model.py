"""What the workers of all libraries have in common: arguments, the model, a
micro-batch, and the lines that they write."""

import argparse
import os
import time


def arguments():
    """A parser with what all workers take."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps-log", required=True, help="in which {slot} is")
    parser.add_argument("--step-ms", type=float, default=10)
    parser.add_argument("--width", type=int, default=256)
    return parser


class Log:
    """Lines as steps.py reads them. Each is one write: none is lost or cut
    short where the process is killed."""

    def __init__(self, path):
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def event(self, name, text=""):
        text = " ".join(str(text).split())[:400]
        self._write("E %d %s %s" % (time.monotonic_ns(), name, text))

    def commit(self, step, world, epoch):
        self._write("C %d %d %d %d" % (time.monotonic_ns(), step, world, epoch))

    def _write(self, line):
        os.write(self._file, (line.rstrip() + "\n").encode())


class Batches:
    """Micro-batches of one slot, and the time that a step takes."""

    def __init__(self, options, slot):
        import torch

        self._torch = torch
        self._seconds = options.step_ms / 1e3
        self._width = options.width
        self._generator = torch.Generator().manual_seed(slot)

    def loss(self, model):
        """Runs a forward pass; most of its time is slept, so that processes
        which share a core do not wait for each other."""
        began = time.monotonic()
        x = self._torch.randn(8, self._width, generator=self._generator)
        found = (model(x) - x).square().mean()
        # What is left are the backward pass and the exchange.
        left = self._seconds - 0.002 - (time.monotonic() - began)
        if left > 0:
            time.sleep(left)
        return found


def make(options):
    """Returns the model and its optimizer, the same everywhere."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = torch.nn.Linear(options.width, options.width)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def run(log, main):
    """Runs a worker; what it raises is written."""
    try:
        main()
    except BaseException as error:
        log.event("exception", repr(error))
        os._exit(3)
