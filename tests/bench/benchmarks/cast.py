"""Between float32 and 16 bits, one pass over 64 Mi elements."""

from copier import Copier
from measure import Benchmark, Result, Row, Subject
from measure import gigabytes_per_second, milliseconds

COUNT = 64 << 20
BYTES = 6 * COUNT  # four on the wide side, two on the narrow one
DIVISOR = 3  # the number of ranks; one that is no power of two
TYPES = {"bf16": "bfloat16", "fp16": "float16"}


def _rows(short, name):
    def bandwidth(direction, what):
        return Row(
            "%s_%s_bandwidth" % (direction, short),
            "copy",
            "GB/s",
            "%s at 6 bytes an element against the copy bandwidth" % what,
            goal=0.9,
            less_is_better=False,
        )

    narrow = "float32 / %d -> %s" % (DIVISOR, name)
    widen = "%s -> float32" % name
    return {
        "to": Row(
            "cast_" + short,
            "torch x.to(%s)" % name,
            "ms",
            narrow + " against torch, which does not divide",
            goal=1.5,
        ),
        "copy_": Row(
            "cast_%s_in_place" % short,
            "torch out.copy_(x)",
            "ms",
            "the same against torch into memory that is there already",
        ),
        "narrow_bandwidth": bandwidth("cast", narrow),
        "uncast": Row(
            "uncast_" + short,
            "torch out.copy_(x)",
            "ms",
            widen + " against torch into memory that is there already",
        ),
        "uncast_to": Row(
            "uncast_%s_new" % short,
            "torch x.to(float32)",
            "ms",
            "the same against torch into new memory",
        ),
        "widen_bandwidth": bandwidth("uncast", widen),
    }


def _benchmark(short, name):
    rows = _rows(short, name)

    def measure(context):
        import torch

        native, dtype = context.native, getattr(torch, name)
        wide = torch.randn(COUNT)
        narrow = torch.empty(COUNT, dtype=dtype)
        wide_out = torch.empty(COUNT)
        narrow.copy_(wide)
        copier = Copier(native, BYTES // 2)
        text = name.encode()
        subjects = {
            "narrow": lambda: native.narrow(
                wide.data_ptr(), COUNT, text, narrow.data_ptr(), DIVISOR
            ),
            "to": lambda: wide.to(dtype),
            "copy_": lambda: narrow.copy_(wide),
            "widen": lambda: native.widen(
                narrow.data_ptr(), text, wide_out.data_ptr(), COUNT
            ),
            "uncast_to": lambda: narrow.to(torch.float32),
            "uncast": lambda: wide_out.copy_(narrow),
        }
        times = context.interleave(
            {
                **{key: Subject(run) for key, run in subjects.items()},
                **copier.subjects,
            },
            samples=15,
        )
        copy = copier.bandwidth(times)
        ours_of = {
            "to": "narrow",
            "copy_": "narrow",
            "uncast": "widen",
            "uncast_to": "widen",
        }
        results = {
            key: Result(
                rows[key], milliseconds(times[ours]), milliseconds(times[key])
            )
            for key, ours in ours_of.items()
        }
        for way in ("narrow", "widen"):
            speed = gigabytes_per_second(BYTES, times[way])
            key = way + "_bandwidth"
            results[key] = Result(rows[key], speed, copy)
        return [results[key] for key in rows]

    return Benchmark(list(rows.values()), measure)


BENCHMARKS = [_benchmark(short, name) for short, name in TYPES.items()]
