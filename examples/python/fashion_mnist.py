"""Fashion-MNIST, and a small network for it, in place of a program's own."""

import argparse
import gzip
import os

import torch
from torch import nn

FOLDER = "/usr/share/datasets/fashion-mnist"


def arguments(description):
    """Returns the options of the examples' command lines."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", default=FOLDER)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--samples", type=int, default=60000)
    return parser.parse_args()


def _read(path, header):
    try:
        with gzip.open(path) as file:
            values = bytearray(file.read()[header:])
    except FileNotFoundError:
        raise SystemExit(
            "there is no %s: install the Debian package "
            "dataset-fashion-mnist, or give its folder with --data" % path
        ) from None
    return torch.frombuffer(values, dtype=torch.uint8)


def load(kind, folder=FOLDER, count=60000):
    """Returns "train" or "t10k": (image of 1 x 28 x 28, label) for each."""
    images = _read(os.path.join(folder, kind + "-images-idx3-ubyte.gz"), 16)
    labels = _read(os.path.join(folder, kind + "-labels-idx1-ubyte.gz"), 8)
    images = images.reshape(-1, 1, 28, 28)[:count].float() / 255
    return torch.utils.data.TensorDataset(images, labels[:count].long())


class Network(nn.Module):
    """A network whose output has the loss as well, as a Trainer expects."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(),
            nn.Linear(128, 10),
        )

    def forward(self, images, labels=None):
        scores = self.layers(images)
        if labels is None:
            return scores
        loss = nn.functional.cross_entropy(scores, labels)
        return {"loss": loss, "logits": scores}


def accuracy(model, folder=FOLDER, count=10000):
    """Returns the share of test images that a model classifies correctly, 0 to
    1."""
    images, labels = load("t10k", folder, count).tensors
    model.eval()
    with torch.no_grad():
        right = sum(
            int((model(x).argmax(1) == y).sum())
            for x, y in zip(images.split(500), labels.split(500))
        )
    return right / len(labels)
