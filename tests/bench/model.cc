#include "tests/bench/model.h"

#include <utility>

#include "absl/time/time.h"
#include "base/status_macros.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/comm/in_process/loopback_communicator.h"
#include "client/reduce/bucket_layout.h"
#include "hooks/registry/registry.h"

namespace coxswain::bench {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(5);

std::vector<std::unique_ptr<Communicator>> MakeCommunicators(int size) {
  std::vector<std::unique_ptr<Communicator>> made;
  if (size == 1) {
    made.push_back(std::make_unique<LoopbackCommunicator>());
    return made;
  }
  const auto world = InProcessWorld::Create(size, kTimeout);
  for (int rank = 0; rank < size; ++rank) made.push_back(world->MakeRank(rank));
  return made;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Model::Create(
    const std::string& spec, std::vector<ParameterSpec> parameters,
    int world_size) {
  auto model = std::make_unique<Model>();
  COXSWAIN_ASSIGN_OR_RETURN(model->buckets_,
                            PlanBuckets(BucketPlanOptions(), parameters));
  for (auto& communicator : MakeCommunicators(world_size)) {
    Rank rank;
    rank.communicator = std::move(communicator);
    COXSWAIN_ASSIGN_OR_RETURN(rank.hook, MakeHook(spec));
    COXSWAIN_RETURN_IF_ERROR(rank.hook->Configure(parameters, world_size));
    rank.buckets = model->buckets_;
    model->ranks_.push_back(std::move(rank));
  }
  return model;
}

void Model::SetMemory(int rank, size_t bucket, void* data) {
  ranks_[static_cast<size_t>(rank)].buckets[bucket].data.data = data;
}

int64_t Model::payload_bytes() const {
  return ranks_[0].communicator->payload_bytes();
}

absl::Status Model::Step(bool commit) {
  const absl::Status status = ExchangeAll();
  for (Rank& rank : ranks_) {
    if (status.ok() && commit) {
      COXSWAIN_RETURN_IF_ERROR(rank.hook->Commit());
    } else {
      rank.hook->Rollback();
    }
  }
  return status;
}

absl::Status Model::Begin(size_t bucket, Flight& flight) {
  for (Rank& rank : ranks_) {
    COXSWAIN_ASSIGN_OR_RETURN(
        auto exchange,
        rank.hook->Prepare(rank.buckets[bucket], *rank.communicator));
    flight.exchanges.push_back(std::move(exchange));
  }
  return Advance(flight);
}

absl::Status Model::Advance(Flight& flight) {
  for (const WorkPtr& work : flight.works) {
    COXSWAIN_RETURN_IF_ERROR(work->Wait(kTimeout));
  }
  flight.works.clear();
  for (auto& exchange : flight.exchanges) {
    COXSWAIN_ASSIGN_OR_RETURN(WorkPtr work, exchange->Advance());
    if (work != nullptr) flight.works.push_back(std::move(work));
  }
  flight.done = flight.works.empty();
  // Its memory goes back to the hook, for the next bucket.
  if (flight.done) flight.exchanges.clear();
  return absl::OkStatus();
}

// Round r begins bucket r and then advances each earlier one by one, the
// latest first (see client/reduce/reducer.h).
absl::Status Model::ExchangeAll() {
  std::vector<Flight> flights;
  flights.reserve(buckets_.size());
  for (size_t left = buckets_.size(); left > 0;) {
    const size_t earlier = flights.size();
    if (earlier < buckets_.size()) {
      flights.emplace_back();
      COXSWAIN_RETURN_IF_ERROR(Begin(earlier, flights.back()));
      if (flights.back().done) --left;
    }
    for (size_t i = earlier; i-- > 0;) {
      if (flights[i].done) continue;
      COXSWAIN_RETURN_IF_ERROR(Advance(flights[i]));
      if (flights[i].done) --left;
    }
  }
  return absl::OkStatus();
}

}  // namespace coxswain::bench
