"""What a benchmark is, and how its samples are taken.

A benchmark file under benchmarks/ defines BENCHMARKS, a list of Benchmark.
Each measures one or more rows in one interleaved run, so that what is compared
has seen the same machine in the same minutes.
"""

import dataclasses
import statistics
import time
from typing import Callable, Dict, List, Optional, Sequence


class Unable(Exception):
    """This machine cannot do it; the message is the reason."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table: ours against a peer.

    The ratio is how many times better ours is: peer / ours where less is
    better (a time, bytes), ours / peer otherwise (a bandwidth). The goal is
    the least ratio that will do; None for a row that only informs. An exact
    row is met only if the two are equal.
    """

    name: str
    peer_name: str
    unit: str
    help: str
    goal: Optional[float] = None
    less_is_better: bool = True
    exact: bool = False


@dataclasses.dataclass(frozen=True)
class Result:
    """Samples of a row, in its unit; ours[i] and peer[i] were neighbours."""

    row: Row
    ours: Sequence[float]
    peer: Sequence[float]

    @property
    def ours_median(self):
        return statistics.median(self.ours)

    @property
    def peer_median(self):
        return statistics.median(self.peer)

    @property
    def ratio(self):
        ours, peer = self.ours_median, self.peer_median
        above, below = (peer, ours) if self.row.less_is_better else (ours, peer)
        if above == below:
            return 1.0
        return above / below if below else float("inf")

    @property
    def met(self):
        """None without a goal."""
        if self.row.exact:
            return self.ours_median == self.peer_median
        return None if self.row.goal is None else self.ratio >= self.row.goal


@dataclasses.dataclass(frozen=True)
class Subject:
    """What is timed, and what must be done untimed before each time."""

    run: Callable[[], object]
    prepare: Callable[[], object] = lambda: None


@dataclasses.dataclass(frozen=True)
class Benchmark:
    rows: Sequence[Row]
    # Takes a Context, returns a Result for each row.
    measure: Callable[["Context"], List[Result]]


@dataclasses.dataclass
class Context:
    """What a benchmark is given.

    native: the library under test (native.py).
    progress: shows a short text on one line of the terminal.
    samples: how many rounds to take; None for what the benchmark suggests.
    clock: seconds, monotonic.
    worker: the program worker/main.cc, for benchmarks of several processes.
    comm_worker: the program worker/comm_main.cc, for communicators alone.
    gloo_worker: the program worker/gloo_main.cc, Gloo by itself.
    schedule_worker: the program schedule/main.cc.
    scale_worker: the program scale/main.cc.
    etcd_worker: the program scale/etcd_main.cc.
    checkpoint_worker: the program checkpoint/main.cc.
    bulk_worker: the program bulk/main.cc.
    parameter_worker: the program parameter_server/main.cc.
    coxswain: the command line.
    c_library: libcoxswain_c.so.
    cores: those that such benchmarks may use; this process has one of them.
    """

    native: object
    progress: Callable[[str], None] = lambda text: None
    samples: Optional[int] = None
    clock: Callable[[], float] = time.perf_counter
    worker: str = ""
    comm_worker: str = ""
    gloo_worker: str = ""
    schedule_worker: str = ""
    scale_worker: str = ""
    etcd_worker: str = ""
    checkpoint_worker: str = ""
    bulk_worker: str = ""
    parameter_worker: str = ""
    coxswain: str = ""
    c_library: str = ""
    cores: Sequence[int] = ()

    def interleave(
        self, subjects: Dict[str, Subject], samples: int, warm_up: int = 2
    ) -> Dict[str, List[float]]:
        """Times the subjects in turn, ABAB...; returns seconds by name.

        The first `warm_up` rounds are not counted.
        """
        wanted = self.samples or samples
        times: Dict[str, List[float]] = {name: [] for name in subjects}
        for round_number in range(warm_up + wanted):
            for name, subject in subjects.items():
                self.progress(
                    "round %d of %d: %s"
                    % (round_number + 1, warm_up + wanted, name)
                )
                subject.prepare()
                start = self.clock()
                subject.run()
                seconds = self.clock() - start
                if round_number >= warm_up:
                    times[name].append(seconds)
        return times


def milliseconds(seconds: Sequence[float]) -> List[float]:
    return [1e3 * value for value in seconds]


def gigabytes_per_second(size: float, seconds: Sequence[float]) -> List[float]:
    return [size / value / 1e9 for value in seconds]


def faster(*series: Sequence[float]) -> Sequence[float]:
    """Of several series of seconds the one with the least median."""
    return min(series, key=statistics.median)
