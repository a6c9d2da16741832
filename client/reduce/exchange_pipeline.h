#ifndef COXSWAIN_CLIENT_REDUCE_EXCHANGE_PIPELINE_H_
#define COXSWAIN_CLIENT_REDUCE_EXCHANGE_PIPELINE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "client/comm/communicator.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook.h"
#include "client/schedule/step_report.h"

namespace coxswain {

// The order of a step's collectives. Buckets are begun strictly in index order,
// whichever is ready first, in rounds. Round r waits until bucket r is ready,
// begins it (Prepare and the first Advance), and then advances each earlier
// bucket that is still in flight by one, the latest first. So a hook computes
// on bucket r-1 while bucket r's collective runs, and the order depends only on
// how often each exchange advances, which is the same on all ranks; never on
// when something became ready or ended.
//
// Made by the reducer for one step; used by its exchange thread alone.
class ExchangePipeline {
 public:
  struct Options {
    absl::Duration timeout;  // the longest that one collective may take
    Clock* clock = nullptr;
    // Waits until the bucket holds this rank's gradients; without a bound of
    // its own, since the caller ends it.
    std::function<absl::Status(const Bucket&)> await_ready;
    // The average stands in the bucket.
    std::function<absl::Status(const Bucket&)> on_average;
  };

  // All outlive the pipeline. `timings` has an element for each bucket, whose
  // later fields are set.
  ExchangePipeline(const Options& options, const std::vector<Bucket>& buckets,
                   Hook& hook, Communicator& communicator,
                   std::vector<BucketTiming>* timings);

  // Exchanges all buckets. An error names the bucket; collectives may still be
  // in flight then.
  absl::Status Run();

  // After an error and the abort of the communicator: waits until no collective
  // uses the exchanges' memory, for each of them up to `timeout`.
  void Drain(absl::Duration timeout);

 private:
  struct Flight {
    const Bucket* bucket = nullptr;
    std::unique_ptr<Exchange> exchange;
    WorkPtr work;  // null before the first Advance
    // When `work` ended; written by the thread that ends it.
    std::shared_ptr<std::atomic<int64_t>> ended;
  };

  absl::Status Begin(const Bucket& bucket);
  // One phase; resets `flight.exchange` when the average stands.
  absl::Status Advance(Flight& flight);
  absl::Status AwaitWork(Flight& flight);
  BucketTiming& Timing(const Flight& flight);
  absl::Status InBucket(const Bucket& bucket, const absl::Status& status) const;

  const Options options_;
  const std::vector<Bucket>& buckets_;
  Hook& hook_;
  Communicator& communicator_;
  std::vector<BucketTiming>& timings_;
  std::vector<Flight> in_flight_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_EXCHANGE_PIPELINE_H_
