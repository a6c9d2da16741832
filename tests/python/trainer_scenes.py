"""One rank of transformers_test: trainer_scenes.py SCENE."""

import os
import signal
import sys
import tempfile
import time
import warnings

import torch

import coxswain
import coxswain.torch
from scene_support import (
    check,
    digest,
    main,
    names_the_other,
    plan_set,
    raised,
    stall,
)

warnings.simplefilter("ignore")
if sys.argv[1] != "lightning":  # Each takes long.
    from transformers import Trainer, TrainerCallback, TrainingArguments

    import coxswain.transformers


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(4, 1)

    def forward(self, x=None, labels=None):
        y = self.inner(x).squeeze(-1)
        return {"loss": ((y - labels) ** 2).mean(), "logits": y}


class Data(torch.utils.data.Dataset):
    """44 samples: batches of 2 are 11 on each of 2 ranks."""

    def __len__(self):
        return 44

    def __getitem__(self, i):
        x = torch.randn(4, generator=torch.Generator().manual_seed(i))
        return {"x": x, "labels": x.sum()}


class Endless(torch.utils.data.IterableDataset):
    """The same, without its length."""

    def __iter__(self):
        data = Data()
        return iter([data[i] for i in range(44)])


def trainer(model=None, data=None, callbacks=(), **options):
    arguments = dict(
        output_dir=tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")),
        use_cpu=True,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=3,
        num_train_epochs=2,
        learning_rate=0.1,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    arguments.update(options)
    return Trainer(
        model=model or Net(),
        args=TrainingArguments(**arguments),
        train_dataset=data or Data(),
        callbacks=list(callbacks),
    )


def counting(attached):
    """Returns a list that becomes the micro-batches of each exchange."""
    counts = []
    schedule = attached.session.schedule
    announce = schedule.announce

    def count(micro_batches, **named):
        counts.append(micro_batches)
        announce(micro_batches, **named)

    schedule.announce = count
    return counts


def together():
    session = coxswain.torch.init(plan={"accumulation": 3})
    attach = coxswain.transformers.attach
    error = raised(coxswain.InvalidArgument, attach, "trainer")
    check("transformers.Trainer" in str(error), error)
    other = trainer(gradient_accumulation_steps=2)
    error = raised(coxswain.InvalidArgument, attach, other)
    check("the Trainer was made for gradient_accumulation_steps=2" in
          str(error), error)

    plain = trainer()
    plain.train()
    same = trainer(gradient_accumulation_steps=1)
    attached = attach(same)
    check(same.args.gradient_accumulation_steps == 3)
    counts = counting(attached)
    same.train()
    check(digest(same.model) == digest(plain.model), "other bits than alone")
    check(counts == [3, 3, 3, 2] * 2, counts)
    check(session.schedule.step == same.state.global_step == 8)
    endless()
    stops(session, same, attached)


def endless():
    """Of data without length a Trainer takes no step by a short window."""
    made = trainer(data=Endless(), max_steps=6)
    decisions = []
    coxswain.transformers.attach(made, on_decision=decisions.append)
    made.train()
    check(made.state.global_step == 6 and len(decisions) == 7, decisions)


def stops(session, made, attached):
    """It trains once more: a step is skipped, state is saved, all stop."""
    seen = []

    class Watch(TrainerCallback):
        def on_step_begin(self, args, state, control, **unused):
            if state.global_step == 1 and session.rank == 1:
                attached.skip("loss is odd")
            if state.global_step == 2 and session.rank == 1:
                session.request_checkpoint("to be sure")
            if state.global_step == 4 and session.rank == 0:
                attached.request_stop("enough")

        def on_step_end(self, args, state, control, model=None, **unused):
            seen.append((state.global_step, digest(model)))

    made.add_callback(Watch())
    made.train()
    check(session.schedule.step == 8 + 5, session.schedule.step)
    check([step for step, _ in seen] == [1, 2, 3, 4, 5], seen)
    check(seen[0][1] == seen[1][1] != seen[2][1], seen)
    check("enough" in attached.stopping, attached.stopping)
    saved = os.path.join(made.args.output_dir, "checkpoint-3")
    check(os.path.isdir(saved), os.listdir(made.args.output_dir))
    equal_everywhere(session, made)


def plan():
    plan_changes(coxswain.torch.init(plan={"accumulation": 3}))


def killed():
    session = coxswain.torch.init(plan={"accumulation": 3})

    class Killer(TrainerCallback):
        def on_step_begin(self, args, state, control, **unused):
            if state.global_step == 4 and session.rank == 1:
                print("KILLED %.3f" % time.monotonic(), flush=True)
                os.kill(os.getpid(), signal.SIGKILL)

    made = trainer(
        callbacks=[Killer()], num_train_epochs=50, dataloader_num_workers=2
    )
    coxswain.transformers.attach(made)
    names_the_other(session, coxswain.PeerLost, made.train)


def stopped():
    session = coxswain.torch.init(
        plan={"accumulation": 3, "progress_timeout": "2s"}
    )

    class Stopper(TrainerCallback):
        def on_step_begin(self, args, state, control, **unused):
            if state.global_step == 3 and session.rank == 1:
                stall()

    made = trainer(callbacks=[Stopper()])
    coxswain.transformers.attach(made)
    names_the_other(session, coxswain.Error, made.train)


def outlived():
    """The coordinator dies and comes back; rank 0 sees when it is enough."""
    session = coxswain.torch.init(plan={"accumulation": 3})
    attached = None

    class Watch(TrainerCallback):
        def on_step_end(self, args, state, control, **unused):
            if session.rank == 0 and state.global_step % 40 == 0:
                print("STEP", state.global_step, flush=True)
                if os.path.exists(os.environ["ENOUGH"]):
                    attached.request_stop("enough")

    made = trainer(callbacks=[Watch()], num_train_epochs=100000)
    attached = coxswain.transformers.attach(made)
    made.train()
    check("enough" in attached.stopping, attached.stopping)
    check(session.schedule.step == made.state.global_step)
    equal_everywhere(session, made)


def joins():
    """attach() joins, in a program that torchrun has started."""
    made = trainer()
    attached = coxswain.transformers.attach(made)
    made.train()
    session = coxswain.torch.session()
    check(session.schedule.step == made.state.global_step == 8)
    check(attached.runs[0].plan.accumulation == 3)
    check((session.job, str(session.rank)) == ("scene", os.environ["RANK"]))
    equal_everywhere(session, made)


def equal_everywhere(session, made):
    mine = digest(made.model)
    session.store.set("digest/%d" % session.rank, mine)
    other = session.store.get("digest/%d" % (1 - session.rank), timeout=60)
    check(other == mine.encode(), "ranks are apart")


def plan_changes(session):
    """Another number of micro-batches is for the next training."""

    class Operator(TrainerCallback):
        def on_step_begin(self, args, state, control, **unused):
            if state.global_step == 2:
                if session.rank == 0:
                    plan_set(session, "accumulation=2")
                session.barrier("the plan is set", timeout=60)

    made = trainer(callbacks=[Operator()])
    coxswain.transformers.attach(made)
    error = raised(coxswain.Error, made.train)
    check(error.code is coxswain.Code.FAILED_PRECONDITION, error)
    check("accumulation=2 at=generation" in str(error), error)
    check(made.args.gradient_accumulation_steps == 3)


# ---- Lightning ----


def lightning():
    import lightning.pytorch as pl

    import coxswain.lightning

    session = coxswain.torch.init(plan={"accumulation": 3})

    class Module(pl.LightningModule):
        def __init__(self, on_batch=lambda step, i: None):
            super().__init__()
            self.net = Net()
            self.on_batch = on_batch

        def training_step(self, batch, i):
            self.on_batch(self.global_step, i)
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(module, accumulation=3, callbacks=(), epochs=2):
        pl.Trainer(
            accelerator="cpu", devices=2, strategy="ddp", max_epochs=epochs,
            accumulate_grad_batches=accumulation, callbacks=list(callbacks),
            logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        ).fit(module, torch.utils.data.DataLoader(Data(), batch_size=2))

    plain = Module()
    fit(plain)
    other = coxswain.lightning.Follow()
    error = raised(coxswain.InvalidArgument, fit, Module(), 2, [other])
    check("accumulate_grad_batches=2" in str(error), error)
    follow = coxswain.lightning.Follow()
    same = Module()
    fit(same, 1, [follow])
    check(digest(same) == digest(plain), "other bits than alone")
    check(session.schedule.step == 8, session.schedule.step)

    def stop(step, i):
        if step == 2 and session.rank == 1:
            follow.run.request_stop("enough")

    fit(Module(stop), 3, [follow], epochs=50)
    check("enough" in follow.run.stopping, follow.run.stopping)


if __name__ == "__main__":
    main(globals())
