"""Fashion-MNIST by transformers.Trainer, each step agreed on by all ranks.

    coxswain run --nproc 2 -- python examples/python/trainer.py
"""

import tempfile

import fashion_mnist
import torch
from transformers import Trainer, TrainingArguments

import coxswain.torch
import coxswain.transformers


def collate(samples):
    images, labels = zip(*samples)
    return {"images": torch.stack(images), "labels": torch.stack(labels)}


options = fashion_mnist.arguments(__doc__)
session = coxswain.torch.init(plan={"accumulation": 4})
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    use_cpu=not torch.cuda.is_available(),
    num_train_epochs=options.epochs,
    per_device_train_batch_size=32,
    gradient_accumulation_steps=4,
    learning_rate=2e-3,
    lr_scheduler_type="constant",
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
torch.set_num_threads(1)
trainer = Trainer(
    model=fashion_mnist.Network(),
    args=arguments,
    train_dataset=fashion_mnist.load("train", options.data, options.samples),
    data_collator=collate,
)
coxswain.transformers.attach(trainer)
trainer.train()  # raises RanksDiffer, PeerLost, ...

if session.rank == 0:
    right = fashion_mnist.accuracy(trainer.model.cpu(), options.data)
    steps = trainer.state.global_step
    print("trainer: %d steps, accuracy %.1f%%" % (steps, 100 * right))
