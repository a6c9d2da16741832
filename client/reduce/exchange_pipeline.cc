#include "client/reduce/exchange_pipeline.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"

namespace coxswain {

ExchangePipeline::ExchangePipeline(const Options& options,
                                   const std::vector<Bucket>& buckets,
                                   Hook& hook, Communicator& communicator,
                                   std::vector<BucketTiming>* timings)
    : options_(options),
      buckets_(buckets),
      hook_(hook),
      communicator_(communicator),
      timings_(*timings) {}

absl::Status ExchangePipeline::Run() {
  size_t round = 0;
  while (round < buckets_.size() || !in_flight_.empty()) {
    size_t earlier = in_flight_.size();
    if (round < buckets_.size()) {
      const Bucket& bucket = buckets_[round++];
      COXSWAIN_RETURN_IF_ERROR(options_.await_ready(bucket));
      COXSWAIN_RETURN_IF_ERROR(InBucket(bucket, Begin(bucket)));
    }
    while (earlier-- > 0) {
      Flight& flight = in_flight_[earlier];
      COXSWAIN_RETURN_IF_ERROR(InBucket(*flight.bucket, Advance(flight)));
    }
    in_flight_.erase(
        std::remove_if(in_flight_.begin(), in_flight_.end(),
                       [](const Flight& flight) { return !flight.exchange; }),
        in_flight_.end());
  }
  return absl::OkStatus();
}

void ExchangePipeline::Drain(absl::Duration timeout) {
  for (const Flight& flight : in_flight_) {
    if (flight.work) (void)flight.work->Wait(timeout);
  }
}

absl::Status ExchangePipeline::Begin(const Bucket& bucket) {
  Flight flight;
  flight.bucket = &bucket;
  BucketTiming& timing = Timing(flight);
  timing.launched = options_.clock->Now();
  timing.gradient_bytes = bucket.data.bytes();
  COXSWAIN_ASSIGN_OR_RETURN(flight.exchange,
                            hook_.Prepare(bucket, communicator_));
  timing.in_hook += options_.clock->Now() - timing.launched;
  in_flight_.push_back(std::move(flight));
  return Advance(in_flight_.back());
}

absl::Status ExchangePipeline::Advance(Flight& flight) {
  BucketTiming& timing = Timing(flight);
  const bool first = flight.ended == nullptr;
  COXSWAIN_RETURN_IF_ERROR(AwaitWork(flight));
  const absl::Time begun = options_.clock->Now();
  const int64_t payload = communicator_.payload_bytes();
  COXSWAIN_ASSIGN_OR_RETURN(flight.work, flight.exchange->Advance());
  timing.payload_bytes += communicator_.payload_bytes() - payload;
  const absl::Time advanced = options_.clock->Now();
  timing.in_hook += advanced - begun;
  if (first) timing.compressed = advanced;
  if (flight.work) {
    flight.ended = std::make_shared<std::atomic<int64_t>>(0);
    flight.work->OnDone(
        [ended = flight.ended, clock = options_.clock](const absl::Status&) {
          ended->store(absl::ToUnixNanos(clock->Now()));
        });
    return absl::OkStatus();
  }
  // A hook that exchanges nothing has ended its exchange when it began.
  if (first) timing.exchanged = advanced;
  flight.exchange.reset();
  COXSWAIN_RETURN_IF_ERROR(options_.on_average(*flight.bucket));
  timing.done = options_.clock->Now();
  return absl::OkStatus();
}

absl::Status ExchangePipeline::AwaitWork(Flight& flight) {
  if (!flight.work) return absl::OkStatus();
  BucketTiming& timing = Timing(flight);
  const absl::Time begun = options_.clock->Now();
  const absl::Status status = flight.work->Wait(options_.timeout);
  const absl::Time now = options_.clock->Now();
  timing.waited += now - begun;
  // Whoever ends the work may wake this thread before it takes the time.
  const int64_t ended = flight.ended->load();
  timing.exchanged = ended == 0 ? now : absl::FromUnixNanos(ended);
  return status;
}

BucketTiming& ExchangePipeline::Timing(const Flight& flight) {
  return timings_[static_cast<size_t>(flight.bucket->index)];
}

absl::Status ExchangePipeline::InBucket(const Bucket& bucket,
                                        const absl::Status& status) const {
  return WithPrefix(
      absl::StrCat("bucket ", bucket.index, " of ", buckets_.size(), ": "),
      status);
}

}  // namespace coxswain
