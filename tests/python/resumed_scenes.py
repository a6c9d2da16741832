"""Scenes of hook_state_test: checkpoints that Accelerate, Trainer and Lightning
write."""

import importlib
import os
import sys
import warnings

import lightning.pytorch as pl
import scene_support
import torch
from accelerate import Accelerator
from attempts import attempts
from hook_state_scenes import network, remembered, step, tell
from scene_support import check
from transformers import Trainer, TrainerCallback, TrainingArguments

import coxswain.accelerate
import coxswain.lightning
import coxswain.transformers
import coxswain.torch as cx

warnings.simplefilter("ignore")
STEPS = 4  # of an attempt
FOLDER = os.path.join(os.environ.get("SCENES_FOLDER", ""), "saved")


def joined():
    """Returns how many steps earlier attempts have taken."""
    cx.init(plan={"hook": "powersgd(rank=2,start_step=2)"})
    return STEPS * int(os.environ["COXSWAIN_ATTEMPT"])


def accelerated():
    begin = joined()
    accelerator = Accelerator(cpu=True)
    attached = coxswain.accelerate.attach(accelerator, exchange="coxswain")
    model = network()
    model, optimizer = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=0.01)
    )
    if begin:
        accelerator.load_state(FOLDER)
    tell("BEGINS", "accelerated", remembered(*attached.runs))
    for number in range(begin, begin + STEPS):
        step(model, optimizer, number)
    tell("ENDS", "accelerated", remembered(*attached.runs))
    accelerator.save_state(FOLDER)
    accelerator.wait_for_everyone()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, x=None, labels=None):
        y = self.inner(x).squeeze(-1)
        return {"loss": ((y - labels) ** 2).mean(), "logits": y}


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, i):
        x = torch.randn(16, generator=torch.Generator().manual_seed(i))
        return {"x": x, "labels": x.sum()}


def trainer():
    begin = joined()
    made = Trainer(
        model=Net(),
        args=TrainingArguments(
            output_dir=FOLDER + "_by_trainer",
            use_cpu=True,
            per_device_train_batch_size=2,
            max_steps=begin + STEPS,
            learning_rate=0.01,
            report_to=[],
            save_strategy="steps",
            save_steps=STEPS,
            logging_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=Data(),
    )
    attached = coxswain.transformers.attach(made, exchange="coxswain")

    class Told(TrainerCallback):
        def on_train_begin(self, args, state, control, **unused):
            check(state.global_step == begin, state.global_step)
            tell("BEGINS", "trainer", remembered(*attached.runs))

        def on_train_end(self, args, state, control, **unused):
            tell("ENDS", "trainer", remembered(*attached.runs))

    made.add_callback(Told())
    made.train(resume_from_checkpoint=bool(begin))


def lightning():
    begin = joined()
    follow = coxswain.lightning.Follow(exchange="coxswain")

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, i):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    class Told(pl.Callback):
        def on_train_start(self, trainer, module):
            check(trainer.global_step == begin, trainer.global_step)
            tell("BEGINS", "lightning", remembered(follow.run))

        def on_train_end(self, trainer, module):
            tell("ENDS", "lightning", remembered(follow.run))

    path = FOLDER + ".ckpt"
    made = pl.Trainer(
        accelerator="cpu", devices=cx.session().world_size, strategy="ddp",
        max_steps=begin + STEPS, max_epochs=-1, callbacks=[follow, Told()],
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = torch.utils.data.DataLoader(Data(), batch_size=2)
    made.fit(Module(), data, ckpt_path=path if begin else None)
    made.save_checkpoint(path)


def together():
    importlib.import_module("torch._dynamo")  # optimizers do that
    attempts(
        globals(),
        [
            (scene, scene, attempt, ranks)
            for scene in ("accelerated", "trainer", "lightning")
            for attempt, ranks in enumerate((2, 3, 2))
        ],
        most=3,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    scene_support.whole_lines()
    globals()[sys.argv[1]]()
