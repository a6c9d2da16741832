"""How fast this machine copies."""

from copier import Copier
from measure import Benchmark, Result, Row, gigabytes_per_second

COPY = Row(
    name="copy_bandwidth",
    peer_name="memcpy",
    unit="GB/s",
    help="streaming copy of 256 MiB against memcpy, read and written bytes",
    less_is_better=False,
)


def measure_copy(context):
    copier = Copier(context.native, 256 << 20)
    times = context.interleave(copier.subjects, samples=21)
    ours, peer = (
        gigabytes_per_second(2 * copier.size, times[name])
        for name in ("stream_copy", "memcpy")
    )
    return [Result(COPY, ours, peer)]


BENCHMARKS = [Benchmark([COPY], measure_copy)]
