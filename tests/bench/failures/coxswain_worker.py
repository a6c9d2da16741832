"""A worker of coxswain.torch.elastic that trains for ever."""

import os

import small_model

options = small_model.arguments()
options.add_argument("--slot", type=int, required=True)
options.add_argument("--exchange", choices=["torch", "coxswain"],
                     default="torch")
options = options.parse_args()
log = small_model.Log(options.steps_log.format(slot=options.slot))
log.event("start", os.getpid())

import coxswain.torch as cx  # noqa: E402


def train(t):
    while t.going:
        with t.accumulate():
            t.backward(batches.loss(t.ddp))
        if t.sync:
            t.step_optimizer()
            log.commit(t.step, t.world_size, t.recovery.generation)


def main():
    model, optimizer = small_model.make(options)
    log.event("asks")
    ending = cx.elastic(
        model, optimizer, train, follow={"exchange": options.exchange}
    )
    log.event("end", ending.value)


batches = small_model.Batches(options, options.slot)
small_model.run(log, main)
