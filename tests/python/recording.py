"""Records what exchange="coxswain" was given, and what it has left of it, for
reduce_in_cpp.cc."""

import os

import torch


class Recording:
    """The steps of a run, from when this is made to `save`.

    The run's model has parameters of float32 only.
    """

    def __init__(self, run):
        self._run = run
        self._hook = run.plan.hook
        self._steps = []
        self._open = []
        exchange = run._exchange
        self._launch, self._wait = exchange.launch, exchange.wait
        exchange.launch, exchange.wait = self._launched, self._waited

    def save(self, path):
        """Writes it to a file of this rank. Raises if the hook has changed."""
        model = self._run._model
        if self._run.plan.hook != self._hook:
            raise AssertionError(self._run.plan.hook)
        with open(path, "wb") as file:
            _line(file, "hook", self._hook)
            for name, parameter in model.module.named_parameters():
                _line(file, "parameter", name, *parameter.shape)
            for step in self._steps:
                _line(file, "step")
                for parameters, gradients, averages in step:
                    _line(file, "bucket", len(gradients), *parameters)
                    file.write(gradients.numpy().tobytes())
                    file.write(averages.numpy().tobytes())

    def _launched(self, bucket):
        numbers = {
            id(parameter): number
            for number, parameter in enumerate(
                self._run._model.module.parameters()
            )
        }
        parameters = [numbers[id(one)] for one in bucket.parameters()]
        buffer = bucket.buffer()
        assert buffer.dtype == torch.float32, buffer.dtype
        self._open.append((parameters, buffer.clone(), buffer))
        return self._launch(bucket)

    def _waited(self, for_group=False):
        self._wait(for_group)
        self._steps.append([
            (parameters, gradients, averages.clone())
            for parameters, gradients, averages in self._open
        ])
        self._open = []


def _line(file, *words):
    file.write((" ".join(map(str, words)) + "\n").encode())


def path_of(scene, number):
    """Returns where this rank leaves a recording of a scene."""
    return os.path.join(
        os.environ["SCENES_FOLDER"],
        "%s-%02d.%s.recording"
        % (scene, number, os.environ["COXSWAIN_LOCAL_RANK"]),
    )
