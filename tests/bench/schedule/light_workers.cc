#include "tests/bench/schedule/light_workers.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "client/rpc/stub_factory.h"

namespace coxswain::bench {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(20);

v1::JoinRequest RequestOf(const std::string& job, int slot, int count) {
  v1::JoinRequest request;
  request.set_job(job);
  request.mutable_identity()->set_node("bench");
  request.mutable_identity()->set_slot(slot);
  request.set_incarnation(static_cast<uint64_t>(slot) + 1);
  request.set_host("bench");
  request.set_address("127.0.0.1");
  request.set_timeout_ms(absl::ToInt64Milliseconds(kTimeout));
  v1::Manifest* manifest = request.mutable_manifest();
  manifest->set_world_size(count);
  manifest->set_hook("allreduce");
  manifest->set_accumulation_steps(1);
  (*manifest->mutable_terms())["enforcement"] = "strict";
  return request;
}

v1::Fence FenceOf(const std::string& job, int slot,
                  const v1::JoinResponse& joined) {
  v1::Fence fence;
  fence.set_cluster_id(joined.cluster_id());
  fence.set_term(joined.term());
  fence.set_job(job);
  fence.set_generation(joined.generation());
  fence.set_incarnation(static_cast<uint64_t>(slot) + 1);
  fence.set_request_id(1);
  return fence;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LightWorkers>> LightWorkers::Join(
    const std::string& coordinator, const std::string& job, int count) {
  auto made = std::unique_ptr<LightWorkers>(new LightWorkers);
  made->workers_.resize(static_cast<size_t>(count));
  COXSWAIN_RETURN_IF_ERROR(made->JoinAll(coordinator, job));
  COXSWAIN_RETURN_IF_ERROR(made->AttachAll());
  return made;
}

absl::Status LightWorkers::JoinAll(const std::string& coordinator,
                                   const std::string& job) {
  const int count = static_cast<int>(workers_.size());
  std::vector<absl::StatusOr<v1::JoinResponse>> answers(workers_.size(),
                                                        v1::JoinResponse());
  std::vector<std::thread> threads;
  for (int slot = 0; slot < count; ++slot) {
    const auto at = static_cast<size_t>(slot);
    // With retries: a connection may fail where many are made at once.
    workers_[at].stub = ConnectCoordinator(coordinator);
    threads.emplace_back([this, &answers, at, slot, count, &job] {
      CallOptions call;
      call.timeout = kTimeout;
      answers[at] = workers_[at].stub->Join(RequestOf(job, slot, count), call);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int slot = 0; slot < count; ++slot) {
    const auto& answer = answers[static_cast<size_t>(slot)];
    COXSWAIN_RETURN_IF_ERROR(answer.status());
    workers_[static_cast<size_t>(slot)].fence = FenceOf(job, slot, *answer);
    plan_ = answer->plan();
  }
  return absl::OkStatus();
}

absl::Status LightWorkers::AttachAll() {
  for (Worker& worker : workers_) {
    StreamCallbacks<v1::AttachEvent> callbacks;
    callbacks.on_event = [this](const v1::AttachEvent& event) {
      OnEvent(event);
    };
    callbacks.on_end = [this](const absl::Status& status) {
      MutexLock lock(&mutex_);
      end_.Update(absl::AbortedError(
          absl::StrCat("a stream has ended: ", status.message())));
      changed_.NotifyAll();
    };
    worker.stream = worker.stub->Attach(std::move(callbacks));
    v1::AttachRequest hello;
    *hello.mutable_hello()->mutable_fence() = worker.fence;
    worker.stream->Send(hello);
  }
  return Await(attached_);
}

LightWorkers::~LightWorkers() {
  for (Worker& worker : workers_) {
    v1::LeaveRequest request;
    *request.mutable_fence() = worker.fence;
    if (worker.stream != nullptr) {
      worker.stub->Leave(request, CallOptions()).IgnoreError();
    }
  }
  for (Worker& worker : workers_) worker.stream.reset();
}

void LightWorkers::OnEvent(const v1::AttachEvent& event) {
  const int all = static_cast<int>(workers_.size());
  MutexLock lock(&mutex_);
  // No thread is woken before all have been answered.
  if (event.has_attached() && ++attached_ == all) changed_.NotifyAll();
  if (event.has_decision() && ++decided_ == all) changed_.NotifyAll();
  if (event.has_abort()) {
    end_.Update(absl::AbortedError(event.abort().reason()));
    changed_.NotifyAll();
  }
}

absl::Status LightWorkers::Await(const int& counter) {
  MutexLock lock(&mutex_);
  const int all = static_cast<int>(workers_.size());
  const bool over =
      changed_.WaitFor(&mutex_, kTimeout, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return !end_.ok() || counter == all;
      });
  COXSWAIN_RETURN_IF_ERROR(end_);
  if (over) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("round ", round_, ": ", counter, " of ", all, " answers"));
}

v1::AttachRequest LightWorkers::TicketOfRound() const {
  v1::AttachRequest request;
  v1::Ticket* ticket = request.mutable_ticket();
  ticket->set_stream("train");
  ticket->set_round(round_);
  ticket->set_step(round_);
  ticket->set_micro_batches(1);
  ticket->set_window(1);
  ticket->set_weight(1);
  ticket->set_plan_version(plan_.version());
  ticket->set_hook(plan_.hook());
  ticket->set_layout(1);
  ticket->set_digest(static_cast<uint64_t>(round_));
  return request;
}

absl::StatusOr<absl::Duration> LightWorkers::Round() {
  {
    MutexLock lock(&mutex_);
    decided_ = 0;
  }
  const v1::AttachRequest ticket = TicketOfRound();
  const absl::Time begun = Clock::Real()->Now();
  for (Worker& worker : workers_) {
    if (!worker.stream->Send(ticket)) {
      return absl::UnavailableError("a stream takes no ticket");
    }
  }
  COXSWAIN_RETURN_IF_ERROR(Await(decided_));
  const absl::Duration took = Clock::Real()->Now() - begun;
  ++round_;
  return took;
}

}  // namespace coxswain::bench
