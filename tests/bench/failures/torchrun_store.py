"""The store of torchrun's rendezvous, in a process of its own."""

import signal
import sys

import torch.distributed

store = torch.distributed.TCPStore(
    "127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False
)
signal.pause()
