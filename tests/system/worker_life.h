#ifndef COXSWAIN_TESTS_SYSTEM_WORKER_LIFE_H_
#define COXSWAIN_TESTS_SYSTEM_WORKER_LIFE_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace coxswain {

// A generation, as a worker has reported it when it had recovered.
struct LivedGeneration {
  int64_t generation = 0;
  int rank = -1;
  int world = 0;
  int64_t from_step = 0;
  bool copied = false;
  absl::Time began;       // as far as the test knows: when the line was read
  absl::Time first_step;  // taken in it; infinite: none yet
  absl::Time ended;       // when the worker saw its error; infinite: not so
};

// What a worker reports at its end.
struct WorkerResult {
  int64_t step = 0;
  bool finished = false;
  int64_t samples = 0;
  std::string parameters;  // a checksum
  bool exact = false;
  // Which steps were taken in which generation, or a checksum of it; JSON.
  std::string runs;
};

// One process of the elastic toy (tests/system/toy), from its own words.
struct WorkerLife {
  std::string worker;  // NODE/SLOT
  pid_t pid = 0;
  std::vector<LivedGeneration> generations;
  int64_t step = 0;             // the last that it has reported
  int64_t step_generation = 0;  // in which it was taken
  std::optional<WorkerResult> result;
  std::optional<absl::Time> killed;  // by the test
  bool exited = false;               // its launcher has reported its end

  int64_t generation() const { return generations.back().generation; }
  int rank() const { return generations.back().rank; }
  int world() const { return generations.back().world; }
  bool over() const {
    return result.has_value() || killed.has_value() || exited;
  }
};

// Returns the pid in a line that a worker prints when a generation begins; 0:
// it is another line.
pid_t PidOfLine(absl::string_view line);

// Takes what a worker has printed at `now`, without the launcher's prefix.
// Returns false for a line that it does not know.
bool TakeLine(absl::string_view line, absl::Time now, WorkerLife* life);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SYSTEM_WORKER_LIFE_H_
