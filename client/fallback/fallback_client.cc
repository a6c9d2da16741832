#include "client/fallback/fallback_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "client/fallback/local_fallback_stream.h"

namespace coxswain {
namespace {

// Between two looks at the clock, which a test may move.
constexpr absl::Duration kLook = absl::Milliseconds(20);
constexpr absl::Duration kIdle = absl::Hours(1);

}  // namespace

FallbackClient::FallbackClient(Options options, Callbacks callbacks)
    : options_(std::move(options)),
      callbacks_(std::move(callbacks)),
      pauses_(options_.retry.Pauses()) {
  if (!options_.on) return;
  if (options_.rank == 0) {
    coordinator_ =
        std::make_shared<FallbackCoordinator>(FallbackCoordinator::Options{
            options_.fence, options_.world_size, options_.mesh, callbacks_.plan,
            options_.retry.clock});
  }
  if (options_.rank == 0 && options_.world_size > 1) {
    auto server = FallbackServer::Start(
        options_.host, coordinator_, options_.fence.job(), options_.security);
    if (server.ok()) {
      server_ = *std::move(server);
    } else {
      LogWarning("no_fallback_coordinator",
                 {{"job", options_.fence.job()},
                  {"error", server.status().message()},
                  {"next", "steps wait for the coordinator"}});
    }
  }
  thread_ = std::thread([this]() { Run(); });
}

FallbackClient::~FallbackClient() {
  End();
  if (thread_.joinable()) thread_.join();
}

std::string FallbackClient::address() const {
  return server_ == nullptr ? "" : server_->address();
}

void FallbackClient::OnLost() {
  MutexLock switching(&switch_mutex_);
  {
    MutexLock lock(&mutex_);
    lost_ = true;
    lost_since_ = options_.retry.clock->Now();
    changed_.NotifyAll();
  }
  callbacks_.follow_none();
}

void FallbackClient::OnAttached() {
  MutexLock switching(&switch_mutex_);
  bool bound = false;
  {
    MutexLock lock(&mutex_);
    lost_ = false;
    ++attachments_;
    bound = bound_;
    changed_.NotifyAll();
  }
  if (bound) {
    callbacks_.follow_none();
  } else {
    callbacks_.follow_coordinator();
  }
}

void FallbackClient::NoteAddress(absl::string_view address) {
  if (address.empty()) return NoteRankLeft(0);
  MutexLock lock(&mutex_);
  address_ = std::string(address);
  changed_.NotifyAll();
}

void FallbackClient::NoteRankLeft(int rank) {
  if (rank != 0) return;
  {
    MutexLock lock(&mutex_);
    gone_ = true;
    changed_.NotifyAll();
  }
  NoteReleased();
}

void FallbackClient::End() {
  {
    MutexLock lock(&mutex_);
    ending_ = true;
    changed_.NotifyAll();
  }
  if (coordinator_ != nullptr) coordinator_->Close();
}

bool FallbackClient::MayAttachLocked() const {
  if (gone_ || (coordinator_ == nullptr && address_.empty())) return false;
  if (!lost_) return bound_;
  return options_.retry.clock->Now() - lost_since_ >= options_.after &&
         callbacks_.needed();
}

absl::Duration FallbackClient::PauseLocked() const {
  return lost_ && !gone_ ? kLook : kIdle;
}

void FallbackClient::Run() {
  while (true) {
    {
      MutexLock lock(&mutex_);
      const bool lost = lost_;
      changed_.WaitFor(&mutex_, PauseLocked(),
                       [this, lost]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                         return ending_ || MayAttachLocked() || lost_ != lost;
                       });
      if (ending_) return;
      if (!MayAttachLocked()) continue;
    }
    AttachOnce();
    MutexLock lock(&mutex_);
    if (!MayAttachLocked()) {
      pauses_.Reset();
      continue;
    }
    changed_.WaitFor(&mutex_, pauses_.Next(),
                     [this]()
                         ABSL_NO_THREAD_SAFETY_ANALYSIS { return ending_; });
    if (ending_) return;
  }
}

void FallbackClient::AttachOnce() {
  const std::shared_ptr<AttachStream> stream = OpenStream();
  bool accepted = false;
  {
    MutexLock lock(&mutex_);
    changed_.WaitFor(&mutex_, options_.answer,
                     [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                       return ending_ || epoch_.has_value() || end_.has_value();
                     });
    accepted = !ending_ && epoch_.has_value() && !end_.has_value();
    if (end_.has_value() && absl::IsFailedPrecondition(*end_)) gone_ = true;
  }
  if (accepted) {
    Follow(stream);
    AwaitStreamEnd();
  }
  bool back = false, gone = false;
  {
    MutexLock lock(&mutex_);
    if (ending_) return;
    back = !lost_ && bound_;
    gone = gone_;
  }
  if (gone) {
    NoteReleased();
  } else if (back && accepted) {
    RequestRelease(stream.get());
  }
  if (accepted) NoteStreamLost();
}

