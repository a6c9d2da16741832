"""What PyTorch's DistributedDataParallel makes of a small model.

Two processes train over Gloo, in float64, with the unchanged classes of torch.
Every operation of the model is one of + - * / sqrt, so that the results depend
on no mathematics library.
"""

import contextlib
import dataclasses
import datetime
import math
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import inputs

RANKS = 2
STEPS = 50
BATCH = 4
LEARNING_RATE = 0.05
MOMENTUM = 0.9
SNAPSHOTS = (0, 1, 2, 10, STEPS)  # after how many steps parameters are kept
BUCKET_BYTES = 1024  # several buckets
REPLAYED_STEPS = 20


class Net(nn.Module):
    """As in training_net.h: a parameter that lies channels-last, a layer that
    is used twice, a scalar."""

    def __init__(self, branches):
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3, padding=1)
        self.norm = nn.LayerNorm(54)
        self.hidden = nn.Linear(54, 12)
        self.twice = nn.Linear(12, 12)
        self.branches = branches
        if branches:
            self.branch = nn.Linear(12, 12)
            self.idle = nn.Linear(3, 2)  # no pass uses it
        self.out = nn.Linear(12, 4)
        self.scale = nn.Parameter(torch.ones(()))
        self.double()
        self.conv.to(memory_format=torch.channels_last)
        with torch.no_grad():
            for index, (name, parameter) in enumerate(self.named_parameters()):
                values = torch.from_numpy(
                    inputs.uniform(
                        inputs.TRAINING_INITIAL, 0, 0, index, parameter.numel()
                    )
                )
                one = name in ("norm.weight", "scale")
                values = 1 + values if one else 2 * values
                parameter.copy_(values.view(parameter.shape))

    def forward(self, x, use_branch):
        x = functional.relu(self.conv(x))
        x = self.norm(functional.avg_pool2d(x, 2).flatten(1))
        x = functional.softsign(self.hidden(x))
        if self.branches and use_branch:
            x = x + functional.softsign(self.branch(x))
        x = functional.softsign(self.twice(x))
        x = functional.softsign(self.twice(x))
        return self.scale * self.out(x)


@dataclasses.dataclass
class Case:
    """How one case trains."""

    passes: tuple = (1,)  # backward passes of a step, in turn
    mean: bool = False  # each loss is divided by that number
    max_norm: float = 0.0
    branches: bool = False
    batches: tuple = (STEPS,) * RANKS  # steps for which a rank has data

    def metadata(self):
        def text(numbers):
            return "+".join(str(number) for number in numbers)

        return {
            "kind": "training",
            "spec": "allreduce",
            "ranks": str(RANKS),
            "steps": str(STEPS),
            "batch": str(BATCH),
            "learning_rate": str(LEARNING_RATE),
            "momentum": str(MOMENTUM),
            "snapshots": text(SNAPSHOTS),
            "bucket_bytes": str(BUCKET_BYTES),
            "passes": text(self.passes),
            "mean": str(int(self.mean)),
            "max_norm": str(self.max_norm),
            "branches": str(int(self.branches)),
            "batches": text(self.batches),
        }


CASES = {
    "plain": Case(),
    "accumulate": Case(passes=(3,), mean=True),
    "no_sync": Case(passes=(2, 1, 3)),
    "clip": Case(max_norm=0.25),
    "unused": Case(branches=True),
    "unused_accumulate": Case(passes=(3,), mean=True, branches=True),
    "uneven": Case(batches=(STEPS, STEPS - 12)),
}


def uses_branch(step, micro, rank):
    """In turn no rank, rank 0, rank 1, both; in the first pass of a step only,
    which need not be the one that exchanges."""
    return micro == 0 and step % 4 in (rank + 1, 3)


def batch_of(stream, step, micro, rank, shape):
    values = inputs.uniform(stream, step, rank, micro, math.prod(shape))
    return torch.from_numpy(8 * values).view(shape)  # within [-1, 1)


def loss_of(model, step, micro, rank):
    x = batch_of(inputs.TRAINING_INPUT, step, micro, rank, (BATCH, 2, 6, 6))
    target = batch_of(inputs.TRAINING_TARGET, step, micro, rank, (BATCH, 4))
    out = model(x, uses_branch(step, micro, rank))
    return functional.mse_loss(out, target)


