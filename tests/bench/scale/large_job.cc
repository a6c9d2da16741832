#include "tests/bench/scale/large_job.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/cancel_signal.h"
#include "base/status_macros.h"
#include "tests/bench/scale/process_usage.h"

namespace coxswain::bench {
namespace {

constexpr absl::Duration kMeetingTimeout = absl::Minutes(3);
constexpr int kSlots = 5;  // of a node; in 100 workers, and in 90 as well
constexpr uint64_t kLauncher = 7;
// Connections that have not been greeted, at most.
constexpr size_t kAtTheDoor = 500;
// For each peer; more than `tcp` publishes.
constexpr size_t kAddressBytes = 136;

// Returns the largest size of an axis, up to kSlots, that divides the workers.
int SlotsOf(int workers) {
  int slots = kSlots;
  while (workers % slots != 0) --slots;
  return slots;
}

std::string KeyOf(const LightWorker::Group& group, size_t rank) {
  return absl::StrCat("tcp/", group.id, "/", rank);
}

}  // namespace

LargeJob::LargeJob(const Options& options) : options_(options) {
  for (int i = 0; i < options.workers; ++i) {
    LightWorker::Place place;
    place.job = "large";
    place.node = i / kSlots;
    place.slot = i % kSlots;
    place.incarnation = static_cast<uint64_t>(i) + 1;
    place.launcher = kLauncher;
    place.world_size = options.workers;
    place.min_world_size = options.workers - options.lose;
    workers_.push_back(std::make_unique<LightWorker>(place));
  }
}

int64_t LargeJob::BytesReceived() const {
  int64_t bytes = 0;
  for (const auto& worker : workers_) bytes += worker->bytes_received();
  return bytes;
}

absl::StatusOr<Phase> LargeJob::Measure(
    const std::string& name, const std::function<void(Meeting*)>& begin) {
  COXSWAIN_ASSIGN_OR_RETURN(const ProcessUsage before,
                            UsageOf(options_.coordinator.pid));
  const int64_t bytes = BytesReceived();
  Phase phase;
  Meeting meeting(workers_.size());
  begin(&meeting);
  COXSWAIN_RETURN_IF_ERROR(meeting.Await(kMeetingTimeout));
  const std::vector<absl::Duration> arrivals = meeting.arrivals();
  COXSWAIN_ASSIGN_OR_RETURN(const ProcessUsage after,
                            UsageOf(options_.coordinator.pid));
  phase.name = name;
  phase.workers = size();
  phase.took = arrivals.back();
  phase.median = arrivals[arrivals.size() / 2];
  phase.cpu = after.cpu - before.cpu;
  phase.bytes = BytesReceived() - bytes;
  phase.resident_kib = after.resident_kib;
  return phase;
}

absl::StatusOr<Phase> LargeJob::Run(
    const std::string& name,
    const std::function<void(LightWorker*, const LightWorker::Done&)>& call) {
  return Measure(name, [&](Meeting* meeting) {
    for (const auto& worker : workers_) {
      call(worker.get(), meeting->Arriving());
    }
  });
}

absl::StatusOr<Phase> LargeJob::Join() {
  const int port = options_.coordinator.port;
  size_t begun = 0;
  return Run("join", [&](LightWorker* worker, const auto& done) {
    const absl::Status connected = worker->Connect(port);
    connected.ok() ? worker->Join(done) : done(connected);
    if (++begun % kAtTheDoor == 0) AwaitGreetings(begun - kAtTheDoor, begun);
  });
}

// The coordinator closes connections beyond its limit, which are then tried
// again; a channel of a given connection does not try again.
void LargeJob::AwaitGreetings(size_t from, size_t to) const {
  const CancelSignal never;
  for (size_t i = from; i < to; ++i) {
    while (workers_[i]->bytes_received() == 0) {
      if (never.WaitFor(absl::Milliseconds(1))) return;
    }
  }
}

absl::StatusOr<Phase> LargeJob::AskForMembers() {
  return Run("members", [](LightWorker* worker, const auto& done) {
    worker->GetMembers(0, done);
  });
}

absl::StatusOr<Phase> LargeJob::Attach() {
  notified_ = std::make_unique<Meeting>(workers_.size() -
                                        static_cast<size_t>(options_.lose));
  const auto over = [this](const std::string&) {
    notified_->Arrive(absl::OkStatus());
  };
  return Run("attach", [&over](LightWorker* worker, const auto& done) {
    worker->Attach(done, over);
  });
}

absl::StatusOr<Phase> LargeJob::FormGroups() {
  slots_ = SlotsOf(size());
  return Run("groups", [this](LightWorker* worker, const auto& done) {
    worker->CreateMesh(size() / slots_, slots_, done);
  });
}

absl::StatusOr<Phase> LargeJob::ExchangeAddresses() {
  const std::string value(kAddressBytes * static_cast<size_t>(slots_ - 1), 'a');
  return Run("addresses", [&value](LightWorker* worker, const auto& done) {
    const LightWorker::Group& group = worker->groups().back();
    std::string own;
    std::vector<std::string> others;
    for (size_t rank = 0; rank < group.ranks.size(); ++rank) {
      const std::string key = KeyOf(group, rank);
      group.ranks[rank] == worker->rank() ? own = key
                                          : others.emplace_back(key);
    }
    worker->Set(own, value, [worker, others, done](const absl::Status& set) {
      set.ok() ? worker->GetAll(others, done) : done(set);
    });
  });
}

absl::StatusOr<Phase> LargeJob::Heartbeats(int each) {
  // The barrier comes behind them on each connection.
  const std::string tag = absl::StrCat("beats-", ++barriers_);
  return Run("heartbeats", [&](LightWorker* worker, const auto& done) {
    for (int i = 0; i < each; ++i) worker->Heartbeat(++beats_);
    worker->Barrier(tag, done);
  });
}

absl::StatusOr<Phase> LargeJob::Barrier() {
  const std::string tag = absl::StrCat("barrier-", ++barriers_);
  return Run("barrier", [&tag](LightWorker* worker, const auto& done) {
    worker->Barrier(tag, done);
  });
}

absl::StatusOr<Phase> LargeJob::Lose() {
  // Every tenth or so; their processes have ended, and so have their
  // connections.
  const size_t stride = workers_.size() / static_cast<size_t>(options_.lose);
  std::vector<std::unique_ptr<LightWorker>> left;
  for (size_t i = 0; i < workers_.size(); ++i) {
    const bool lost =
        i % stride == 1 && lost_.size() < static_cast<size_t>(options_.lose);
    (lost ? lost_ : left).push_back(std::move(workers_[i]));
  }
  workers_ = std::move(left);
  Meeting reports(lost_.size());
  COXSWAIN_ASSIGN_OR_RETURN(const ProcessUsage before,
                            UsageOf(options_.coordinator.pid));
  const int64_t bytes = BytesReceived();
  const absl::Time begun = Clock::Real()->Now();
  const size_t early = notified_->arrivals().size();
  if (early != 0) return absl::InternalError("the generation ended too soon");
  for (const auto& worker : lost_) {
    workers_.front()->ReportExit(worker->place(), reports.Arriving());
  }
  COXSWAIN_RETURN_IF_ERROR(notified_->Await(kMeetingTimeout));
  COXSWAIN_RETURN_IF_ERROR(reports.Await(kMeetingTimeout));
  const absl::Time over = Clock::Real()->Now();
  const auto arrivals = notified_->arrivals();
  COXSWAIN_ASSIGN_OR_RETURN(const ProcessUsage after,
                            UsageOf(options_.coordinator.pid));
  Phase phase;
  phase.name = "lose";
  phase.workers = size();
  phase.took = over - begun;
  phase.median = phase.took - (arrivals.back() - arrivals[arrivals.size() / 2]);
  phase.cpu = after.cpu - before.cpu;
  phase.bytes = BytesReceived() - bytes;
  phase.resident_kib = after.resident_kib;
  lost_.clear();
  for (const auto& worker : workers_) worker->Detach();
  return phase;
}

absl::StatusOr<Phase> LargeJob::FormAgain() {
  return Run("join again",
             [](LightWorker* worker, const auto& done) { worker->Join(done); });
}

}  // namespace coxswain::bench
