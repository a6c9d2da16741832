"""The model and the inputs of the golden cases.

tests/golden/golden_inputs.cc computes the same inputs bit by bit, so that no
file has to hold them.
"""

import math

import numpy as np

# By registration index. The two 8 x 10 matrices have the same shape, with
# another compressed one between them in their bucket's order.
PARAMETERS = [
    ("conv.weight", (6, 3, 3, 3)),
    ("conv.bias", (12,)),
    ("first.weight", (8, 10)),
    ("wide.weight", (18, 15)),
    ("second.weight", (8, 10)),
    ("row.weight", (1, 9)),
    ("column.weight", (7, 1)),
    ("tiny.weight", (2, 2, 2)),
    ("scale", (3,)),
]
# From the last parameter to the first, as in a backward pass.
BUCKETS = [[8, 7, 6, 5, 4, 3, 2], [1, 0]]

# What the cases of parameter averaging hold: it is element by element.
AVERAGED = [1, 2, 5, 6, 7, 8]

# Streams of numbers; the last three are training.py's.
GRADIENTS = 1
INITIAL = 2
TRAINING_INITIAL = 3
TRAINING_INPUT = 4
TRAINING_TARGET = 5

# The gradients of this one are subnormal in float16.
_SMALL = 1
_SMALL_SCALE = np.float32(2.0**-14)

_U64 = np.uint64


def _mix(x):
    """base/random.h: Mix64."""
    x = x + _U64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U64(27))) * _U64(0x94D049BB133111EB)
    return x ^ (x >> _U64(31))


def uniform(stream, step, rank, part, count):
    """float64, uniform over the multiples of 2^-26 in [-2^-3, 2^-3): exact in
    float32, too."""
    key = np.zeros(1, _U64)
    for number in (stream, step, rank, part):
        key = _mix(key + _U64(number))
    bits = _mix(key + np.arange(count, dtype=_U64))
    whole = (bits >> _U64(40)).astype(np.int64) - (1 << 23)
    return whole.astype(np.float64) * 2.0**-26


def values(stream, step, rank, parameter):
    """float32, in a parameter's shape."""
    shape = PARAMETERS[parameter][1]
    result = uniform(stream, step, rank, parameter, math.prod(shape))
    result = result.astype(np.float32)
    if stream == GRADIENTS and parameter == _SMALL:
        result *= _SMALL_SCALE
    return result.reshape(shape)
