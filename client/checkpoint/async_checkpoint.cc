#include "client/checkpoint/async_checkpoint.h"

#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/wait_count.h"
#include "client/checkpoint/checkpoint_copy.h"
#include "client/checkpoint/hook_choice.h"
#include "client/checkpoint/hook_cut.h"
#include "client/checkpoint/piece_checkpoint.h"
#include "client/checkpoint/save_together.h"

namespace coxswain {
namespace {

// How long the destructor waits for a transfer that it has given up.
constexpr absl::Duration kGiveUpWait = absl::Seconds(2);

absl::Status Superseded(int64_t step) {
  return absl::CancelledError(absl::StrCat(
      "step ", step,
      " was not saved: a save takes longer than the time between them, and a "
      "newer one has taken its place"));
}

constexpr char kConnectionKey[] = "checkpoint/connection";
constexpr char kNoConnection[] = "0";

}  // namespace

// Outlives the object where a transfer that was given up does.
class AsyncCheckpoint::Core {
 public:
  Core(const CheckpointClient& checkpoints, Options options)
      : options_(std::move(options)), checkpoints_(checkpoints) {}

  const Options& options() const { return options_; }
  // The memory of an earlier copy, if there is any.
  CopyMemory TakeSpare() {
    MutexLock lock(&mutex_);
    return std::exchange(spare_, {});
  }
  void Put(CopyPtr copy);
  absl::Status Finish(absl::Duration timeout);
  // Of the thread.
  void Run();
  void Stop();

  std::optional<SaveReport> last() const {
    MutexLock lock(&mutex_);
    return last_;
  }
  bool busy() const {
    MutexLock lock(&mutex_);
    return BusyLocked();
  }

 private:
  bool BusyLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return saving_ || waiting_ != nullptr;
  }
  bool stopping() const {
    MutexLock lock(&mutex_);
    return stopping_;
  }
  // Runs what belongs to the object's owner; not once it has stopped.
  template <typename Call>
  absl::Status CallOwner(Call call);

  // The next copy; null: it has stopped, or none came in time.
  CopyPtr Await(absl::Duration timeout);
  absl::Status Connect();
  void Disconnect();
  // Exchanges this rank's copy for a newer one until all have the same step.
  absl::Status AgreeOnStep(CopyPtr* copy);
  absl::Status TakeNewer(CopyPtr* copy);
  absl::StatusOr<std::string> Save(CopyPtr* copy);
  absl::StatusOr<std::unique_ptr<Hook>> LoadCopy(CheckpointCopy* copy);
  absl::StatusOr<std::string> MakeShard(CheckpointCopy* copy);
  void Report(CopyPtr copy, const absl::StatusOr<std::string>& id);

  const Options options_;
  CheckpointClient checkpoints_;
  mutable Mutex mutex_;
  CondVar changed_;
  CopyPtr waiting_ ABSL_GUARDED_BY(mutex_);
  bool saving_ ABSL_GUARDED_BY(mutex_) = false;
  int calling_ ABSL_GUARDED_BY(mutex_) = 0;  // the owner's functions
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  CopyMemory spare_ ABSL_GUARDED_BY(mutex_);
  std::optional<SaveReport> last_ ABSL_GUARDED_BY(mutex_);
  // Set by the thread alone; null: not connected.
  std::shared_ptr<Communicator> communicator_ ABSL_GUARDED_BY(mutex_);
  // The thread's own view of it.
  std::shared_ptr<Communicator> connected_;
  int connections_ = 0;  // made, or tried
};

void AsyncCheckpoint::Core::Put(CopyPtr copy) {
  {
    MutexLock lock(&mutex_);
    std::swap(waiting_, copy);
    changed_.NotifyAll();
  }
  if (copy == nullptr) return;
  const absl::Status status = Superseded(copy->label.step);
  Report(std::move(copy), status);
}

absl::Status AsyncCheckpoint::Core::Finish(absl::Duration timeout) {
  MutexLock lock(&mutex_);
  const bool over = changed_.WaitFor(
      &mutex_, timeout,
      [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !BusyLocked(); });
  if (over) return last_.has_value() ? last_->status : absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("the checkpoint has not been saved within ",
                   absl::FormatDuration(timeout)));
}

void AsyncCheckpoint::Core::Stop() {
  std::shared_ptr<Communicator> communicator;
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    communicator = communicator_;
    changed_.NotifyAll();
  }
  if (communicator != nullptr) communicator->Abort("its owner has ended");
  MutexLock lock(&mutex_);
  const auto alone = [this]()
                         ABSL_NO_THREAD_SAFETY_ANALYSIS { return !calling_; };
  while (!alone()) changed_.WaitFor(&mutex_, absl::Seconds(1), alone);
  changed_.WaitFor(&mutex_, kGiveUpWait,
                   [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return ended_; });
}

template <typename Call>
absl::Status AsyncCheckpoint::Core::CallOwner(Call call) {
  {
    MutexLock lock(&mutex_);
    if (stopping_) return absl::AbortedError("the checkpoint was cancelled");
    ++calling_;
  }
  absl::Status status = call();
  MutexLock lock(&mutex_);
  --calling_;
  changed_.NotifyAll();
  return status;
}

