"""Ranks as threads of one process, for PyTorch's communication hooks.

PyTorch's hook functions reach other ranks only through dist.all_reduce and
the size of a process group. run_ranks() puts stand-ins in their place, so that
several ranks need neither Gloo nor processes. The hooks' own code is untouched.

One rank computes at a time: the others wait in a collective, or for their
turn. So the global random generator of torch, which the hooks reseed, is never
shared between two ranks.
"""

import contextlib
import threading
from unittest import mock

import torch
import torch.distributed as dist

_TURN = threading.Condition(threading.RLock())
_HERE = threading.local()


class Group:
    """Some of the ranks; stands in for a dist.ProcessGroup."""

    def __init__(self, ranks):
        self.ranks = list(ranks)
        self.parts = {}
        self.meetings = 0

    def size(self):
        return len(self.ranks)


class _Work:
    """What an asynchronous collective returns; it has ended."""

    def __init__(self, tensor):
        self.future = torch.futures.Future()
        self.future.set_result([tensor])

    def get_future(self):
        return self.future


class _World:
    """The ranks that run, and whether one has failed."""

    def __init__(self, size):
        self.group = Group(range(size))
        self.failure = None


def rank():
    return _HERE.rank


def world():
    return _HERE.world.group


def _sum_in_rank_order(group):
    """As Coxswain's in-process communicator: a float16 or bfloat16 sum is
    rounded after each addition."""
    parts = [group.parts[member] for member in group.ranks]
    total = parts[0].clone()
    for part in parts[1:]:
        total.add_(part)
    for part in parts:
        part.copy_(total)


def _all_reduce(tensor, group=None, async_op=False):
    group = group or world()
    group.parts[rank()] = tensor
    if len(group.parts) == group.size():
        _sum_in_rank_order(group)
        group.parts = {}
        group.meetings += 1
        _TURN.notify_all()
    else:
        meeting = group.meetings
        here = _HERE.world
        _TURN.wait_for(lambda: here.failure or group.meetings != meeting)
        if here.failure:
            raise RuntimeError("another rank failed")
    return _Work(tensor) if async_op else None


def new_subgroups(group_size, group=None):
    """This rank's group of `group_size` neighbours; the same object on all
    its members. As dist.new_subgroups, (own group, all groups)."""
    group = group or world()
    if not hasattr(group, "subgroups"):
        group.subgroups = {}
    if group_size not in group.subgroups:
        group.subgroups[group_size] = [
            Group(group.ranks[first : first + group_size])
            for first in range(0, group.size(), group_size)
        ]
    groups = group.subgroups[group_size]
    return next(g for g in groups if rank() in g.ranks), groups


@contextlib.contextmanager
def _patched():
    """The collectives replaced, and no accelerator, whatever this machine
    has: the hooks synchronise a device if there is one."""
    with contextlib.ExitStack() as stack:
        for target, name, stand_in in (
            (dist, "all_reduce", _all_reduce),
            (dist, "new_subgroups", new_subgroups),
            (dist, "get_world_size", lambda group=None: group.size()),
            (dist, "_rank_not_in_group", lambda g: rank() not in g.ranks),
            (torch.cuda, "is_available", lambda: False),
            (torch.accelerator, "is_available", lambda: False),
        ):
            stack.enter_context(mock.patch.object(target, name, stand_in))
        yield


def run_ranks(size, function):
    """Calls function() on `size` ranks; returns what they return, by rank."""
    here = _World(size)
    results = [None] * size

    def run(own_rank):
        _HERE.rank = own_rank
        _HERE.world = here
        with _TURN:
            try:
                results[own_rank] = function()
            except BaseException as error:  # the others must not wait for it
                here.failure = here.failure or error
                _TURN.notify_all()

    with _patched():
        threads = [
            threading.Thread(target=run, args=(r,)) for r in range(size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if here.failure:
        raise here.failure
    return results