def flatten(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


class Trainer:
    """One rank's training of one case."""

    def __init__(self, case, rank, comm_hook=None, **options):
        self.case = case
        self.rank = rank
        self.net = Net(case.branches)
        self.ddp = DistributedDataParallel(
            self.net,
            bucket_cap_mb=BUCKET_BYTES / 2**20,
            find_unused_parameters=case.branches,
            **options,
        )
        if comm_hook is not None:
            self.ddp.register_comm_hook(None, comm_hook)
        self.optimizer = torch.optim.SGD(
            self.net.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM
        )
        self.losses = torch.zeros(STEPS, max(case.passes)).double()
        self.norms = torch.zeros(STEPS).double()
        self.snapshots = [flatten(self.net.parameters())]

    def step(self, step):
        passes = self.case.passes[step % len(self.case.passes)]
        for micro in range(passes):
            last = micro == passes - 1
            with contextlib.nullcontext() if last else self.ddp.no_sync():
                loss = loss_of(self.ddp, step, micro, self.rank)
                (loss / passes if self.case.mean else loss).backward()
            self.losses[step, micro] = loss.item()
        if self.case.max_norm:
            self.norms[step] = nn.utils.clip_grad_norm_(
                self.net.parameters(), self.case.max_norm
            )
        if self.case.branches:
            assert self.net.idle.weight.grad is None
        self.optimizer.step()
        self.optimizer.zero_grad()
        if step + 1 in SNAPSHOTS[:-1]:
            self.snapshots.append(flatten(self.net.parameters()))

    def run(self):
        uneven = len(set(self.case.batches)) > 1
        with self.ddp.join(divide_by_initial_world_size=False, enable=uneven):
            for step in range(self.case.batches[self.rank]):
                self.step(step)
        # At the end of join all ranks have the parameters of the last one.
        self.snapshots.append(flatten(self.net.parameters()))
        result = {
            "parameters": torch.stack(self.snapshots),
            "losses": self.losses,
        }
        if self.case.max_norm:
            result["norms"] = self.norms
        return result

    def buckets(self):
        """Registration indices, as "5 4 3 2, 1 0"; empty: not rebuilt."""
        data = self.ddp._get_ddp_logging_data()
        rebuilt = data["has_rebuilt_buckets"] == 1
        return data["rebuilt_per_bucket_param_indices"] if rebuilt else ""


def check_same(results):
    """Bit by bit."""
    for other in results[1:]:
        for name, tensor in other.items():
            assert torch.equal(tensor, results[0][name]), name


def run_case(case, rank):
    """Also with the options that must not change a bit."""
    variants = [
        {},
        {"gradient_as_bucket_view": True},
        # Dividing by 2 is exact, before a sum and after it.
        {"comm_hook": default_hooks.allreduce_hook},
    ]
    if case == Case():
        variants.append({"static_graph": True})
    if len(set(case.batches)) > 1:
        variants.pop(2)  # hooks divide by the number of ranks all the same
    trainers = [Trainer(case, rank, **options) for options in variants]
    results = [trainer.run() for trainer in trainers]
    check_same(results)
    buckets = trainers[0].buckets()
    assert case.branches == (buckets == ""), buckets
    assert case.branches or "," in buckets
    return results[0], buckets


class Recorder(Trainer):
    """Keeps this rank's own gradients, in float32."""

    def __init__(self, rank):
        super().__init__(Case(), rank)
        self.gradients = []

    def step(self, step):
        if step < REPLAYED_STEPS:
            own = torch.autograd.grad(
                loss_of(self.net, step, 0, self.rank), self.net.parameters()
            )
            self.gradients.append([gradient.float() for gradient in own])
        super().step(step)


def replay(recorded, hook, dtype, **options):
    """The gradients that DDP makes of the recorded ones with a hook."""
    net = Net(False).float()
    parameters = list(net.parameters())
    # DDP wants a module whose forward gives the loss.
    net.forward = lambda gradients: sum(
        (parameter * gradient).sum()
        for parameter, gradient in zip(parameters, gradients)
    )
    ddp = DistributedDataParallel(
        net, bucket_cap_mb=BUCKET_BYTES / 2**21, **options
    )
    ddp.register_comm_hook(None, hook)
    steps = []
    for gradients in recorded:
        ddp.zero_grad()
        ddp(gradients).backward()
        steps.append(flatten([p.grad for p in parameters]))
    result = torch.stack(steps)
    assert torch.equal(result, result.to(dtype).float())  # nothing is lost
    return {"out": result.to(dtype)}


def run_replay(rank):
    recorder = Recorder(rank)
    recorder.run()
    result = {"gradients": torch.stack([*map(flatten, recorder.gradients)])}
    for name, hook, dtype in (
        ("fp16", default_hooks.fp16_compress_hook, torch.float16),
        ("bf16", default_hooks.bf16_compress_hook, torch.bfloat16),
    ):
        outs = [
            replay(recorder.gradients, hook, dtype, gradient_as_bucket_view=v)
            for v in (False, True)
        ]
        check_same(outs)
        result[name] = outs[0]["out"]
    return result


def run_rank(rank, folder):
    """All cases, on one rank; leaves the results in the folder."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting_point",
        rank=rank,
        world_size=RANKS,
        timeout=datetime.timedelta(seconds=60),
    )
    results = {name: run_case(case, rank) for name, case in CASES.items()}
    results["replay"] = run_replay(rank)
    torch.save(results, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def merge(case, ranks):
    """One file's tensors: what all ranks must share, and losses by rank."""
    first = ranks[0]
    shared = [dict(result) for result in ranks]
    for result in shared:
        del result["losses"]
        if len(set(case.batches)) > 1:  # their end only
            result["parameters"] = result["parameters"][-1]
    check_same(shared)
    losses = torch.stack([result["losses"] for result in ranks], dim=1)
    return {**first, "losses": losses}


def cases():
    """(name, metadata, tensors)"""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run_rank, (folder,), RANKS)
        ranks = [torch.load(f"{folder}/{rank}.pt") for rank in range(RANKS)]
    for name, case in CASES.items():
        results, buckets = zip(*(rank[name] for rank in ranks))
        assert len(set(buckets)) == 1, buckets
        metadata = {**case.metadata(), "buckets": buckets[0]}
        yield f"training_{name}_w{RANKS}", metadata, merge(case, results)
    results = [rank["replay"] for rank in ranks]
    gradients = [result.pop("gradients") for result in results]
    check_same(results)
    metadata = {
        "kind": "replay",
        "ranks": str(RANKS),
        "bucket_bytes": str(BUCKET_BYTES // 2),  # of float32
    }
    tensors = {"gradients": torch.stack(gradients, dim=1), **results[0]}
    yield f"replay_w{RANKS}", metadata, tensors
