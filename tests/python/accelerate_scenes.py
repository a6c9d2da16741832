"""One rank of accelerate_test: accelerate_scenes.py SCENE."""

import os
import signal
import threading
import time
import warnings

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.state import AcceleratorState, GradientState

import coxswain
import coxswain.accelerate
import coxswain.torch
from scene_support import (
    EXCHANGE,
    check,
    digest,
    main,
    names_the_other,
    network,
    plan_set,
    raised,
    samples,
    stall,
)

warnings.simplefilter("ignore")
loss_of = torch.nn.functional.mse_loss


class Program:
    """A training program as Accelerate's own documents have it."""

    def __init__(self, accelerator, data=None):
        self.accelerator = accelerator
        self.inner = network()
        optimizer = torch.optim.AdamW(self.inner.parameters(), lr=1e-2)
        self.rate = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.99)
        if data is None:
            data = torch.utils.data.DataLoader(samples(), batch_size=4)
        self.model, self.optimizer, self.data, self.scheduler = (
            accelerator.prepare(self.inner, optimizer, data, self.rate)
        )
        self.steps = 0

    def epoch(self, before=lambda i: None, loss_of=loss_of, stop=lambda: ""):
        """Trains on all data: batches of 4, 11 of them on each of 2 ranks."""
        for i, (x, y) in enumerate(self.data):
            before(i)
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(loss_of(self.model(x), y))
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
                self.steps += self.accelerator.sync_gradients
            if stop():
                break


def renewed(**options):
    """Returns an Accelerator with nothing of the one before."""
    AcceleratorState._reset_state()
    GradientState._reset_state()
    return Accelerator(cpu=True, **options)


def trained(accelerator, epochs=2, before=lambda epoch, i: None):
    program = Program(accelerator)
    for epoch in range(epochs):
        program.epoch(lambda i: before(epoch, i))
    accelerator.free_memory()
    return program.steps, digest(program.inner)


def slipping(accelerator):
    """A bug: the count of rank 1 slips by one in the second epoch."""

    def before(epoch, i):
        if epoch == 1 and i == 2 and accelerator.process_index == 1:
            accelerator.step += 1

    return before


# ---- scenes ----


def alone():
    """Without Coxswain: the slip goes by unseen."""
    rank = os.environ["COXSWAIN_LOCAL_RANK"]
    os.environ.update(
        RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", LOCAL_WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["ALONE_PORT"],
    )
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    right = trained(accelerator)
    wrong = trained(accelerator, before=slipping(accelerator))
    print("NAMED", *right, *wrong, flush=True)


def slip():
    session = coxswain.torch.init(plan={"accumulation": 4})
    accelerator = Accelerator(cpu=True)
    coxswain.accelerate.attach(accelerator)
    check(accelerator.gradient_accumulation_steps == 4)
    error = raised(
        coxswain.RanksDiffer, trained, accelerator,
        before=slipping(accelerator),
    )
    check(error.ranks == (1,), error.ranks)
    print("NAMED", session.schedule.step, error, flush=True)


def together():
    """What goes well, one after the other in the same processes."""
    session = coxswain.torch.init(
        plan={"accumulation": 4, "commit_vote": True}
    )
    refusals(session)
    # The plan changes with the stream of the first model.
    attached, program = same_bits(session)
    if EXCHANGE == "torch":
        hooks()
    skips(session)
    scaler()
    plan_changes(session, attached, program)


def same_bits(session):
    plain = trained(Accelerator(cpu=True, gradient_accumulation_steps=4))
    accelerator = renewed(gradient_accumulation_steps=4)
    decisions = []
    attached = coxswain.accelerate.attach(
        accelerator, on_decision=decisions.append
    )
    program = Program(accelerator)
    program.epoch()
    program.epoch()
    check((program.steps, digest(program.inner)) == plain, plain)
    check(plain[0] == 6 and len(decisions) == 6, decisions)
    check(session.schedule.step == 6 and len(attached.runs) == 1)
    check(not attached.stopping and not attached.skipped)
    return attached, program


