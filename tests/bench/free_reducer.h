#ifndef COXSWAIN_TESTS_BENCH_FREE_REDUCER_H_
#define COXSWAIN_TESTS_BENCH_FREE_REDUCER_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/comm/communicator.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook.h"
#include "client/reduce/reducer.h"

namespace coxswain::bench {

// Steps of a reducer whose communicator costs nothing: one rank, the hook
// allreduce. What is left is the reducer's own work. One thread at a time.
class FreeReducer {
 public:
  struct Options {
    // Gradients lie outside the buckets, and averages are copied back there.
    bool copies = false;
    bool statistics = false;
  };

  // Float32 parameters.
  static absl::StatusOr<std::unique_ptr<FreeReducer>> Create(
      const Options& options, std::vector<ParameterSpec> parameters);

  // Marks all gradients, from the last to the first, and waits for the end.
  absl::Status Step();
  // The copies of such a step, and nothing else.
  void Copy();

 private:
  FreeReducer() = default;
  Span Outside(int parameter);

  Options options_;
  std::vector<float> gradients_;  // all of them, where they are copied
  std::vector<int64_t> offsets_;  // by parameter
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Hook> hook_;
  std::unique_ptr<Reducer> reducer_;
};

}  // namespace coxswain::bench

#endif  // COXSWAIN_TESTS_BENCH_FREE_REDUCER_H_
