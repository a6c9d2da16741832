"""One rank of session_test: worker.py SCENE."""

import array
import os
import pickle
import signal
import sys
import threading
import time

import coxswain


def check(condition, *what):
    if not condition:
        raise AssertionError(what)


def raised(kind, function, *arguments, **named):
    try:
        function(*arguments, **named)
    except kind as error:
        return error
    raise AssertionError("%s did not raise %s" % (function, kind))


def together():
    plan = {"accumulation": 2, "hook": " bf16 ", "commit_vote": True}
    with coxswain.Session.join(plan=plan, settings={"seed": 17}) as session:
        rank = session.rank
        check(session.world_size == 2 and session.local_rank == rank)
        members = session.members()
        check([member.rank for member in members] == [0, 1], members)
        check(session.next_event(10).kind is coxswain.EventKind.JOINED)
        check(session.next_event() is None and session.ended is None)
        share(session, rank)
        exchange(session, rank)
        decide(session, rank)
        session.report_progress(3)
        session.report_wait(True)
        session.report_wait(False)
        session.barrier("end", timeout=20)


def share(session, rank):
    store = session.store
    if rank == 0:
        store.set("a", b"x\0y")
    else:
        check(store.get("a", timeout=20) == b"x\0y")
    check(raised(coxswain.NotFound, store.get, "none").code == 5)
    error = raised(coxswain.DeadlineExceeded, store.get, "none", timeout=0.08)
    check(error.generation == session.generation)
    store.append("log", "%d;" % rank)
    store.add("n", rank + 1)
    session.barrier("shared", timeout=20)
    check(sorted(store.get("log")) == sorted(b"0;1;"))
    check(store.add("n", 0) == 3)
    check(store.check(["a", "n"]) and not store.check(["a", "none"]))
    store.wait(["a", "log"], timeout=20)
    session.barrier("read", timeout=20)
    if rank == 0:
        check(store.compare_set("n", "4", "5") == (b"3", False))
        check(store.compare_set("n", "3", "5") == (b"5", True))
        raised(coxswain.NotFound, store.compare_set, "new", "1", "2")
        check([store.count(key) for key in ("n", "lo", "none")] == [1, 1, 0])
        check(store.delete("n") and not store.delete("n"))
        check(store.count("n") == 0 and store.count() >= 2)


def exchange(session, rank):
    data = array.array("d", [rank, 2.5])
    session.all_reduce(data)
    check(list(data) == [1, 5], data)
    flags = array.array("q", [rank])
    session.all_reduce(flags, op="max")
    check(flags[0] == 1)
    session.broadcast(data if rank == 1 else array.array("d", [0, 0]), root=1)
    everything = array.array("f", [0] * 4)
    session.all_gather(array.array("f", [rank, 7]), everything)
    check(list(everything) == [0, 7, 1, 7], everything)
    session.all_reduce(memoryview(array.array("i", [1, 2, 3])))
    raised(coxswain.InvalidArgument, session.all_reduce, b"readonly")
    letters = bytearray(4)
    session.all_gather(b"ab" if rank == 0 else b"cd", letters)
    check(letters == b"abcd", letters)
    raised(coxswain.InvalidArgument, session.all_reduce, data, op="product")
    raised(
        coxswain.InvalidArgument, session.all_gather, data,
        array.array("d", [0]),
    )


def decide(session, rank):
    schedule = session.schedule
    plan = schedule.plan
    check(plan.accumulation == 2 and plan.commit_vote and plan.enforced, plan)
    check(plan.hook == "bf16" and plan.words["hook"] == "bf16", plan)
    for step in range(4):
        if step == 2 and rank == 1:
            session.request_stop("enough")
            session.request_checkpoint("before the end")
        for _ in range(plan.accumulation):
            schedule.note_micro_batch()
        schedule.announce(plan.accumulation)
        schedule.await_grant()
        bad = step == 1 and rank == 1
        decision = schedule.decide(not bad, "loss is NaN" if bad else "")
        check(decision.commit == (step != 1), step, decision)
        if step == 1:
            check("rank 1" in decision.reason, decision)
            check("loss is NaN" in decision.reason, decision)
        if decision.stop:
            check("enough" in decision.stop, decision)
            check("before the end" in decision.checkpoint, decision)
            check(step == 2 and schedule.step == 3)
            break
    else:
        check(False, "no rank stopped")


