#include "client/comm/nccl/nccl_link.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "client/comm/nccl/nccl_status.h"

namespace coxswain {
namespace {

constexpr absl::Duration kShortestLook = absl::Microseconds(10);
constexpr absl::Duration kLongestLook = absl::Milliseconds(1);
// How long an abort lets a call under way notice it.
constexpr absl::Duration kCourtesy = absl::Seconds(1);
constexpr absl::Duration kEndTimeout = absl::Seconds(5);

// Runs `work` on a thread of its own, and waits for it; false if it takes
// longer than `timeout`, and then it goes on alone.
class BoundedRun {
 public:
  explicit BoundedRun(std::function<void()> work)
      : done_(std::make_shared<Done>()),
        thread_([done = done_, work = std::move(work)] {
          work();
          MutexLock lock(&done->mutex);
          done->is = true;
          done->changed.NotifyAll();
        }) {}
  ~BoundedRun() {
    if (Wait(absl::ZeroDuration())) {
      thread_.join();
    } else {
      thread_.detach();
    }
  }
  bool Wait(absl::Duration timeout) {
    MutexLock lock(&done_->mutex);
    return done_->changed.WaitFor(
        &done_->mutex, timeout,
        [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return done_->is; });
  }

 private:
  struct Done {
    Mutex mutex;
    CondVar changed;
    bool is ABSL_GUARDED_BY(mutex) = false;
  };
  const std::shared_ptr<Done> done_;
  std::thread thread_;
};

void WarnOfStuck(absl::string_view what) {
  LogWarning("nccl_communicator_does_not_end",
             {{"call", what}, {"waited", absl::FormatDuration(kEndTimeout)}});
}

// Finalizes and destroys, or aborts once asked to.
void FinishOnThread(NcclApi* api, NcclComm comm,
                    const std::atomic<bool>& give_up) {
  NcclResult state = api->Finalize(comm);
  Mutex mutex;
  CondVar pause;
  while (state == NcclResult::kInProgress && !give_up.load()) {
    if (api->GetAsyncError(comm, &state) != NcclResult::kSuccess) break;
    if (state != NcclResult::kInProgress) break;
    MutexLock lock(&mutex);
    pause.WaitFor(&mutex, kLongestLook, [] { return false; });
  }
  if (state == NcclResult::kSuccess) {
    api->Destroy(comm);
  } else {
    api->Abort(comm);
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<NcclLink>> NcclLink::Connect(
    absl::string_view where, NcclApi* api, const NcclRank& rank,
    const std::vector<NcclUniqueId>& ids, const NcclTimeout& timeout) {
  NcclComm comm = nullptr;
  const NcclResult result = ids.size() == 1
                                ? api->InitRank(&comm, rank, ids[0])
                                : api->InitRankScalable(&comm, rank, ids);
  COXSWAIN_RETURN_IF_ERROR(NcclStatus(where, result, api, nullptr));
  auto link = std::make_shared<NcclLink>(api, comm);
  COXSWAIN_RETURN_IF_ERROR(link->Run(
      where, [](NcclComm) { return NcclResult::kInProgress; }, timeout));
  return link;
}

absl::Status NcclLink::Run(absl::string_view where,
                           const std::function<NcclResult(NcclComm)>& call,
                           const NcclTimeout& timeout) {
  NcclComm comm = nullptr;
  const auto free = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return !in_call_ || ending_;
  };
  {
    MutexLock lock(&mutex_);
    const absl::Duration left = timeout.end - timeout.clock->Now();
    if (!changed_.WaitFor(&mutex_, std::max(left, absl::ZeroDuration()),
                          free)) {
      return absl::DeadlineExceededError(
          absl::StrCat(where, ": NCCL is busy with another call"));
    }
    if (ending_) {
      return absl::AbortedError(
          absl::StrCat(where, ": the communicator has ended"));
    }
    in_call_ = true;
    comm = comm_;
  }
  const NcclResult result = call(comm);
  absl::Status status = NcclStatus(where, result, api_, comm);
  MutexLock lock(&mutex_);
  if (result == NcclResult::kInProgress) status = Settle(where, comm, timeout);
  in_call_ = false;
  changed_.NotifyAll();
  return status;
}

absl::Status NcclLink::Settle(absl::string_view where, NcclComm comm,
                              const NcclTimeout& timeout) {
  const auto ending = [this]()
                          ABSL_NO_THREAD_SAFETY_ANALYSIS { return ending_; };
  for (absl::Duration look = kShortestLook;;
       look = std::min(2 * look, kLongestLook)) {
    if (ending_) {
      return absl::AbortedError(
          absl::StrCat(where, ": the communicator has ended"));
    }
    NcclResult state = NcclResult::kSuccess;
    const NcclResult asked = api_->GetAsyncError(comm, &state);
    COXSWAIN_RETURN_IF_ERROR(NcclStatus(where, asked, api_, comm));
    if (state != NcclResult::kInProgress) {
      return NcclStatus(where, state, api_, comm);
    }
    if (timeout.cancel != nullptr) {
      COXSWAIN_RETURN_IF_ERROR(timeout.cancel->status());
    }
    if (timeout.clock->Now() >= timeout.end) {
      return absl::DeadlineExceededError(absl::StrCat(
          where, ": NCCL still waits for peers, all of which had come"));
    }
    changed_.WaitFor(&mutex_, look, ending);
  }
}

absl::Status NcclLink::AsyncError(absl::string_view where) {
  MutexLock lock(&mutex_);
  if (in_call_ || ending_) return absl::OkStatus();
  NcclResult state = NcclResult::kSuccess;
  const NcclResult asked = api_->GetAsyncError(comm_, &state);
  COXSWAIN_RETURN_IF_ERROR(NcclStatus(where, asked, api_, comm_));
  return NcclStatus(where, state, api_, comm_);
}

NcclComm NcclLink::Take() {
  MutexLock lock(&mutex_);
  ending_ = true;
  changed_.NotifyAll();
  changed_.WaitFor(&mutex_, kCourtesy, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return !in_call_;
  });
  return std::exchange(comm_, nullptr);
}

void NcclLink::Abort(const std::function<void()>& release) {
  NcclComm const comm = Take();
  if (comm == nullptr) return;
  BoundedRun run([api = api_, comm] { api->Abort(comm); });
  if (release != nullptr) release();
  if (!run.Wait(kEndTimeout)) WarnOfStuck("abort");
}

void NcclLink::Finish() {
  NcclComm const comm = Take();
  if (comm == nullptr) return;
  const auto give_up = std::make_shared<std::atomic<bool>>(false);
  BoundedRun run(
      [api = api_, comm, give_up] { FinishOnThread(api, comm, *give_up); });
  if (run.Wait(kEndTimeout)) return;
  give_up->store(true);
  if (!run.Wait(kEndTimeout)) WarnOfStuck("finalize");
}

}  // namespace coxswain
