"""How fast this machine copies: what other benchmarks are held against."""

from measure import Subject, faster, gigabytes_per_second


class Copier:
    """Both ways to copy `size` bytes, as subjects of an interleaved run.

    `size` should be half of what the subject under test keeps in use, because
    a copy that fits a cache is faster than one that does not.
    """

    def __init__(self, native, size):
        import torch

        self.size = size
        source = torch.ones(size, dtype=torch.uint8)
        target = torch.zeros(size, dtype=torch.uint8)
        to, start = target.data_ptr(), source.data_ptr()
        self._memory = source, target
        self.subjects = {
            "memcpy": Subject(lambda: native.memcpy(to, start, size)),
            "stream_copy": Subject(lambda: native.stream_copy(to, start, size)),
        }

    def bandwidth(self, times):
        """GB/s by sample, of the faster way, read and written bytes."""
        best = faster(times["memcpy"], times["stream_copy"])
        return gigabytes_per_second(2 * self.size, best)

    def milliseconds(self, times, moved):
        """How long `moved` bytes (read or written) take at that bandwidth."""
        return [moved / value / 1e6 for value in self.bandwidth(times)]