CopyPtr AsyncCheckpoint::Core::Await(absl::Duration timeout) {
  MutexLock lock(&mutex_);
  changed_.WaitFor(&mutex_, timeout, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return waiting_ != nullptr || stopping_;
  });
  if (stopping_ || waiting_ == nullptr) return nullptr;
  saving_ = true;
  return std::move(waiting_);
}

void AsyncCheckpoint::Core::Run() {
  while (!stopping()) {
    CopyPtr copy = Await(absl::Minutes(1));
    if (copy == nullptr) continue;
    const absl::StatusOr<std::string> id = Save(&copy);
    if (!id.ok()) Disconnect();
    Report(std::move(copy), id);
    MutexLock lock(&mutex_);
    saving_ = false;
    changed_.NotifyAll();
  }
  Disconnect();
  MutexLock lock(&mutex_);
  ended_ = true;
  changed_.NotifyAll();
}

absl::Status AsyncCheckpoint::Core::Connect() {
  COXSWAIN_RETURN_IF_ERROR(CallOwner([&]() -> absl::Status {
    COXSWAIN_ASSIGN_OR_RETURN(connected_, options_.connect(connections_++));
    return absl::OkStatus();
  }));
  MutexLock lock(&mutex_);
  communicator_ = connected_;
  if (!stopping_) return absl::OkStatus();
  return absl::AbortedError("the checkpoint was cancelled");
}

// Peers that wait for this rank need not wait for their timeouts.
void AsyncCheckpoint::Core::Disconnect() {
  if (connected_ != nullptr) connected_->Abort("a checkpoint has failed");
  connected_.reset();
  MutexLock lock(&mutex_);
  communicator_.reset();
}

absl::Status AsyncCheckpoint::Core::AgreeOnStep(CopyPtr* copy) {
  bool fresh = false;
  while (true) {
    const int64_t step = (*copy)->label.step;
    if (connected_ == nullptr) {
      COXSWAIN_RETURN_IF_ERROR(Connect());
      fresh = true;
    }
    const absl::StatusOr<Offer> offer =
        ExchangeOffers(*connected_, **copy, options_.timeout);
    if (!offer.ok()) {
      // A peer may have given this one up after an error of its own.
      if (fresh || stopping()) return offer.status();
      Disconnect();
    } else if (offer->highest > step) {
      COXSWAIN_RETURN_IF_ERROR(TakeNewer(copy));
    } else if (offer->lowest == step) {
      COXSWAIN_RETURN_IF_ERROR((*copy)->status);
      if (!offer->failed) return absl::OkStatus();
      return absl::AbortedError(absl::StrCat(
          "another rank could not copy step ", step, "; see its log"));
    }
  }
}

absl::Status AsyncCheckpoint::Core::TakeNewer(CopyPtr* copy) {
  const int64_t step = (*copy)->label.step;
  {
    // The label remains, of what was not saved; its memory is for the newer
    // one.
    MutexLock lock(&mutex_);
    spare_.blobs = std::exchange((*copy)->blobs, {});
    spare_.elements = std::exchange((*copy)->elements, {});
  }
  (*copy)->hook = (*copy)->averager = HookState();
  CopyPtr newer = Await(options_.timeout);
  if (newer != nullptr) {
    std::swap(*copy, newer);
    Report(std::move(newer), Superseded(step));
    return absl::OkStatus();
  }
  return absl::AbortedError(
      absl::StrCat("no copy of a step after ", step,
                   " arrived, although another rank has one"));
}

absl::StatusOr<std::unique_ptr<Hook>> AsyncCheckpoint::Core::LoadCopy(
    CheckpointCopy* copy) {
  std::unique_ptr<Hook> hook;
  COXSWAIN_RETURN_IF_ERROR(CallOwner([&]() -> absl::Status {
    COXSWAIN_ASSIGN_OR_RETURN(hook, copy->make_hook());
    return absl::OkStatus();
  }));
  COXSWAIN_RETURN_IF_ERROR(
      hook->Configure(copy->parameters, options_.world_size));
  COXSWAIN_RETURN_IF_ERROR(hook->LoadOwn(copy->hook, /*error_scale=*/1));
  copy->hook = HookState();  // its memory is needed
  return hook;
}

absl::StatusOr<std::string> AsyncCheckpoint::Core::MakeShard(
    CheckpointCopy* copy) {
  TrainingShard shard;
  if (copy->label.metadata.count(kErrorsLabel) != 0) {
    shard.hook = std::move(copy->hook);
    copy->blobs[HookParametersBlob(options_.rank)] = SerializeHookParameters(
        HookParametersOf(copy->parameters, copy->boxes));
  } else {
    const auto hook = LoadCopy(copy);
    // A rank that came alone to what follows would wait.
    COXSWAIN_RETURN_IF_ERROR(Agree(*connected_, hook.status(),
                                   "load its copy of the hook's state",
                                   options_.timeout));
    COXSWAIN_ASSIGN_OR_RETURN(shard.hook, (*hook)->SaveState(*connected_));
  }
  shard.averager = std::move(copy->averager);
  shard.blobs = std::move(copy->blobs);
  std::string bytes = SerializeTrainingShard(shard);
  copy->blobs = std::move(shard.blobs);
  copy->blobs.erase(HookParametersBlob(options_.rank));
  if (!copy->sharded) return bytes;
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::vector<PieceMemory> own,
      ShareOfPieces(*connected_, copy->pieces, &copy->label, options_.timeout));
  return SerializePiecePart(own, bytes);
}

