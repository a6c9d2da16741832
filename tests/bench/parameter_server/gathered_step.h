#ifndef COXSWAIN_TESTS_BENCH_PARAMETER_SERVER_GATHERED_STEP_H_
#define COXSWAIN_TESTS_BENCH_PARAMETER_SERVER_GATHERED_STEP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/comm/channel.h"
#include "client/comm/communicator.h"

namespace coxswain::bench {

// Elements of float32.
struct GatheredStepSizes {
  int64_t parameters = 0;
  int64_t inputs = 0;   // of one rank
  int64_t outputs = 0;  // of one rank
};

// What moves in a step of data parallelism by one process that has everything,
// as torch.nn.DataParallel's five exchanges do, with processes in place of its
// threads. Rank 0
//   1. sends each other rank its inputs,
//   2. broadcasts the parameters,
//   3. receives the outputs, of which it would compute the loss,
//   4. sends the gradients of these back,
//   5. receives the gradients of the parameters, and adds them up.
// Nothing is computed but these sums.
class GatheredStep {
 public:
  // All ranks open channels to rank 0; once for each communicator.
  static absl::StatusOr<std::unique_ptr<GatheredStep>> Create(
      Communicator* communicator, const GatheredStepSizes& sizes);

  // One step. INTERNAL if the sums are wrong.
  absl::Status Run();

  // Returns how many bytes go into this rank and out of it in a step.
  int64_t moved_bytes() const;

 private:
  struct Ends {
    std::unique_ptr<ChannelSender> to;
    std::unique_ptr<ChannelReceiver> from;
  };

  GatheredStep(Communicator* communicator, const GatheredStepSizes& sizes);
  // Exchanges of rank 0, and of another one.
  absl::Status Lead();
  absl::Status Follow();
  absl::Status ReplicateParameters();

  Communicator* const communicator_;
  const GatheredStepSizes sizes_;
  std::vector<Ends> peers_;  // of rank 0 all others, of these rank 0
  std::vector<float> parameters_, gradients_, sums_, inputs_, outputs_;
  std::vector<float> received_;  // a block
};

}  // namespace coxswain::bench

#endif  // COXSWAIN_TESTS_BENCH_PARAMETER_SERVER_GATHERED_STEP_H_
