"""Gradients of a model, in the reducer's buckets."""

import models


class Gradients:
    """The buckets of a model (native.Model) and values to fill them with.

    Several models of the same shapes may use the same memory in turn.
    """

    def __init__(self, model, shapes):
        import torch

        total = models.count(shapes)
        self._values = torch.randn(total)
        self._memory = torch.empty(total)
        self.buckets, self.shapes = [], []
        offset = 0
        for elements, parameters in model.layout:
            self.buckets.append(self._memory[offset : offset + elements])
            self.shapes.append([shapes[number] for number in parameters])
            offset += elements
        self.lend(model)
        self.fill()

    def lend(self, model, rank=0):
        for index, bucket in enumerate(self.buckets):
            model.use(index, bucket, rank)

    def fill(self):
        self._memory.copy_(self._values)
