"""What the scenes of the torch tests have in common, on a rank."""

import hashlib
import sys

import torch


def check(condition, *what):
    if not condition:
        raise AssertionError(what)


def raised(kind, function, *arguments, **named):
    try:
        function(*arguments, **named)
    except kind as error:
        return error
    raise AssertionError("%s did not raise %s" % (function, kind))


def digest(model):
    """Returns a text that is the same for the same parameters, bit by bit."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
    )


def samples(count=88):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 16, generator=generator)
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))


def main(scenes):
    torch.set_num_threads(1)
    scenes[sys.argv[1]]()
    print("DONE", flush=True)