def windows():
    plan = {"accumulation": 3, "sync_each_batch": True, "enforcement": "off"}
    with coxswain.Session.join(plan=plan) as session:
        schedule = session.schedule
        check(schedule.plan.sync_each_batch)
        for step in range(2):
            for micro in range(3):
                check(schedule.step == step, schedule.step, step, micro)
                # The window counts exchanges, whatever is summed up in each.
                schedule.announce(2, micro=micro)
                schedule.decide()
        check(schedule.step == 2)


def saves():
    with coxswain.Session.join() as session:
        checkpoints, rank = session.checkpoints, session.rank
        check(checkpoints.saved() == coxswain.Saved(False, None, "", None))
        check(checkpoints.list() == [])
        raised(coxswain.NotFound, checkpoints.load)
        weights = array.array("d", [1, 2])
        for step in (4, 7):
            checkpoints.save(
                step,
                {"weights": [b"of ", weights, b""], "none": []},
                {"rows": b"%d rows" % rank},
                reason="because",
                metadata={"epoch": "3"},
            )
            weights[0] = 9  # it was copied
            saved = checkpoints.wait(60)
            check(saved.step == step and saved.error is None, saved)
            weights[0] = 1
        found = checkpoints.find()
        check(found.id == saved.id and found.step == 7, found)
        check(found.world_size == 2 and found.metadata["epoch"] == "3")
        check([one.step for one in checkpoints.list()] == [7, 4])
        check(len(checkpoints.list(most=1)) == 1)
        check(checkpoints.find(4).step == 4)
        session.barrier("found", timeout=20)
        with checkpoints.load() as loaded:
            check(loaded.checkpoint == found, loaded.checkpoint)
            weights[0] = 1
            check(loaded.pieces == {
                "weights": b"of " + weights.tobytes(), "none": b"",
            }, loaded.pieces)
            check(loaded.own == {
                ("rows", 0): b"0 rows", ("rows", 1): b"1 rows",
            }, loaded.own)
            piece = loaded.pieces["weights"]
        raised(ValueError, bytes, piece)
        first = checkpoints.load(7)
        piece = first.pieces["weights"]
        user = pickle.PickleBuffer(piece)
        error = raised(coxswain.Error, checkpoints.load, 4)
        check("is still used" in str(error), error)
        user.release()
        second = checkpoints.load(4)
        raised(ValueError, bytes, piece)
        first.release()
        check(second.pieces["weights"].nbytes > 0)
        session.barrier("loaded", timeout=20)
        error = raised(coxswain.InvalidArgument, checkpoints.save, -1, {})
        check("step" in str(error), error)


def slip():
    session = coxswain.Session.join(plan={"accumulation": 4})

    def train():
        for step in range(4):
            slips = step == 2 and session.rank == 1
            session.schedule.announce(3 if slips else 4)
            session.schedule.await_grant()
            session.schedule.decide()

    error = raised(coxswain.RanksDiffer, train)
    check(session.schedule.step == 2 and error.ranks == (1,), error.ranks)
    check(error.code is coxswain.Code.ABORTED)
    check("3 on rank 1" in str(error), error)
    check("4 on rank 0" in str(error), error)
    check(isinstance(session.ended, coxswain.RanksDiffer))
    session.leave("ranks differ", failed=True)
    session.close()


def parameters():
    with coxswain.Session.join() as session:
        session.configure(
            [
                coxswain.Parameter("weight", (3, 4)),
                coxswain.Parameter("bias", (4 + session.rank,), "float64"),
            ]
        )
        session.schedule.announce(1)
        error = raised(coxswain.RanksDiffer, session.schedule.decide)
        check("layout of the buckets" in str(error), error)


def parts(what):
    """Rank 1 has another value in its second ticket, which the ranks along tp
    are to have in common."""
    session = coxswain.Session.join(plan={"pipeline": "1f1b"})

    def train():
        for step in range(2):
            common = {"pipeline": 5, "replicated_checksum": 9}
            common[what] += step * session.rank
            session.schedule.announce(1, **common)
            session.schedule.decide()

    error = raised(coxswain.RanksDiffer, train)
    check(session.schedule.step == 1, session.schedule.step)
    check(
        {
            "pipeline": "schedule of the pipeline",
            "replicated_checksum": "checksum of the replicated parameters",
        }[what] in str(error),
        error,
    )
    session.leave("ranks differ", failed=True)
    session.close()


def other_pipeline():
    parts("pipeline")


def other_replicated():
    parts("replicated_checksum")


