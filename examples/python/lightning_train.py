"""Fashion-MNIST by Lightning, each step agreed on by all ranks.

    coxswain run --nproc 2 -- python examples/python/lightning_train.py
"""

import fashion_mnist
import lightning.pytorch as pl
import torch

import coxswain.lightning
import coxswain.torch


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = fashion_mnist.Network()

    def training_step(self, batch, index):
        return self.network(*batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


options = fashion_mnist.arguments(__doc__)
session = coxswain.torch.init(plan={"accumulation": 4})
torch.set_num_threads(1)
module = Module()
data = fashion_mnist.load("train", options.data, options.samples)
trainer = pl.Trainer(
    accelerator="cpu",
    strategy="ddp",
    devices=session.world_size,
    max_epochs=options.epochs,
    callbacks=[coxswain.lightning.Follow()],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(module, torch.utils.data.DataLoader(data, 32, shuffle=True))

if session.rank == 0:
    right = fashion_mnist.accuracy(module.network, options.data)
    steps = trainer.global_step
    print("lightning: %d steps, accuracy %.1f%%" % (steps, 100 * right))
