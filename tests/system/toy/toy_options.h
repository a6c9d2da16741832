#ifndef COXSWAIN_TESTS_SYSTEM_TOY_TOY_OPTIONS_H_
#define COXSWAIN_TESTS_SYSTEM_TOY_TOY_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/terms.h"
#include "tests/system/toy/toy_model.h"

namespace coxswain {

// Where a rank misbehaves, or does something by itself.
struct ToyFault {
  int rank = -1;  // -1: nowhere
  int64_t step = -1;

  bool At(int at_rank, int64_t at_step) const {
    return rank == at_rank && step == at_step;
  }
};

// The command line of the toy worker; `toy_worker --help` explains it.
struct ToyOptions {
  ToyModelOptions model;
  std::string hook = "allreduce";
  schedule::Terms terms;
  int64_t first_step = 0;
  int64_t steps = 10;
  int accumulate = 1;
  // The data.
  std::vector<int64_t> batches;  // of each rank in an epoch; empty: endless
  int64_t epochs = 1;
  bool announce_length = false;
  bool global_data = false;
  std::vector<int> samples;
  int64_t evaluate_every = 0;
  std::string evaluation_stream = "evaluation";
  bool replay = false;
  bool check_gradients = false;
  // Checkpoints and reports.
  int64_t save_at = -1;
  bool restore = false;
  bool digest = false;
  bool windows = false;
  int64_t report_every = 1;
  std::string dump;
  // What the tests hold it up with, and what it does wrong.
  int64_t wait_at = -1;
  std::string latch;
  ToyFault stall;
  ToyFault hang;
  ToyFault skip_sync;
  ToyFault nan;
  ToyFault refuse;
  ToyFault diverge;
  ToyFault stop;
};

// Parses the command line, as main gets it. If there is nothing more to do
// (--help, or an error, which it has printed) returns false and sets
// `exit_status`.
bool ParseToyOptions(int argc, char** argv, ToyOptions* options,
                     int* exit_status);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SYSTEM_TOY_TOY_OPTIONS_H_
