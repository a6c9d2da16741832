#ifndef COXSWAIN_CLIENT_REDUCE_STEP_EXCHANGE_H_
#define COXSWAIN_CLIENT_REDUCE_STEP_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "client/comm/communicator.h"
#include "client/reduce/bucket.h"
#include "client/reduce/gradient_marks.h"
#include "client/reduce/gradient_statistics.h"
#include "client/reduce/hook.h"
#include "client/reduce/reducer_options.h"
#include "client/reduce/step_report.h"

namespace coxswain {

// What the ranks exchange in one step, in this order: their weights, the
// buckets (in the order of ExchangePipeline), which parameters they used, and,
// in the first step, rank 0's order of gradients.
//
// Made by the reducer for each step; Run is called by its exchange thread, and
// the results are read after that.
class StepExchange {
 public:
  // All that is pointed to outlives the exchange.
  struct Context {
    const ReducerOptions* options = nullptr;
    const std::vector<Bucket>* buckets = nullptr;
    Hook* hook = nullptr;
    Communicator* communicator = nullptr;
    GradientMarks* marks = nullptr;
    // Breaks the reducer with this error, and returns the first one there was.
    std::function<absl::Status(const absl::Status&)> fail;
    size_t parameters = 0;
    double weight = 1;          // this rank's
    bool learns_order = false;  // this is the first step
  };

  explicit StepExchange(Context context);

  absl::Status Run();

  // What the ranks agreed on: all of StepReport's fields on weights.
  const StepReport& report() const { return report_; }
  // By bucket, without the times at which they were ready.
  const std::vector<BucketTiming>& timings() const { return timings_; }
  const GradientStatistics& statistics() const { return statistics_; }
  // With find_unused_parameters: how many ranks used each parameter.
  const std::vector<int32_t>& users() const { return users_; }
  // With learns_order: a permutation of the parameters.
  const std::vector<int>& ready_order() const { return ready_order_; }

 private:
  absl::Status ExchangeWeights();
  absl::Status ExchangeBuckets();
  absl::Status AwaitReady(const Bucket& bucket);
  absl::Status OnAverage(const Bucket& bucket);
  void* TakeOutside(int parameter);
  absl::Status ExchangeUsers();
  absl::Status ExchangeOrder();
  // `memory` is the collective's, and lives until that has ended, even if the
  // wait gives up.
  absl::Status Await(const WorkPtr& work, std::shared_ptr<const void> memory);

  const Context context_;
  Communicator& communicator_;
  double scale_ = 1;  // of this rank's gradients
  StepReport report_;
  std::vector<BucketTiming> timings_;
  GradientStatistics statistics_;
  std::vector<int32_t> users_;
  std::vector<int> ready_order_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_STEP_EXCHANGE_H_