def loses(end):
    """Rank 1 ends by `end(session)`; rank 0 steps until it is lost, and
    prints its error."""
    session = coxswain.Session.join()
    if session.rank == 1:
        session.barrier("all are here", timeout=20)
        end(session)
        return

    def train():
        session.barrier("all are here", timeout=20)
        while True:
            session.schedule.announce(1)
            session.schedule.decide()

    error = raised(coxswain.PeerLost, train)
    check(error.ranks == (1,), error.ranks)
    check(error.generation == session.generation)
    print("NAMED", error, flush=True)


def rejoins():
    """One rank makes the generation end; both go on in the next one."""
    session = coxswain.Session.join(plan={"accumulation": 2})
    session.store.set("rank %d" % session.rank, "was here")
    session.barrier("all are here", timeout=20)
    if session.rank == 1:
        after = session.rejoin()
    else:
        event = session.next_event(20)
        while event.kind is not coxswain.EventKind.MEMBER_LEFT:
            event = session.next_event(20)
        check(event.rank == 1 and "next generation" in event.text, event)
        check(session.ended is None)
        after = session.rejoin()
    check(after.generation > session.generation)
    check((after.rank, after.world_size) == (session.rank, 2))
    check(after.schedule.plan.accumulation == 2)
    check(isinstance(session.ended, coxswain.Error))
    session.close()
    with after:
        raised(coxswain.NotFound, after.store.get, "rank 0")
        after.schedule.announce(2)
        after.schedule.decide()
        after.barrier("again", timeout=20)
    error = raised(coxswain.Error, after.rejoin)
    check("is not open" in str(error), error)


def killed():
    def end(session):
        session.schedule.announce(1)
        session.schedule.decide()
        os.kill(os.getpid(), signal.SIGKILL)

    loses(end)


def raises(text):
    def end(session):
        with session:
            raise ValueError(text)

    loses(end)


def fails():
    raises("no\nluck")


def fails_oddly():
    raises("no\udcff luck")


def forgets():
    loses(lambda session: sys.exit("leaves without a word"))


def interrupted():
    """A signal ends each kind of wait; other threads run meanwhile."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    started = []
    threading.Thread(target=lambda: started.append(time.monotonic())).start()

    def soon_interrupted(function, *arguments, **named):
        signal.setitimer(signal.ITIMER_REAL, 0.15)
        begun = time.monotonic()
        raised(KeyboardInterrupt, function, *arguments, **named)
        took = time.monotonic() - begun
        check(took < 2, function, took)

    soon_interrupted(coxswain.Session.join, world_size=2, node="x")
    # The coordinator has forgotten that worker: another one takes its place.
    os.environ["COXSWAIN_WORLD_SIZE"] = "1"
    # An argument goes before its variable, which is not read.
    os.environ["COXSWAIN_PLAIN_DATA"] = "perhaps"
    raised(coxswain.InvalidArgument, coxswain.Session.join)
    session = coxswain.Session.join(
        job="alone", world_size=1, plain_data=True
    )
    del os.environ["COXSWAIN_PLAIN_DATA"]
    soon_interrupted(session.store.get, "none", timeout=60)
    soon_interrupted(session.store.wait, ["none"], timeout=60)
    session.next_event()
    soon_interrupted(session.next_event, timeout=60)
    # It goes on afterwards.
    session.store.set("a", "b")
    check(session.store.get("a") == b"b")
    soon_interrupted(session.store.get, "none", timeout=float("inf"))
    with session:
        session.leave()
        session.leave()
        session.close()
        session.close()
    check(started)

    handles = []

    class Unlucky(coxswain.Session):
        def __init__(self, handle):
            handles.append(handle)
            super().__init__(handle)
            raise KeyboardInterrupt

    raised(KeyboardInterrupt, Unlucky.join, job="unlucky", world_size=1)
    unopened = coxswain.Session.__new__(coxswain.Session)
    error = raised(coxswain.InvalidArgument, coxswain.Session.__init__,
                   unopened, handles[0])
    check("is not open" in str(error), error)


def forked():
    with coxswain.Session.join() as session:
        child = os.fork()
        if child == 0:
            error = raised(coxswain.Error, session.store.set, "a", "b")
            ok = error.code is coxswain.Code.FAILED_PRECONDITION
            ok = ok and "was forked from process" in str(error)
            # Through the end of the block, and all handlers of the exit.
            sys.exit(0 if ok else 1)
        check(os.waitpid(child, 0)[1] == 0)
        session.store.set("a", "b")
        check(session.ended is None)
        session.barrier("forked", timeout=20)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("DONE", flush=True)
