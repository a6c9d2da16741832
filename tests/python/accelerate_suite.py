"""Accelerate's own scripts, as they are in its package, one after the other.

    coxswain run --follow --nproc 2 -- python accelerate_suite.py MODULE...

They are for GPUs in two places, in which CPUs count as such here: one gives
device_ids to a model, which torch refuses then, and one waits for ever where
join_uneven_inputs() does nothing.
"""

import runpy
import sys

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch.nn.parallel import DistributedDataParallel

import coxswain.torch
from scene_support import whole_lines

made = DistributedDataParallel.__init__
models = []


def on_cpu(self, module, device_ids=None, output_device=None, **named):
    if next(module.parameters()).device.type == "cpu":
        device_ids = output_device = None
    made(
        self, module, device_ids=device_ids, output_device=output_device,
        **named
    )
    models.append(type(self))


def main():
    torch.set_num_threads(1)
    whole_lines()
    DistributedDataParallel.__init__ = on_cpu
    Accelerator.multi_device = property(
        lambda self: self.distributed_type == "MULTI_CPU"
    )
    for name in sys.argv[1:]:
        models.clear()
        runpy.run_module(
            "accelerate.test_utils.scripts." + name, run_name="__main__"
        )
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        print("OK", name, flush=True)
    coxswain.torch.session()  # They were followed.


if __name__ == "__main__":
    main()