std::shared_ptr<AttachStream> FallbackClient::OpenStream() {
  int64_t number = 0;
  std::string address;
  {
    MutexLock lock(&mutex_);
    number = ++number_;
    epoch_.reset();
    end_.reset();
    address = address_;
  }
  StreamCallbacks<v1::AttachEvent> callbacks;
  callbacks.on_event = [this, number](const v1::AttachEvent& event) {
    OnStreamEvent(number, event);
  };
  callbacks.on_end = [this, number](const absl::Status& status) {
    OnStreamEnd(number, status);
  };
  std::shared_ptr<AttachStream> stream;
  if (coordinator_ != nullptr) {
    stream = std::make_shared<LocalFallbackStream>(coordinator_,
                                                   std::move(callbacks));
  } else {
    if (stub_ == nullptr || stub_address_ != address) {
      stub_ = options_.connect(address);
      stub_address_ = address;
    }
    stream = stub_->Attach(std::move(callbacks));
  }
  v1::AttachRequest request;
  *request.mutable_hello()->mutable_fence() = options_.fence;
  request.mutable_hello()->set_rank(options_.rank);
  // Not taken only if it has ended already, which on_end reports.
  (void)stream->Send(request);
  return stream;
}

void FallbackClient::OnStreamEvent(int64_t number,
                                   const v1::AttachEvent& event) {
  {
    MutexLock lock(&mutex_);
    if (number != number_) return;
    if (event.has_attached()) {
      const auto epoch =
          schedule::EpochFromWire(event.attached().fallback_epoch(),
                                  /*term=*/0, /*lowest=*/1);
      if (epoch.ok()) {
        epoch_ = *epoch;
      } else {
        end_ = epoch.status();
      }
      changed_.NotifyAll();
      return;
    }
  }
  callbacks_.on_event(event);
}

void FallbackClient::OnStreamEnd(int64_t number, const absl::Status& status) {
  MutexLock lock(&mutex_);
  if (number != number_) return;
  end_ = status;
  changed_.NotifyAll();
}

void FallbackClient::Follow(const std::shared_ptr<AttachStream>& stream) {
  MutexLock switching(&switch_mutex_);
  schedule::Epoch epoch;
  {
    MutexLock lock(&mutex_);
    if (ending_ || !lost_) return;
    bound_ = true;
    followed_at_ = attachments_;
    epoch = *epoch_;
  }
  pauses_.Reset();
  LogInfo("fallback_followed", {{"job", options_.fence.job()},
                                {"rank", options_.rank},
                                {"generation", options_.fence.generation()},
                                {"fallback_epoch", epoch.fallback}});
  callbacks_.follow_fallback(
      [weak = std::weak_ptr<AttachStream>(stream)](
          const v1::AttachRequest& request) {
        const std::shared_ptr<AttachStream> living = weak.lock();
        return living != nullptr && living->Send(request);
      },
      epoch);
}

void FallbackClient::AwaitStreamEnd() {
  MutexLock lock(&mutex_);
  const auto over = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return ending_ || !lost_ || attachments_ != followed_at_ ||
           end_.has_value();
  };
  while (!over()) changed_.WaitFor(&mutex_, kIdle, over);
  if (end_.has_value() && absl::IsFailedPrecondition(*end_)) gone_ = true;
}

void FallbackClient::NoteStreamLost() {
  MutexLock switching(&switch_mutex_);
  {
    MutexLock lock(&mutex_);
    // The leader has been settled without this stream.
    if (!lost_) return;
  }
  callbacks_.follow_none();
}

void FallbackClient::RequestRelease(AttachStream* stream) {
  v1::AttachRequest request;
  request.mutable_fallback_release();
  (void)stream->Send(request);
  bool released = false;
  {
    MutexLock lock(&mutex_);
    changed_.WaitFor(&mutex_, options_.answer,
                     [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                       return ending_ || end_.has_value();
                     });
    released =
        end_.has_value() && (end_->ok() || absl::IsFailedPrecondition(*end_));
  }
  if (released) NoteReleased();
}

void FallbackClient::NoteReleased() {
  MutexLock switching(&switch_mutex_);
  bool follow = false;
  {
    MutexLock lock(&mutex_);
    follow = std::exchange(bound_, false) && !lost_ && !ending_;
  }
  if (follow) callbacks_.follow_coordinator();
}

}  // namespace coxswain