def keeps(attempt=0):
    """The coordinator's checkpoints, of what prepare() returns."""
    os.environ.update(COXSWAIN_JOB="kept", COXSWAIN_ATTEMPT=str(attempt))
    coxswain.torch.init(plan={"accumulation": 4, "checkpoint_every": 3})
    plain = trained(Accelerator(cpu=True, gradient_accumulation_steps=4))
    accelerator = renewed(gradient_accumulation_steps=4)
    attached = coxswain.accelerate.attach(accelerator)
    raised(coxswain.Error, attached.keep, {})
    raised(coxswain.Error, attached.resume)
    program = Program(accelerator)
    attached.keep({
        "model": program.model,
        "optimizer": program.optimizer,
        "scheduler": program.scheduler,
    })
    check(attached.resume() == 3 * attempt)
    check((attached.resumed is None) == (attempt == 0), attached.resumed)
    check(attached.counters["epochs"] == attempt, attached.counters)
    once = program.scheduler.state_dict()["last_epoch"]
    if attempt == 0:
        program.epoch()
        attached.counters["epochs"] += 1
        check(attached.save_if_asked() and not attached.save_if_asked())
        saved = attached.finish()
        check(saved.step == 3 and saved.error is None, saved)
    else:
        program.epoch()
        check(digest(program.inner) == plain[1])
        rate = program.scheduler.state_dict()["last_epoch"]
        check(rate == 2 * once, rate)


def resumes():
    keeps(attempt=1)


def hooks():
    for words in (
        {"comm_hook": "fp16"},
        {
            "comm_hook": "power_sgd",
            "comm_wrapper": "bf16",
            "comm_state_option": {
                "matrix_approximation_rank": 2, "start_powerSGD_iter": 3,
            },
        },
    ):
        kinds = dict(words)
        from accelerate import DDPCommunicationHookType as Kind

        for name in ("comm_hook", "comm_wrapper"):
            kinds[name] = Kind(words.get(name, "no"))
        plain = trained(
            renewed(
                gradient_accumulation_steps=4,
                kwargs_handlers=[DistributedDataParallelKwargs(**kinds)],
            )
        )
        # Accelerate itself drops a hook that is given as a word.
        accelerator = renewed(
            kwargs_handlers=[DistributedDataParallelKwargs(**words)]
        )
        attached = coxswain.accelerate.attach(accelerator)
        check(trained(accelerator) == plain, words)
        name = attached.runs[0]._exchange.name()
        check(name.startswith("torch:torch.distributed.algorithms."), name)


def of_coxswain():
    """Coxswain's hooks, by Accelerate's own words, and their state in
    checkpoints."""
    options = DistributedDataParallelKwargs(
        comm_hook="power_sgd",
        comm_wrapper="fp16",
        comm_state_option={
            "matrix_approximation_rank": 2, "start_powerSGD_iter": 2
        },
    )
    spec = "fp16(powersgd(rank=2,start_step=2))"
    session = coxswain.torch.init(plan={"accumulation": 4, "hook": spec})
    check(session.schedule.plan.hook == spec, session.schedule.plan.hook)
    accelerator = renewed(
        gradient_accumulation_steps=4, kwargs_handlers=[options]
    )
    error = raised(
        coxswain.InvalidArgument, coxswain.accelerate.attach, accelerator,
        exchange="coxswain", hook="bf16",
    )
    check("leave one of them out" in str(error), error)
    attached = coxswain.accelerate.attach(accelerator, exchange="coxswain")
    program = Program(accelerator)
    program.epoch()
    check(equal_everywhere(session, program), "ranks are apart")
    folder = os.path.join(os.environ["SCENES_FOLDER"], "saved")
    accelerator.save_state(folder)
    accelerator.wait_for_everyone()
    names = sorted(
        name for name in os.listdir(folder) if name.startswith("coxswain")
    )
    check(
        names == [
            "coxswain_hook_0_00000-of-00002.bin",
            "coxswain_hook_0_00001-of-00002.bin",
        ],
        names,
    )
    remembered = attached.runs[0].state_dict()
    program.epoch()
    check(attached.runs[0].state_dict() != remembered)
    # What an interrupted save of three ranks has left does not count.
    other = os.path.join(folder, "coxswain_hook_0_00000-of-00003.bin")
    if session.rank == 0:
        with open(other, "wb") as file:
            file.write(b"part")
    accelerator.wait_for_everyone()
    accelerator.load_state(folder)
    check(attached.runs[0].state_dict() == remembered)
    accelerator.wait_for_everyone()
    accelerator.save_state(folder)
    accelerator.wait_for_everyone()
    check(not os.path.exists(other))
    program.epoch()
    check(equal_everywhere(session, program), "ranks are apart")
    accelerator.wait_for_everyone()
    if session.rank == 0:
        os.remove(os.path.join(folder, names[1]))
    accelerator.wait_for_everyone()
    error = raised(coxswain.Error, accelerator.load_state, folder)
    check("a folder that they share" in str(error), error)