absl::StatusOr<std::string> AsyncCheckpoint::Core::Save(CopyPtr* copy) {
  COXSWAIN_RETURN_IF_ERROR(AgreeOnStep(copy));
  // Completes the label.
  const absl::StatusOr<std::string> shard = MakeShard(copy->get());
  return SaveTogether(checkpoints_, *connected_, (*copy)->label, shard,
                      options_.timeout);
}

void AsyncCheckpoint::Core::Report(CopyPtr copy,
                                   const absl::StatusOr<std::string>& id) {
  SaveReport report;
  report.step = copy->label.step;
  report.reason = copy->reason;
  report.pause = copy->pause;
  report.took = options_.clock->Now() - copy->begun - copy->pause;
  report.status = id.status();
  if (id.ok()) report.checkpoint_id = *id;
  {
    MutexLock lock(&mutex_);
    if (!copy->blobs.empty()) spare_.blobs = std::move(copy->blobs);
    if (!copy->elements.empty()) spare_.elements = std::move(copy->elements);
    if (!absl::IsCancelled(report.status)) last_ = report;
  }
  if (id.ok()) {
    LogInfo("checkpoint_saved", {{"step", report.step},
                                 {"checkpoint", report.checkpoint_id},
                                 {"id", report.checkpoint_id},
                                 {"reason", report.reason},
                                 {"pause", absl::FormatDuration(report.pause)},
                                 {"took", absl::FormatDuration(report.took)}});
  } else {
    // Without payloads, which are no text.
    LogWarning("checkpoint_not_saved",
               {{"step", report.step},
                {"reason", report.reason},
                {"error", id.status().ToString(
                              absl::StatusToStringMode::kWithNoExtraData)}});
  }
  if (options_.on_report == nullptr) return;
  CallOwner([&] {
    options_.on_report(report);
    return absl::OkStatus();
  }).IgnoreError();
}

AsyncCheckpoint::AsyncCheckpoint(const CheckpointClient& checkpoints,
                                 Options options)
    : core_(std::make_shared<Core>(checkpoints, std::move(options))) {
  std::thread([core = core_] {
    const WaitCount::Background background;
    core->Run();
  }).detach();
}

AsyncCheckpoint::~AsyncCheckpoint() { core_->Stop(); }

absl::Status AsyncCheckpoint::Snapshot(const Source& source) {
  CopyPtr copy = MakeCopy(source, core_->options(), core_->TakeSpare());
  absl::Status status = copy->status;
  core_->Put(std::move(copy));
  return status;
}

absl::Status AsyncCheckpoint::Finish(absl::Duration timeout) {
  return core_->Finish(timeout);
}

absl::Status AsyncCheckpoint::status() const {
  const std::optional<SaveReport> report = last();
  return report.has_value() ? report->status : absl::OkStatus();
}

std::optional<SaveReport> AsyncCheckpoint::last() const {
  return core_->last();
}

bool AsyncCheckpoint::busy() const { return core_->busy(); }

absl::StatusOr<int64_t> ConnectionNumber::Next() {
  if (rank_ == 0) {
    COXSWAIN_RETURN_IF_ERROR(store_.Set(kConnectionKey, absl::StrCat(++last_)));
    return last_;
  }
  COXSWAIN_ASSIGN_OR_RETURN(last_, Await());
  return last_;
}

absl::StatusOr<int64_t> ConnectionNumber::Await() {
  Mutex mutex;
  CondVar changed;
  int64_t number = 0;
  absl::Status ended;
  const std::unique_ptr<StoreWatch> watch = store_.Watch(
      kConnectionKey,
      [&](const StoreEvent& event) {
        MutexLock lock(&mutex);
        if (event.deleted || !absl::SimpleAtoi(event.value, &number)) {
          number = 0;
        }
        changed.NotifyAll();
      },
      [&](const absl::Status& why) {
        MutexLock lock(&mutex);
        ended = why.ok() ? absl::AbortedError("the store has ended") : why;
        changed.NotifyAll();
      });
  MutexLock lock(&mutex);
  const bool came = changed.WaitFor(
      &mutex, timeout_, [&] { return number > last_ || !ended.ok(); });
  if (number > last_) return number;
  if (came) return ended;
  return absl::DeadlineExceededError(absl::StrCat(
      "rank 0 has not connected the checkpoint anew after ",
      absl::FormatDuration(timeout_), " (the last attempt was number ", last_,
      "); see its log for what it does"));
}

void ConnectionNumber::GiveUp() {
  if (rank_ == 0) store_.Set(kConnectionKey, kNoConnection).IgnoreError();
}

}  // namespace coxswain
