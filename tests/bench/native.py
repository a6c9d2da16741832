"""The library under test, as declared in library.cc.

Memory is passed as addresses (a torch tensor's data_ptr()); the caller
keeps it alive. A failure raises NativeError with the library's own message.
"""

import ctypes

P = ctypes.c_void_p
I64 = ctypes.c_int64
TEXT = ctypes.c_char_p
INT = ctypes.c_int

# Name -> (result, arguments).
_FUNCTIONS = {
    "error": (TEXT, []),
    "target": (TEXT, []),
    "memcpy": (None, [P, P, I64]),
    "stream_copy": (None, [P, P, I64]),
    "narrow": (None, [P, I64, TEXT, P, INT]),
    "widen": (None, [P, TEXT, P, I64]),
    "orthogonalise": (None, [P, P, P, I64]),
    "model": (P, [TEXT, INT, I64, P, P]),
    "model_free": (None, [P]),
    "model_buckets": (I64, [P]),
    "model_bucket": (I64, [P, I64, P, P, I64]),
    "model_memory": (None, [P, INT, I64, P]),
    "model_step": (INT, [P, INT]),
    "model_payload_bytes": (I64, [P]),
    "reducer": (P, [INT, INT, I64, P, P]),
    "reducer_free": (None, [P]),
    "reducer_step": (INT, [P]),
    "reducer_copy": (None, [P]),
}


class NativeError(Exception):
    pass


class Native:
    def __init__(self, path):
        library = ctypes.CDLL(path)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, "coxswain_bench_" + name)
            function.restype = result
            function.argtypes = arguments
            setattr(self, name, function)

    def model_of(self, spec, shapes, world_size=1):
        return Model(self, spec, shapes, world_size)

    def reducer_of(self, shapes, **options):
        return Reducer(self, shapes, **options)


def _shapes(shapes):
    """As library.cc takes them: how many, dimensions, extents."""
    extents = [extent for shape in shapes for extent in shape]
    return (
        len(shapes),
        (I64 * len(shapes))(*map(len, shapes)),
        (I64 * len(extents))(*extents),
    )


class Reducer:
    """A reducer with a free communicator; see free_reducer.h."""

    def __init__(self, native, shapes, copies=False, statistics=False):
        self._native = native
        self._reducer = native.reducer(
            int(copies), int(statistics), *_shapes(shapes)
        )
        if not self._reducer:
            raise NativeError(native.error().decode())

    def step(self):
        if not self._native.reducer_step(self._reducer):
            raise NativeError(self._native.error().decode())

    def copy(self):
        """The copies of a step, and nothing else."""
        self._native.reducer_copy(self._reducer)

    def __del__(self):
        if getattr(self, "_reducer", None):
            self._native.reducer_free(self._reducer)


class Model:
    """Gradients of float32 parameters, and the hooks that average them.

    `layout` has for each bucket its number of elements and the indices of its
    parameters, in order and without gaps. See model.h.
    """

    def __init__(self, native, spec, shapes, world_size=1):
        self._native = native
        self._model = native.model(
            spec.encode(), world_size, *_shapes(shapes)
        )
        if not self._model:
            raise NativeError(native.error().decode())
        self.world_size = world_size
        self.layout = [
            self._bucket(index, len(shapes))
            for index in range(native.model_buckets(self._model))
        ]
        self._memory = {}

    def _bucket(self, index, capacity):
        elements = I64()
        parameters = (I64 * capacity)()
        count = self._native.model_bucket(
            self._model, index, ctypes.byref(elements), parameters, capacity
        )
        return elements.value, list(parameters[:count])

    def use(self, bucket, tensor, rank=0):
        """Lets a bucket's gradients lie in a float32 tensor."""
        self._memory[rank, bucket] = tensor
        self._native.model_memory(
            self._model, rank, bucket, tensor.data_ptr()
        )

    def step(self, commit=True):
        if not self._native.model_step(self._model, int(commit)):
            raise NativeError(self._native.error().decode())

    def payload_bytes(self):
        return self._native.model_payload_bytes(self._model)

    def __del__(self):
        if getattr(self, "_model", None):
            self._native.model_free(self._model)
