"""One rank of transformers_test: trainer_scenes.py SCENE."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings

import torch

import coxswain
import coxswain.torch
from scene_support import check, digest, main, raised

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
    """The same, which does not say how much it is."""

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
    odd = trainer(gradient_accumulation_steps=2)
    error = raised(coxswain.InvalidArgument, attach, odd)
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
    session.store.set("digest/%d" % session.rank, seen[-1][1])
    other = session.store.get("digest/%d" % (1 - session.rank), timeout=60)
    check(other == seen[-1][1].encode(), "ranks are apart")


def killed():
    session = coxswain.torch.init(plan={"accumulation": 3})
    plan_changes(session)

    class Killer(TrainerCallback):
        def on_step_begin(self, args, state, control, **unused):
            if state.global_step == 4 and session.rank == 1:
                print("KILLED %.3f" % time.monotonic(), flush=True)
                os.kill(os.getpid(), signal.SIGKILL)

    made = trainer(
        callbacks=[Killer()], num_train_epochs=50, dataloader_num_workers=2
    )
    coxswain.transformers.attach(made)
    error = raised(coxswain.PeerLost, made.train)
    print("NAMED %.3f" % time.monotonic(), error.ranks, error, flush=True)


def plan_changes(session):
    """Another number of micro-batches is for the next training."""

    class Operator(TrainerCallback):
        def on_step_begin(self, args, state, control, **unused):
            if state.global_step == 2:
                if session.rank == 0:
                    subprocess.run(
                        [os.environ["COXSWAIN_CLI"], "plan", "set",
                         session.job, "accumulation=2"],
                        check=True, timeout=60, stdout=subprocess.DEVNULL,
                    )
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
    odd = coxswain.lightning.Follow()
    error = raised(coxswain.InvalidArgument, fit, Module(), 2, [odd])
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
