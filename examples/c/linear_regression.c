/* Data-parallel training over plain arrays, in C99:
 *
 *   coxswain run --nproc 2 -- linear_regression [STEPS]
 *
 * Each rank has rows of its own, y = x . truth + noise. All ranks fit one
 * vector of weights to all rows by stochastic gradient descent, and take the
 * same steps: the coordinator compares what they announce, and decides.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "capi/coxswain.h"

enum { FEATURES = 8, ROWS = 32 };
static const double kRate = 0.05;

/* Numbers in [-1, 1), the same on every machine. */
static double next_random(uint64_t* state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (double)(*state >> 11) / 4503599627370496.0 - 1.0;
}

/* Adds the gradient of a micro-batch's mean loss; returns that loss. */
static double add_gradient(const double* weights, uint64_t* random,
                           double* gradient) {
  double loss = 0;
  for (int row = 0; row < ROWS; ++row) {
    double x[FEATURES];
    double error = 0.01 * next_random(random);
    for (int i = 0; i < FEATURES; ++i) {
      x[i] = next_random(random);
      error += x[i] * (weights[i] - (i + 1)); /* the truth is 1, 2, 3, ... */
    }
    for (int i = 0; i < FEATURES; ++i) gradient[i] += 2 * error * x[i] / ROWS;
    loss += error * error / ROWS;
  }
  return loss;
}

/* One step of all ranks: gradients of the plan's number of micro-batches, their
 * sum over the ranks, and the decision. */
static cx_code train_step(cx_session session, const cx_session_info* info,
                          int64_t step, uint64_t* random, double* weights,
                          double* loss, cx_decision* decision) {
  cx_plan_info plan = CX_INIT(cx_plan_info);
  cx_ticket ticket = CX_INIT(cx_ticket);
  /* Gradients, and the loss behind them: one exchange for both. */
  double sums[FEATURES + 1] = {0};
  double micro_batches;
  cx_code code;

  if ((code = cx_plan(session, &plan)) != CX_OK) return code;
  for (int i = 0; i < plan.accumulation; ++i) {
    sums[FEATURES] += add_gradient(weights, random, sums);
    cx_note_micro_batch(session);
  }

  ticket.step = step;
  ticket.micro_batches = plan.accumulation;
  if ((code = cx_announce(session, &ticket)) != CX_OK) return code;
  if ((code = cx_grant(session, NULL, NULL)) != CX_OK) return code;
  if ((code = cx_all_reduce(session, sums, FEATURES + 1, CX_FLOAT64, CX_SUM,
                            NULL)) != CX_OK) {
    return code;
  }
  if ((code = cx_decide(session, NULL, NULL, decision, NULL)) != CX_OK) {
    return code;
  }
  micro_batches = (double)plan.accumulation * info->world_size;
  *loss = sums[FEATURES] / micro_batches;
  if (decision->commit) {
    for (int i = 0; i < FEATURES; ++i) {
      weights[i] -= kRate * sums[i] / micro_batches;
    }
  }
  return CX_OK;
}

static cx_code train(cx_session session, int64_t steps) {
  cx_session_info info = CX_INIT(cx_session_info);
  cx_decision decision = CX_INIT(cx_decision);
  double weights[FEATURES];
  double loss = 0;
  uint64_t random;
  cx_code code;

  if ((code = cx_info(session, &info)) != CX_OK) return code;
  random = (uint64_t)info.rank + 1;
  for (int i = 0; i < FEATURES; ++i) weights[i] = next_random(&random);
  /* All begin with rank 0's weights. */
  if ((code = cx_broadcast(session, weights, FEATURES, CX_FLOAT64, 0, NULL)) !=
      CX_OK) {
    return code;
  }
  for (int64_t step = 0; step < steps; ++step) {
    code = train_step(session, &info, step, &random, weights, &loss, &decision);
    if (code != CX_OK) return code;
    if (info.rank == 0 && (step + 1) % 20 == 0) {
      printf("step %" PRId64 " loss %.6f\n", step + 1, loss);
      fflush(stdout);
    }
    if (decision.stop[0] != '\0' || decision.regroup[0] != '\0') break;
  }
  printf("rank %d of %d weights", (int)info.rank, (int)info.world_size);
  for (int i = 0; i < FEATURES; ++i) printf(" %.17g", weights[i]);
  printf("\n");
  return CX_OK;
}

int main(int argc, char** argv) {
  cx_join_options options = CX_INIT(cx_join_options);
  cx_session session = 0;
  cx_code code;

  options.plan = "accumulation=2";
  code = cx_join(&options, &session, NULL);
  if (code == CX_OK) {
    code = train(session, argc > 1 ? strtoll(argv[1], NULL, 10) : 100);
  }
  if (code != CX_OK) {
    fprintf(stderr, "linear_regression: %s\n", cx_last_error_message());
  }
  if (session != 0) {
    cx_leave(session, code == CX_OK ? "done" : "it failed", code != CX_OK,
             NULL);
    cx_close(session);
  }
  return code == CX_OK ? 0 : 1;
}