def skips(session):
    """One rank's loss is no number: all skip the step."""
    accelerator = renewed(gradient_accumulation_steps=4)
    attached = coxswain.accelerate.attach(accelerator, skip_non_finite=True)
    program = Program(accelerator)
    seen = []

    def broken(output, target):
        loss = loss_of(output, target)
        return loss * float("nan") if session.rank == 1 else loss

    def watch(i):
        seen.append(
            (digest(program.inner), program.rate.last_epoch, attached.skipped)
        )

    program.epoch(watch)
    before, rate = digest(program.inner), program.rate.last_epoch
    program.epoch(watch, broken)
    check(digest(program.inner) == before, "moved by a step that was skipped")
    check(program.rate.last_epoch == rate, "the scheduler did not wait")
    check(attached.skipped and accelerator.optimizer_step_was_skipped)
    decision = attached.runs[0].decision
    check("rank 1" in decision.reason, decision)
    check("not finite" in decision.reason, decision)

    def doubt(i):
        watch(i)
        if i == 3 and session.rank == 0:
            attached.skip("loss is odd")

    seen.clear()
    program.epoch(doubt)
    check(digest(program.inner) != before and not attached.skipped)
    check(seen[3][0] == seen[4][0] and seen[4][2], seen)
    check(len({one[0] for one in seen}) == 2, seen)
    check(program.rate.last_epoch == rate + 2 * 2, program.rate.last_epoch)
    check(equal_everywhere(session, program), "ranks are apart")


def equal_everywhere(session, program):
    mine = digest(program.inner)
    key = "digest/%d" % program.steps
    session.store.set("%s/%d" % (key, session.rank), mine)
    other = session.store.get("%s/%d" % (key, 1 - session.rank), timeout=60)
    return other == mine.encode()


def scaler():
    """A step that is skipped is an overflow to a GradScaler."""
    accelerator = renewed(gradient_accumulation_steps=4)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    attached = coxswain.accelerate.attach(accelerator)
    program = Program(accelerator)
    program.epoch()
    before = digest(program.inner)
    check(not accelerator.optimizer_step_was_skipped)
    program.epoch(lambda i: attached.skip("not today"))
    check(digest(program.inner) == before)
    check(accelerator.optimizer_step_was_skipped)
    scale = accelerator.scaler.get_scale()
    check(scale == 1.0, scale)


def plan_changes(session, attached, program):
    """coxswain plan set, while it runs; then all stop together."""
    run = attached.runs[0]
    windows = []
    attached._on_decision = lambda decision: windows.append(
        program.accelerator.gradient_accumulation_steps
    )
    counts = []
    announce = run.schedule.announce

    def count(micro_batches, **named):
        counts.append(micro_batches)
        announce(micro_batches, **named)

    run.schedule.announce = count

    def before(i):
        if i == 1:
            if session.rank == 0:
                plan_set(session, "accumulation=2")
            session.barrier("the plan is set", timeout=60)

    program.epoch(before)
    # 11 micro-batches. The window that had begun ends as it was planned.
    check(counts == [4, 2, 2, 2, 1], counts)
    check(windows == [2] * 5, windows)
    counts.clear()
    if session.rank == 0:
        plan_set(session, "accumulation=3", "sync_each_batch=true")
    session.barrier("each batch is exchanged", timeout=60)
    program.epoch()
    # The plan came with the decision on the first window.
    check(counts == [2] + [1] * 9, counts)
    counts.clear()

    def late(i):
        if i == 2 and session.rank == 1:
            attached.request_stop("enough")

    program.epoch(late, stop=lambda: attached.stopping)
    check(counts == [1] * 3, counts)
    check("enough" in attached.stopping, attached.stopping)
    check(equal_everywhere(session, program), "ranks are apart")


