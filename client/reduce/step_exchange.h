#ifndef COXSWAIN_CLIENT_REDUCE_STEP_EXCHANGE_H_
#define COXSWAIN_CLIENT_REDUCE_STEP_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/comm/communicator.h"
#include "client/reduce/bucket.h"
#include "client/reduce/bucket_flights.h"
#include "client/reduce/bucket_pool.h"
#include "client/reduce/gradient_marks.h"
#include "client/reduce/gradient_memory.h"
#include "client/reduce/gradient_statistics.h"
#include "client/reduce/hook.h"
#include "client/reduce/own_slices.h"
#include "client/reduce/reducer_options.h"
#include "client/reduce/step_report.h"
#include "schedule/step_gate.h"

namespace coxswain {

// Exchanges what the ranks need of one step, in this order: the header
// (weights, which ranks are out of data, plans), the buckets, which parameters
// they used, and, in the first step, rank 0's order of gradients.
//
// Buckets go in the order of BucketFlights, each once it is ready.
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
    Communicator* slicing = nullptr;  // whose ranks have slices
    GradientMarks* marks = nullptr;
    GradientMemory* memory = nullptr;
    // Where the buckets' memory comes from; null: they have their own.
    BucketPool* pool = nullptr;
    // Where the own slices' averages are put, or added; null: nowhere.
    const OwnSlices* own = nullptr;
    // Breaks the reducer with this error, and returns its first error.
    std::function<absl::Status(const absl::Status&)> fail;
    // Returns what all ranks do with the step; called before on_average.
    std::function<absl::StatusOr<schedule::Decision>()> decide;
    size_t parameters = 0;
    schedule::Ticket ticket;    // this rank's
    double divisor = 1;         // of its gradients: see BeginStep
    bool learns_order = false;  // this is the first step
    bool norm_by_vote = false;  // the statistics come with the decision
  };

  explicit StepExchange(Context context);

  // Exchanges the header, in all steps alike. Fails with FAILED_PRECONDITION,
  // on all ranks, if they follow different plans.
  absl::Status ExchangeHeader();
  absl::Status CheckPlans() const;
  // Exchanges everything else.
  absl::Status Run();
  // With slices: exchanges the statistics of this rank's, for those of all
  // slices. Part of Run, unless norm_by_vote.
  absl::Status ExchangeStatistics();

  // Returns what the ranks agreed on: all of StepReport's fields on weights.
  const StepReport& report() const { return report_; }
  // Returns how many collectives among all ranks, or those that have slices,
  // the hook has started.
  int64_t collectives() const { return collectives_; }
  // Returns the timings by bucket, without the times at which they were ready.
  const std::vector<BucketTiming>& timings() const {
    return flights_.timings();
  }
  // With find_unused_parameters: returns how many ranks used each parameter.
  const std::vector<int32_t>& users() const { return users_; }
  // With slices: returns those of all ranks' slices, if they are measured.
  const GradientStatistics& statistics() const { return statistics_; }
  // With finds_non_finite: returns the parameters whose gradients of this rank
  // are not finite.
  const std::vector<int>& own_non_finite() const { return own_non_finite_; }
  // With learns_order: returns a permutation of the parameters.
  const std::vector<int>& ready_order() const { return ready_order_; }

 private:
  void ReadHeader(const std::vector<double>& header);
  // Sets this rank's factor, or share, once the sum of the weights is known.
  void Weigh();
  const std::vector<Bucket>& buckets() const {
    return shared_.empty() ? *context_.buckets : shared_;
  }
  absl::Status ExchangeAll();
  absl::Status ExchangeBuckets();
  // Runs all rounds. After an error collectives may still be in flight.
  absl::Status RunRounds();
  // Returns a complete bucket with its memory, and the places of those
  // gradients that were marked in place; it may be one of the context's, which
  // the pointer does not own.
  absl::StatusOr<std::shared_ptr<const Bucket>> Placed(
      const Bucket& bucket) const;
  // The same with memory of the pool, and zeros for what is absent.
  absl::StatusOr<std::shared_ptr<const Bucket>> FromPool(
      const Bucket& bucket) const;
  // Waits until the bucket is complete, and returns it with its gradients
  // weighted.
  absl::StatusOr<std::shared_ptr<const Bucket>> AwaitReady(
      const Bucket& bucket);
  void FindNonFinite(const Bucket& bucket);
  absl::Status OnAverage(const Bucket& bucket);
  // Calls options.on_average, unless the step is skipped.
  absl::Status HandOver(const Bucket& bucket);
  void* TakeOutside(int parameter);
  // Measures this rank's slice, and takes it from the bucket, or adds it up, if
  // it is kept elsewhere.
  absl::Status TakeSlice(const Bucket& bucket);
  absl::Status ExchangeUsers();
  absl::Status ExchangeOrder();
  // Waits for a collective that uses `memory`, which lives until it has ended,
  // even if the wait times out.
  absl::Status Await(const WorkPtr& work, std::shared_ptr<const void> memory);

  const Context context_;
  Communicator& communicator_;
  Communicator& slicing_;
  // The factor of this rank's gradients before the hook.
  double scale_ = 1;
  // The context's buckets with this rank's share, if the hook applies it.
  std::vector<Bucket> shared_;
  std::vector<int64_t> plans_;  // by rank, with a header
  // Whether on_average may be called; decided once.
  std::optional<bool> takes_averages_;
  StepReport report_;
  int64_t collectives_ = 0;
  BucketFlights flights_;
  GradientStatistics statistics_;
  std::vector<int32_t> users_;
  std::vector<int> own_non_finite_;
  std::vector<int> ready_order_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_STEP_EXCHANGE_H_
