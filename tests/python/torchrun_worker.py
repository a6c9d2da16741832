"""A worker of torchrun_test: torchrun_worker.py HOW FOLDER.

HOW is "fail=MOMENT,...", where attempt N fails at the N-th moment, at one rank
that differs from attempt to attempt, and later ones train and end; or "until",
which goes on from the newest checkpoint, and trains until the file
FOLDER/finish is there; or "stubborn", which does so too, and in attempt 0 fails
at rank 0, while the others end only by SIGKILL.
"""

import os
import select
import signal
import sys
import threading

import torch
import torch.distributed

import coxswain.torch as cx

torch.set_num_threads(1)
RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
RESTARTS = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
EVERY = 2  # steps there is a checkpoint of those that train "until"


class Failure:
    """Fails at its moment; at all others, and on other ranks, does nothing."""

    def __init__(self, moment, folder):
        self.moment = moment
        self.is_victim = RANK == RESTARTS % WORLD_SIZE
        self._fifo = os.path.join(folder, "alone-%d" % RESTARTS)

    def at(self, moment):
        if moment == self.moment and self.is_victim:
            print("FAILS %s" % moment, flush=True)
            if moment == "exception":
                raise ValueError("no luck")
            if moment == "exit":
                sys.exit(3)
            os.kill(os.getpid(), signal.SIGKILL)

    def while_joining(self):
        """The victim dies while it waits for the others, which join
        after that."""
        if self.moment != "joining":
            return
        try:
            os.mkfifo(self._fifo)
        except FileExistsError:
            pass
        if self.is_victim:
            # Its reader sees its end when this process has ended.
            os.open(self._fifo, os.O_WRONLY)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            print("FAILS joining", flush=True)
        else:
            with open(self._fifo, "rb") as fifo:
                fifo.read()


def make_group(session, failure):
    """Makes torch's process group; with the moment "late" rank 0 comes to it
    some time after the others."""
    if failure.moment == "late":
        if RANK == 0:
            session.store.wait(["others are in"], timeout=60)
        else:
            threading.Timer(
                0.5, session.store.set, ["others are in", "yes"]
            ).start()
    cx._session._init_process_group(session, "gloo", None)


def parts():
    """Returns a model of four sums, and its optimizer."""
    network = torch.nn.Linear(4, 1, bias=False)
    torch.nn.init.zeros_(network.weight)
    return network, torch.optim.SGD(network.parameters(), lr=1.0)


def train(session, going, failure, how):
    """Trains, from the newest checkpoint if there is one."""
    network, optimizer = parts()
    model = torch.nn.parallel.DistributedDataParallel(network)

    def decided(decision):
        if run.schedule.step == 2:
            failure.at("decided")

    run = cx.follow(
        model, optimizer,
        checkpoint={"model": network, "optimizer": optimizer},
        on_decision=decided,
        stop_on_sigterm=how != "stubborn",
    )
    begin = run.resume()
    while not run.stopping and going(run.schedule.step, session):
        if run.schedule.step == begin + 1:
            failure.at("kill")
            failure.at("exit")
            failure.at("exception")
        # The gradient is the mean of the ranks' numbers, from 1 on.
        model(torch.ones(1, 4) * (RANK + 1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        run.counters["halves"] += WORLD_SIZE + 1
        if run.schedule.step == begin + EVERY:
            if trains_on(how):
                run.save_if_asked()
                session.checkpoints.wait(60)
            print(
                "TRAINS world=%d restarts=%d from=%d"
                % (WORLD_SIZE, RESTARTS, begin),
                flush=True,
            )
    if (network.weight * -2).tolist() != [[run.counters["halves"]] * 4]:
        sys.exit(
            "weights are %s after %d steps, and %s"
            % (network.weight, run.schedule.step, run.counters)
        )


def trains_on(how):
    return how in ("until", "stubborn")


def until(path):
    def going(step, session):
        # What a step would compute.
        select.select([], [], [], 0.02)
        if RANK == 0 and os.path.exists(path):
            session.request_stop("enough")
        return True

    return going


def main(how, folder):
    with open("/proc/self/comm", "w") as comm:
        comm.write("torchrun_worker")  # torchrun_support looks for it.
    with open(os.path.join(folder, "pids"), "a") as pids:
        pids.write("%d\n" % os.getpid())
    moments = how[len("fail="):].split(",") if how.startswith("fail=") else []
    moment = moments[RESTARTS] if RESTARTS < len(moments) else ""
    failure = Failure(moment, folder)
    if failure.is_victim:
        print("ATTEMPT %d %s" % (RESTARTS, moment), flush=True)
    failure.at("start")
    failure.while_joining()
    session = cx.init(
        process_group=False,
        plan={"checkpoint_every": EVERY if trains_on(how) else 0},
    )
    print("JOINED %d" % RANK, flush=True)
    if (session.rank, session.world_size) != (RANK, WORLD_SIZE):
        sys.exit("rank %d is not torchrun's" % session.rank)
    failure.at("joined")
    make_group(session, failure)
    failure.at("late")
    going = lambda step, session: step < 3  # noqa: E731
    if how == "stubborn" and RESTARTS == 0:
        if RANK == 0:
            failure.moment = "kill"
        else:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if trains_on(how):
        going = until(os.path.join(folder, "finish"))
    try:
        train(session, going, failure, how)
    except RuntimeError:
        while how == "stubborn":
            signal.pause()
        raise
    cx.leave()
    failure.at("left")
    if failure.moment == "alone" and failure.is_victim:
        while not os.path.exists(os.path.join(folder, "finish")):
            select.select([], [], [], 0.02)
        failure.at("alone")
    print(
        "DONE rank=%d world=%d restarts=%d" % (RANK, WORLD_SIZE, RESTARTS),
        flush=True,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
