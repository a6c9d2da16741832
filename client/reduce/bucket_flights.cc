#include "client/reduce/bucket_flights.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/comm/work.h"
#include "client/reduce/bucket_slices.h"

namespace coxswain {

absl::Status BucketFlights::Round(std::shared_ptr<const Bucket> bucket) {
  size_t earlier = in_flight_.size();
  if (bucket != nullptr) {
    const int index = bucket->index;
    COXSWAIN_RETURN_IF_ERROR(InBucket(index, Begin(std::move(bucket))));
  }
  while (earlier-- > 0) {
    Flight& flight = in_flight_[earlier];
    COXSWAIN_RETURN_IF_ERROR(InBucket(flight.bucket->index, Advance(flight)));
  }
  in_flight_.erase(
      std::remove_if(in_flight_.begin(), in_flight_.end(),
                     [](const Flight& flight) { return !flight.exchange; }),
      in_flight_.end());
  return absl::OkStatus();
}

absl::Status BucketFlights::Begin(std::shared_ptr<const Bucket> bucket) {
  Flight flight;
  flight.bucket = std::move(bucket);
  BucketTiming& timing = Timing(flight);
  timing.launched = context_.clock->Now();
  timing.gradient_bytes = flight.bucket->data.bytes();
  COXSWAIN_ASSIGN_OR_RETURN(flight.exchange, Prepare(*flight.bucket));
  timing.in_hook += context_.clock->Now() - timing.launched;
  in_flight_.push_back(std::move(flight));
  return Advance(in_flight_.back());
}

absl::StatusOr<std::unique_ptr<Exchange>> BucketFlights::Prepare(
    const Bucket& bucket) {
  Communicator& communicator = *context_.communicator;
  if (!context_.slices) return context_.hook->Prepare(bucket, communicator);
  return context_.hook->PrepareSlice(
      bucket, BucketSlices::Of(bucket.data, communicator.size()), communicator);
}

int64_t BucketFlights::PayloadBytes() const {
  const int64_t bytes = context_.communicator->payload_bytes();
  return context_.replicas == nullptr
             ? bytes
             : bytes + context_.replicas->payload_bytes();
}

absl::Status BucketFlights::Advance(Flight& flight) {
  Clock* const clock = context_.clock;
  BucketTiming& timing = Timing(flight);
  const bool first = flight.ended == nullptr;
  COXSWAIN_RETURN_IF_ERROR(AwaitWork(flight));
  const absl::Time begun = clock->Now();
  const int64_t payload = PayloadBytes();
  COXSWAIN_ASSIGN_OR_RETURN(flight.work, flight.exchange->Advance());
  timing.payload_bytes += PayloadBytes() - payload;
  const absl::Time advanced = clock->Now();
  timing.in_hook += advanced - begun;
  if (first) timing.compressed = advanced;
  if (flight.work) {
    flight.ended = std::make_shared<std::atomic<int64_t>>(0);
    flight.work->OnDone([ended = flight.ended, clock](const absl::Status&) {
      ended->store(absl::ToUnixNanos(clock->Now()));
    });
    return absl::OkStatus();
  }
  // A hook that exchanges nothing has ended its exchange when it began.
  if (first) timing.exchanged = advanced;
  flight.exchange.reset();
  if (context_.on_average) {
    COXSWAIN_RETURN_IF_ERROR(context_.on_average(*flight.bucket));
  }
  timing.done = clock->Now();
  return absl::OkStatus();
}

absl::Status BucketFlights::AwaitWork(Flight& flight) {
  if (!flight.work) return absl::OkStatus();
  BucketTiming& timing = Timing(flight);
  const absl::Time begun = context_.clock->Now();
  const absl::Status status = flight.work->Wait(context_.timeout);
  const absl::Time now = context_.clock->Now();
  timing.waited += now - begun;
  // The thread that ends the work may wake this one before it takes the time.
  const int64_t ended = flight.ended->load();
  timing.exchanged = ended == 0 ? now : absl::FromUnixNanos(ended);
  return status;
}

void BucketFlights::Drain(absl::Duration timeout) {
  const absl::Time deadline = context_.clock->Now() + timeout;
  for (const Flight& flight : in_flight_) {
    if (!flight.work) continue;
    const absl::Duration left = deadline - context_.clock->Now();
    (void)flight.work->Wait(std::max(left, absl::ZeroDuration()));
  }
  in_flight_.clear();
}

BucketTiming& BucketFlights::Timing(const Flight& flight) {
  const auto index = static_cast<size_t>(flight.bucket->index);
  if (index >= timings_.size()) timings_.resize(index + 1);
  return timings_[index];
}

absl::Status BucketFlights::InBucket(int index,
                                     const absl::Status& status) const {
  if (status.ok()) return status;
  std::string where = absl::StrCat("bucket ", index);
  if (context_.buckets > 0) absl::StrAppend(&where, " of ", context_.buckets);
  return WithPrefix(absl::StrCat(where, ": "), status);
}

}  // namespace coxswain
