#ifndef COXSWAIN_CLIENT_REDUCE_BUCKET_FLIGHTS_H_
#define COXSWAIN_CLIENT_REDUCE_BUCKET_FLIGHTS_H_

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
#include "client/reduce/step_report.h"

namespace coxswain {

// The buckets of one step on their way through a hook.
//
// They are begun strictly in index order, in rounds. Round r begins bucket r
// (Prepare and the first Advance), and then advances each earlier bucket that
// is still in flight by one, the latest first. So a hook computes on bucket r-1
// while bucket r's collective runs, and the order depends only on how often
// each exchange advances, which is the same on all ranks; never on timing.
//
// For one thread.
class BucketFlights {
 public:
  // All that is pointed to outlives the flights.
  struct Context {
    Hook* hook = nullptr;
    Communicator* communicator = nullptr;
    Clock* clock = nullptr;
    absl::Duration timeout;  // of each collective
    size_t buckets = 0;      // for messages; 0: not known
    // Called when a bucket holds its averages. May be null.
    std::function<absl::Status(const Bucket& bucket)> on_average;
    bool slices = false;  // by Hook::PrepareSlice
    // What the hook sends by beside `communicator`, for the timings; or null.
    Communicator* replicas = nullptr;
  };

  explicit BucketFlights(Context context) : context_(std::move(context)) {}

  // Runs a round with the next bucket; null: all of them have begun. The bucket
  // is kept until it holds its averages. After an error, which names the
  // bucket, collectives may still be in flight: abort the communicator, and
  // call Drain.
  absl::Status Round(std::shared_ptr<const Bucket> bucket);
  // Returns whether none is on its way.
  bool empty() const { return in_flight_.empty(); }

  // After the communicator's abort: waits until no collective uses the
  // exchanges' memory, for all of them up to `timeout`, and forgets them.
  void Drain(absl::Duration timeout);

  // Returns the timings by bucket, without the times at which they were ready.
  const std::vector<BucketTiming>& timings() const { return timings_; }

 private:
  // A bucket whose exchange has begun.
  struct Flight {
    std::shared_ptr<const Bucket> bucket;
    std::unique_ptr<Exchange> exchange;
    WorkPtr work;  // null before the first Advance
    // When `work` ended; written by the thread that ends it.
    std::shared_ptr<std::atomic<int64_t>> ended;
  };

  absl::Status Begin(std::shared_ptr<const Bucket> bucket);
  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(const Bucket& bucket);
  int64_t PayloadBytes() const;
  // Runs one phase; resets `flight.exchange` when the average is complete.
  absl::Status Advance(Flight& flight);
  absl::Status AwaitWork(Flight& flight);
  BucketTiming& Timing(const Flight& flight);
  absl::Status InBucket(int index, const absl::Status& status) const;

  const Context context_;
  std::vector<Flight> in_flight_;
  std::vector<BucketTiming> timings_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_BUCKET_FLIGHTS_H_