def refusals(session):
    attach = coxswain.accelerate.attach
    bad = coxswain.InvalidArgument

    def mentions(error, *texts):
        for text in texts:
            check(text in str(error), text, error)
        check("\n" not in str(error), error)

    accelerator = renewed(gradient_accumulation_steps=4)
    mentions(raised(bad, attach, None), "accelerate.Accelerator", "NoneType")
    mentions(raised(bad, attach, accelerator, exchange="nccl"), "'torch'"[1:-1])
    for kind in ("FSDP", "DEEPSPEED", "MEGATRON_LM", "XLA"):
        accelerator.state.distributed_type = kind
        mentions(
            raised(bad, attach, accelerator), kind, "DistributedDataParallel"
        )
    accelerator = renewed(gradient_accumulation_steps=3)
    mentions(raised(bad, attach, accelerator), "=3", "accumulation=4", "3})")
    refused = raised(coxswain.Error, attach, accelerator, plan={"tail": "drop"})
    mentions(refused, "init()")
    for given, texts in (
        ({"comm_hook": "fp17"}, ["'fp17'", "batched_power_sgd"]),
        ({"comm_wrapper": "fp16"}, ["no comm_hook"]),
        (
            {"comm_hook": "power_sgd", "comm_state_option": {"ranks": 2}},
            ["'ranks'", "warm_start"],
        ),
    ):
        accelerator = renewed(
            kwargs_handlers=[DistributedDataParallelKwargs(**given)]
        )
        mentions(raised(bad, attach, accelerator), *texts)
    accelerator = renewed()
    attach(accelerator)
    mentions(raised(coxswain.Error, attach, accelerator), "already")
    accelerator = renewed()
    accelerator.prepare(network())
    mentions(raised(coxswain.Error, attach, accelerator), "before prepare()")
    accelerator = renewed()
    del accelerator.ddp_handler  # As if it had another name.
    mentions(
        raised(bad, attach, accelerator), "not known", "ddp_handler",
        "accelerate ",
    )
    AcceleratorState._reset_state(reset_partial_state=True)
    os.environ["LOCAL_RANK"] = "-1"
    os.environ["WORLD_SIZE"] = "1"
    mentions(
        raised(coxswain.Error, attach, Accelerator(cpu=True)),
        "rank 0 of 1", "before Accelerator()",
    )
    AcceleratorState._reset_state(reset_partial_state=True)
    os.environ["LOCAL_RANK"] = str(session.local_rank)
    os.environ["WORLD_SIZE"] = "2"
    renewed()


def killed():
    """A rank dies while its data loader's processes are alive."""
    session = coxswain.torch.init(plan={"accumulation": 2})
    accelerator = Accelerator(cpu=True)
    coxswain.accelerate.attach(accelerator)
    data = torch.utils.data.DataLoader(
        samples(4000), batch_size=4, num_workers=2
    )
    program = Program(accelerator, data)

    def before(i):
        if i == 9 and session.rank == 1:
            print("KILLED %.3f" % time.monotonic(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    names_the_other(session, coxswain.PeerLost, lambda: program.epoch(before))


def stalled():
    stands_still(lambda: stall(threading.Event().wait))


def stopped():
    stands_still(stall)


def stands_still(stand):
    """Rank 1 goes no further."""
    session = coxswain.torch.init(
        plan={"accumulation": 2, "progress_timeout": "2s"}
    )
    accelerator = Accelerator(cpu=True)
    coxswain.accelerate.attach(accelerator)
    program = Program(accelerator)

    def before(i):
        if i == 5 and session.rank == 1:
            stand()

    names_the_other(session, coxswain.Error, lambda: program.epoch(before))


def interrupted():
    session = coxswain.torch.init(plan={"accumulation": 2})
    accelerator = Accelerator(cpu=True)
    coxswain.accelerate.attach(accelerator)
    program = Program(accelerator)

    def before(i):
        if i == 5 and session.rank == 1:
            print("WAITS", flush=True)
            threading.Event().wait(600)

    try:
        program.epoch(before)
    except KeyboardInterrupt:
        print("INTERRUPTED", session.rank, flush=True)
        raise


def joins():
    """attach() joins, in a program that a launcher of torch's has started."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    attached = coxswain.accelerate.attach(
        accelerator, plan={"commit_vote": True}, skip_non_finite=True
    )
    program = Program(accelerator)
    program.epoch()
    session = coxswain.torch.session()
    check(session.schedule.step == program.steps == 3, session.schedule.step)
    plan = attached.runs[0].plan
    check(plan.accumulation == 4 and plan.commit_vote, plan)
    check(str(session.rank) == os.environ["RANK"], session.rank)
    check(session.job == "scene", session.job)
    check(equal_everywhere(session, program), "ranks are apart")


def outlived():
    """The coordinator dies and comes back; rank 0 sees when it is enough."""
    session = coxswain.torch.init(plan={"accumulation": 4})
    accelerator = Accelerator(cpu=True)
    attached = coxswain.accelerate.attach(accelerator)
    program = Program(accelerator)
    epochs = 0
    while not attached.stopping:
        enough = os.path.exists(os.environ["ENOUGH"])
        if session.rank == 0 and enough:
            attached.request_stop("enough")
        program.epoch(stop=lambda: attached.stopping)
        epochs += 1
        if session.rank == 0 and epochs % 20 == 0:
            print(
                "EPOCH", epochs, accelerator.gradient_accumulation_steps,
                flush=True,
            )
    check(equal_everywhere(session, program), "ranks are apart")
    check(accelerator.gradient_accumulation_steps == 2)
    check(program.steps == session.schedule.step, program.steps)


if __name__ == "__main__":
    main(globals())
