#ifndef COXSWAIN_CLIENT_ACCUMULATE_MICRO_BATCH_H_
#define COXSWAIN_CLIENT_ACCUMULATE_MICRO_BATCH_H_

#include <cstdint>

namespace coxswain {

// What to do with one micro-batch.
struct MicroBatch {
  int64_t step = 0;  // the window that it belongs to, from 0
  int micro = 0;     // its place in the window, from 0
  // How many micro-batches the window is planned to have.
  int window = 1;
  // What to multiply its mean loss by: 1 / window, or with weights its share of
  // that, so that local sums stay of the size of a mean.
  double loss_scale = 1;
  // Its weight is 0: it counts for nothing, and needs no backward pass.
  bool empty = false;
  // Whether the window ends with this one: an optimizer step follows.
  bool sync = true;
  // Whether the gradients are exchanged in this one's backward pass: where
  // sync is, and with sync_each_batch always, unless the window is known to be
  // dropped.
  bool exchange = true;
  // How many steps of a learning-rate scheduler the optimizer step stands for,
  // as the plan's adjust_scheduler counts them, and the same on all ranks:
  // where their windows may differ in length, it is the plan's first rank's, or
  // all ranks' together, and a short window counts as a whole one. 0 where sync
  // is false, and of no meaning where the step is skipped.
  int64_t scheduler_steps = 1;
};

// What an exchange carries: the micro-batches since the last one.
struct WindowSum {
  int64_t step = 0;
  // With sync_each_batch, the place in the window of the micro-batch. Otherwise
  // 0, as ranks may have windows of different lengths.
  int micro = 0;
  int micro_batches = 0;  // 0: nothing was summed up
  int window = 1;         // planned
  double weight = 0;      // the sum of theirs; 0 too if all were empty
  // What the losses' scales have divided the weighted sum of their gradients
  // by: the average over the ranks is
  //   sum over ranks of (divisor * gradients) / sum over ranks of weight.
  // With sync_each_batch both are 1: the averages of a window's exchanges sum
  // up to the mean.
  double divisor = 1;
  bool end_of_data = false;  // the end of the data cut the window short
  // What to multiply the summed gradients by, because their losses were divided
  // by the planned window: before the exchange, where no header exchange tells
  // the weights. With sync_each_batch: the sum of the window's averages, at its
  // end, if all ranks hear of the end of their data in the same way.
  double rescale = 1;
  // With sync_each_batch: micro-batches of the window that have been exchanged
  // before. EndOfData leaves an optimizer step to do if they are more than 0.
  int exchanged = 0;
  // As in MicroBatch; 0 unless a window ends.
  int64_t scheduler_steps = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_ACCUMULATE_MICRO_BATCH_H_
