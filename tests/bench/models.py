"""Shapes of the models that the benchmarks exchange the gradients of."""

import math

SQUARE = [(1024, 1024)] * 16


def gpt2_small():
    """124.4 M parameters: embeddings, 12 layers, the last layer norm."""
    width = 768
    shapes = [(50257, width), (1024, width)]
    for _ in range(12):
        shapes += [(width,), (width,)]  # layer norm
        shapes += [(3 * width, width), (3 * width,)]  # attention
        shapes += [(width, width), (width,)]
        shapes += [(width,), (width,)]  # layer norm
        shapes += [(4 * width, width), (4 * width,)]  # perceptron
        shapes += [(width, 4 * width), (width,)]
    return shapes + [(width,), (width,)]


def resnet18():
    """The ResNet-18 for CIFAR-10 of the PowerSGD paper: 11,173,962."""

    def convolution(out, into, size):
        return [(out, into, size, size), (out,), (out,)]  # and its batch norm

    shapes = convolution(64, 3, 3)
    into = 64
    for out in (64, 128, 256, 512):
        for block in range(2):
            shapes += convolution(out, into, 3) + convolution(out, out, 3)
            if into != out:
                shapes += convolution(out, into, 1)
            into = out
    return shapes + [(10, 512), (10,)]


def resnet50():
    """ResNet-50 for ImageNet: 25,557,032 parameters in 161 tensors."""

    def convolution(out, into, size):
        return [(out, into, size, size), (out,), (out,)]  # and its batch norm

    shapes = convolution(64, 3, 7)
    into = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += convolution(width, into, 1)
            shapes += convolution(width, width, 3)
            shapes += convolution(4 * width, width, 1)
            if block == 0:
                shapes += convolution(4 * width, into, 1)
            into = 4 * width
    return shapes + [(1000, 2048), (1000,)]


def count(shapes):
    return sum(math.prod(shape) for shape in shapes)


def matrix(shape):
    """(rows, columns) of a parameter as the low-rank hooks see it."""
    return shape[0], math.prod(shape[1:])


def factor_rank(shape, rank, min_compression_rate=2):
    """Columns of its factors; 0 if it is sent as it is."""
    if len(shape) < 2:
        return 0
    n, m = matrix(shape)
    r = min(n, m, rank)
    return r if (n + m) * r * min_compression_rate < n * m else 0
