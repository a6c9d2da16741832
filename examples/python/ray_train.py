"""Ray Train's TorchTrainer, each step agreed on by all ranks.

    coxswain serve --listen 127.0.0.1:7077 &
    python examples/python/ray_train.py 127.0.0.1:7077
"""

import sys

import ray.train.torch
import torch

import coxswain.ray
import coxswain.torch as cx


def train(config):
    session = cx.init(plan={"accumulation": 2})
    torch.manual_seed(session.rank)  # each rank has data of its own
    model = ray.train.torch.prepare_model(torch.nn.Linear(64, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    run = cx.follow(model, optimizer)
    while run.schedule.step < 60 and not run.stopping:
        with run.accumulate():
            x = torch.randn(32, 64)
            loss = (model(x) - x[:, :16]).square().mean()
            (loss * run.loss_scale).backward()
        if run.sync:
            optimizer.step()
            optimizer.zero_grad()
    assert session.rank == ray.train.get_context().get_world_rank()
    ray.train.report({"loss": loss.item()})
    if session.rank == 0:
        print("ray: %d steps, loss %.3f" % (run.schedule.step, loss.item()))


if __name__ == "__main__":
    trainer = ray.train.torch.TorchTrainer(
        train,
        torch_config=coxswain.ray.Config(coordinator=sys.argv[1]),
        scaling_config=ray.train.ScalingConfig(num_workers=2),
    )
    trainer.fit()
