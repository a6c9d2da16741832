"""Answers of the coordinator's JSON API, made up for the extreme cases.

Their fields are those of docs/observability.md; what a real coordinator answers
is looked at by page_test.py beside these.
"""

import datetime

NOW = 1795680000.0

# What a peer might call itself so as to run in the page.
HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\">"
    "<script>document.title='owned'</script>\"'`${1}&lt;\u202egpj"
)


def seconds(step, rank, slow):
    """How a rank spent a step: the others wait for the slow ones."""
    own = 0.020 + ((step * 7 + rank * 13) % 5) / 1000.0
    late = 0.045 if slow and step % 3 else own
    whole = 0.045 if step % 3 else 0.026
    return {
        "compute": late,
        "wait": max(0.0, whole - late) + 0.001,
        "exchange": 0.008,
    }


class Job:
    """A job of `ranks` ranks; those in `slow` are stragglers at times."""

    def __init__(self, name, ranks, slow=(), text=None, state="running",
                 stages=0):
        self.name = name
        self.stages = stages  # of its pipelines; 0: it has none
        self.ranks = ranks
        self.slow = set(slow)
        self.text = text
        self.state = state
        self.step = 1200
        self.now = NOW

    def text_or(self, usual):
        return usual if self.text is None else self.text

    def row(self):
        return {
            "job": self.name,
            "state": self.state,
            "generation": 4,
            "attempt": 0,
            "world_size": self.ranks,
            "min_world_size": max(1, self.ranks // 2),
            "live": self.ranks,
            "attached": self.ranks,
            "waiting": 0,
            "step": self.step,
            "steps_per_second": 17.4,
            "hook": self.text_or("powersgd(rank=2,start_step=100)"),
            "plan_version": 2,
            "stragglers": sorted(self.slow)[:16],
            "payload_bytes": 5 * 10**7 * self.ranks,
            "wire_bytes": 10**8 * self.ranks,
            "last_event": self.text_or(
                "worker node-b/1 was lost: exit status 137"
            ),
        }

    def member(self, rank):
        host = "host-%d" % (rank // 8)
        return {
            "rank": rank,
            "local_rank": rank % 8,
            "node": self.text_or("node-%d" % (rank // 8)),
            "slot": rank % 8,
            "host": self.text_or(host),
            "address": self.text_or("10.0.0.%d:4711" % (rank // 8 % 250 + 1)),
            "incarnation": "%016x" % (rank * 7919 + 17),
            "state": "attached",
            "heard_at": self.now - 0.4,
            "progressed_at": self.now - 0.6,
            "step": self.step,
            "micro_batches": self.step * 4,
            "collective_sequence": self.step * 3,
            "rounds": self.step,
            "bucket": 2,
            "activity": self.text_or(
                "" if rank in self.slow
                else "waits for the decision of step %d" % (self.step + 1)
            ),
            "payload_bytes": 5 * 10**7,
            "wire_bytes": 10**8,
            "straggler": rank in self.slow,
            "odd": rank in self.slow,
        }

    def plan(self, version):
        return {
            "version": version,
            "hook": self.text_or(
                "powersgd(rank=2,start_step=100)" if version > 1
                else "allreduce"
            ),
            "accumulation_steps": 4 if version > 1 else 2,
            "compression_start_step": -1,
            "global_micro_batches": 16,
            "terms": {"enforcement": self.text_or("audit"), "tail": "flush"},
            "at_step": 400 if version > 1 else 0,
            "seen_at": self.now - 3600 / version,
            "seen_step": 400 if version > 1 else 0,
        }

    def report(self):
        slow = sorted(self.slow)
        return {
            "ended_at": self.now if self.state == "ended" else None,
            "findings": [
                self.text_or(
                    "rank %d (host-%d) has not sent its ticket of step %d: "
                    "%d ranks wait for it" % (rank, rank // 8, self.step + 1,
                                              self.ranks - len(slow))
                )
                for rank in slow[:3]
            ],
            "odd_ranks": slow[:64],
            "history": [
                {
                    "stream": "train",
                    "round": self.step - back,
                    "step": self.step - back,
                    "commit": True,
                    "reason": self.text_or(""),
                    "decided_at": self.now - back * 0.05,
                    "tickets_seconds": 0.01,
                    "last_rank": slow[0] if slow else 0,
                    "plan_version": 2,
                }
                for back in range(8)
            ],
        }

    def pipeline(self):
        """All wait for rank 1, which is in the fourth pass of its lane."""
        micro_batches = 8
        lanes = []
        for lane in range(self.stages):
            ahead = self.stages - 1 - lane
            back = self.stages + ahead
            lanes.append(
                [
                    {"action": "%dF%d" % (lane, i), "begin": lane + i,
                     "end": lane + i + 1}
                    for i in range(micro_batches)
                ] + [
                    {"action": "%dB%d" % (lane, i),
                     "begin": micro_batches + back + 2 * i,
                     "end": micro_batches + back + 2 * i + 2}
                    for i in range(micro_batches)
                ]
            )
        ranks = [
            {
                "rank": rank,
                "lane": rank % self.stages,
                "step": self.step,
                "action": self.text_or(
                    "1F3" if rank == 1 else "%dRECV_F4" % (rank % self.stages)
                ),
                "seconds": 34.0,
                "at": rank % self.stages + 3.0,
                "waits_for": [] if rank == 1 else [1],
                "waiters": self.ranks - 1 if rank == 1 else 0,
            }
            for rank in range(self.ranks)
        ]
        return {
            "schedule": self.text_or("1f1b"),
            "micro_batches": micro_batches,
            "findings": [
                self.text_or(
                    "stage 1 (rank 1: pp 1, dp 0; host-0/1) has been in 1F3 "
                    "for 34s (median 210ms); %d ranks wait for it, 1 of them "
                    "directly" % (self.ranks - 1)
                )
            ],
            "ranks": ranks,
            "lanes": lanes,
            "measured": True,
        }

    def checkpoint(self, back):
        return {
            "id": self.text_or("step-%06d" % (self.step - 200 * back)),
            "step": self.step - 200 * back,
            "generation": 4,
            "created_at": self.now - 40 - 700 * back,
            "bytes": 123456789,
            "shards": 4,
            "state": "open" if back == 0 else "complete",
            "imported": back == 3,
        }

    def traffic(self):
        hooks = []
        for hook, gradient, payload, wire in [
            (
                "powersgd(rank=2,start_step=100)",
                10**12,
                2 * 10**10,
                4 * 10**10,
            ),
            ("allreduce", 10**12, 10**12, 195 * 10**10),
        ]:
            hooks.append(
                {
                    "hook": self.text_or(hook),
                    "gradient_bytes": gradient,
                    "payload_bytes": payload,
                    "wire_bytes": wire,
                    "compression_ratio": gradient / payload,
                    "saved_bytes": gradient - payload,
                }
            )
        whole = {
            "gradient_bytes": 200 * 10**10,
            "payload_bytes": 102 * 10**10,
            "wire_bytes": 199 * 10**10,
            "compression_ratio": 200 / 102,
            "saved_bytes": 98 * 10**10,
        }
        return dict(whole, hooks=hooks[: 1 if self.text else 2])

    def detail(self, first, many):
        end = min(first + many, self.ranks)
        row = self.row()
        answer = {
            "job": self.name,
            "state": self.state,
            "generation": 4,
            "attempt": 0,
            "world_size": self.ranks,
            "min_world_size": row["min_world_size"],
            "step": self.step,
            "steps_per_second": 17.4,
            "last_event": row["last_event"],
            "member_count": self.ranks,
            "members": [self.member(rank) for rank in range(first, end)],
            "spares": [],
            "plan": self.plan(2),
            "plan_next": None,
            "plan_history": [self.plan(2), self.plan(1)],
            "report": self.report(),
            "checkpoints": [self.checkpoint(back) for back in range(4)],
            "checkpoint_count": 12,
            "traffic": self.traffic(),
        }
        if self.stages > 0:
            answer["pipeline"] = self.pipeline()
        return answer

    def slow_in(self, step):
        return sorted(self.slow) if step % 3 else []

    def steps(self, last, first, many, order):
        numbers = range(self.step - last + 1, self.step + 1)
        ranks = list(range(self.ranks))
        if order == "slowest":
            ranks.sort(key=lambda rank: (rank not in self.slow, rank))
        answer = {
            "job": self.name,
            "generation": 4,
            "world_size": self.ranks,
            "rule": "A rank is a straggler of a step if it computed for more "
            "than 1.5 times the lower median of all ranks.",
            "straggler_factor": 1.5,
            "straggler_least_seconds": 0.005,
            "capacity": 256,
            "steps": [
                {
                    "step": step,
                    "reported": self.ranks,
                    "compute_median_seconds": 0.02,
                    "compute_max_seconds": 0.045,
                    "slowest_rank": min(self.slow) if self.slow else 0,
                    "duration_max_seconds": 0.054 if step % 3 else 0.035,
                    "stragglers": self.slow_in(step)[:64],
                }
                for step in numbers
            ],
            "ranks": [],
        }
        for rank in ranks[first : first + many]:
            spent = [seconds(step, rank, rank in self.slow) for step in numbers]
            answer["ranks"].append(
                {
                    "rank": rank,
                    "host": self.text_or("host-%d" % (rank // 8)),
                    "node": self.text_or("node-%d" % (rank // 8)),
                    "slot": rank % 8,
                    "straggler_steps": sum(
                        rank in self.slow_in(step) for step in numbers
                    ),
                    "compute_seconds": [one["compute"] for one in spent],
                    "wait_seconds": [one["wait"] for one in spent],
                    "exchange_seconds": [one["exchange"] for one in spent],
                    "payload_bytes": [34 for _ in spent],
                    "wire_bytes": [68 for _ in spent],
                }
            )
        return answer

    def events(self, after):
        rows = [
            ("info", "generation_begun", -1, {"world_size": "5"}),
            ("warning", "member_lost", 4, {"reason": "exit status 137"}),
            ("info", "regroup_decided", -1, {"reason": "a spare waits"}),
            ("info", "plan_in_force", -1, {"version": "2"}),
            ("info", "joined", 3, {"worker": "node-0/3"}),
        ]
        events = [
            {
                "sequence": index + 1,
                "time": datetime.datetime.fromtimestamp(
                    self.now - 600 + index * 60, datetime.timezone.utc
                ).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                "level": level,
                "event": self.text_or(event),
                "job": self.name,
                "generation": 4,
                **({"rank": rank} if rank >= 0 else {}),
                **{
                    self.text_or(name): self.text_or(text)
                    for name, text in fields.items()
                },
            }
            for index, (level, event, rank, fields) in enumerate(rows)
            if index + 1 > after
        ]
        return {"events": events, "last": max(after, len(rows))}
