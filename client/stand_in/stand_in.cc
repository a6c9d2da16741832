#include "client/stand_in/stand_in.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "client/stand_in/desk_stream.h"

namespace coxswain {
namespace {

// Between two looks at the clock, which a test may move.
constexpr absl::Duration kLook = absl::Milliseconds(20);
constexpr absl::Duration kIdle = absl::Hours(1);

}  // namespace

StandIn::StandIn(Options options, Callbacks callbacks)
    : options_(std::move(options)),
      callbacks_(std::move(callbacks)),
      backoff_(options_.retry_base, options_.retry_cap, options_.random) {
  if (!options_.on) return;
  if (options_.rank == 0) {
    desk_ = std::make_shared<StandInDesk>(StandInDesk::Options{
        options_.fence, options_.world_size, callbacks_.plan, options_.clock});
  }
  if (options_.rank == 0 && options_.world_size > 1) {
    auto server = StandInServer::Start(options_.host, desk_,
                                       options_.fence.job(), options_.security);
    if (server.ok()) {
      server_ = *std::move(server);
    } else {
      LogWarning("no_stand_in", {{"job", options_.fence.job()},
                                 {"error", server.status().message()},
                                 {"next", "steps wait for the coordinator"}});
    }
  }
  thread_ = std::thread([this]() { Run(); });
}

StandIn::~StandIn() {
  End();
  if (thread_.joinable()) thread_.join();
}

std::string StandIn::address() const {
  return server_ == nullptr ? "" : server_->address();
}

void StandIn::OnLost() {
  MutexLock switching(&switch_mutex_);
  {
    MutexLock lock(&mutex_);
    lost_ = true;
    lost_since_ = options_.clock->Now();
    changed_.NotifyAll();
  }
  callbacks_.follow_nobody();
}

void StandIn::OnAttached() {
  MutexLock switching(&switch_mutex_);
  bool bound = false;
  {
    MutexLock lock(&mutex_);
    lost_ = false;
    bound = bound_;
    changed_.NotifyAll();
  }
  if (bound) {
    callbacks_.follow_nobody();
  } else {
    callbacks_.follow_coordinator();
  }
}

void StandIn::NoteAddress(absl::string_view address) {
  if (address.empty()) return NoteRankLeft(0);
  MutexLock lock(&mutex_);
  address_ = std::string(address);
  changed_.NotifyAll();
}

void StandIn::NoteRankLeft(int rank) {
  if (rank != 0) return;
  {
    MutexLock lock(&mutex_);
    gone_ = true;
    changed_.NotifyAll();
  }
  NoteLetGo();
}

void StandIn::End() {
  {
    MutexLock lock(&mutex_);
    ending_ = true;
    changed_.NotifyAll();
  }
  if (desk_ != nullptr) desk_->Close();
}

bool StandIn::MayVisitLocked() const {
  if (gone_ || (desk_ == nullptr && address_.empty())) return false;
  if (!lost_) return bound_;
  return options_.clock->Now() - lost_since_ >= options_.after &&
         callbacks_.needed();
}

absl::Duration StandIn::PauseLocked() const {
  return lost_ && !gone_ ? kLook : kIdle;
}

void StandIn::Run() {
  while (true) {
    {
      MutexLock lock(&mutex_);
      const bool lost = lost_;
      changed_.WaitFor(&mutex_, PauseLocked(),
                       [this, lost]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                         return ending_ || MayVisitLocked() || lost_ != lost;
                       });
      if (ending_) return;
      if (!MayVisitLocked()) continue;
    }
    VisitOnce();
    MutexLock lock(&mutex_);
    if (!MayVisitLocked()) {
      backoff_.Reset();
      continue;
    }
    changed_.WaitFor(&mutex_, backoff_.Next(),
                     [this]()
                         ABSL_NO_THREAD_SAFETY_ANALYSIS { return ending_; });
    if (ending_) return;
  }
}

void StandIn::VisitOnce() {
  const std::shared_ptr<AttachStream> stream = OpenVisit();
  bool accepted = false;
  {
    MutexLock lock(&mutex_);
    changed_.WaitFor(&mutex_, options_.answer,
                     [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                       return ending_ || spell_ > 0 || end_.has_value();
                     });
    accepted = !ending_ && spell_ > 0 && !end_.has_value();
    if (end_.has_value() && absl::IsFailedPrecondition(*end_)) gone_ = true;
  }
  if (accepted) {
    Settle(stream);
    AwaitEndOfVisit();
  }
  bool back = false, gone = false;
  {
    MutexLock lock(&mutex_);
    if (ending_) return;
    back = !lost_ && bound_;
    gone = gone_;
  }
  if (gone) {
    NoteLetGo();
  } else if (back && accepted) {
    AskToLetGo(stream.get());
  }
  if (accepted) NoteVisitLost();
}

std::shared_ptr<AttachStream> StandIn::OpenVisit() {
  int64_t number = 0;
  std::string address;
  {
    MutexLock lock(&mutex_);
    number = ++number_;
    spell_ = 0;
    end_.reset();
    address = address_;
  }
  StreamCallbacks<v1::AttachEvent> callbacks;
  callbacks.on_event = [this, number](const v1::AttachEvent& event) {
    OnVisitEvent(number, event);
  };
  callbacks.on_end = [this, number](const absl::Status& status) {
    OnVisitEnd(number, status);
  };
  std::shared_ptr<AttachStream> stream;
  if (desk_ != nullptr) {
    stream = std::make_shared<DeskStream>(desk_, std::move(callbacks));
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
  // Not taken only if it has ended already, which on_end tells.
  (void)stream->Send(request);
  return stream;
}

void StandIn::OnVisitEvent(int64_t number, const v1::AttachEvent& event) {
  int64_t spell = 0;
  {
    MutexLock lock(&mutex_);
    if (number != number_) return;
    if (event.has_attached()) {
      spell_ = event.attached().spell();
      changed_.NotifyAll();
    }
    spell = spell_;
  }
  if (!event.has_attached()) callbacks_.on_event(event, spell);
}

void StandIn::OnVisitEnd(int64_t number, const absl::Status& status) {
  MutexLock lock(&mutex_);
  if (number != number_) return;
  end_ = status;
  changed_.NotifyAll();
}

void StandIn::Settle(const std::shared_ptr<AttachStream>& stream) {
  MutexLock switching(&switch_mutex_);
  int64_t spell = 0;
  {
    MutexLock lock(&mutex_);
    if (ending_ || !lost_) return;
    bound_ = true;
    spell = spell_;
  }
  backoff_.Reset();
  LogInfo("stand_in_followed", {{"job", options_.fence.job()},
                                {"rank", options_.rank},
                                {"generation", options_.fence.generation()},
                                {"spell", spell}});
  callbacks_.follow_stand_in(
      [weak = std::weak_ptr<AttachStream>(stream)](
          const v1::AttachRequest& request) {
        const std::shared_ptr<AttachStream> living = weak.lock();
        return living != nullptr && living->Send(request);
      },
      spell);
}

void StandIn::AwaitEndOfVisit() {
  MutexLock lock(&mutex_);
  const auto over = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return ending_ || !lost_ || end_.has_value();
  };
  while (!over()) changed_.WaitFor(&mutex_, kIdle, over);
  if (end_.has_value() && absl::IsFailedPrecondition(*end_)) gone_ = true;
}

void StandIn::NoteVisitLost() {
  MutexLock switching(&switch_mutex_);
  {
    MutexLock lock(&mutex_);
    // Who is followed by now has been settled without this visit.
    if (!lost_) return;
  }
  callbacks_.follow_nobody();
}

void StandIn::AskToLetGo(AttachStream* stream) {
  v1::AttachRequest request;
  request.mutable_let_go();
  (void)stream->Send(request);
  bool let_go = false;
  {
    MutexLock lock(&mutex_);
    changed_.WaitFor(&mutex_, options_.answer,
                     [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                       return ending_ || end_.has_value();
                     });
    let_go =
        end_.has_value() && (end_->ok() || absl::IsFailedPrecondition(*end_));
  }
  if (let_go) NoteLetGo();
}

void StandIn::NoteLetGo() {
  MutexLock switching(&switch_mutex_);
  bool follow = false;
  {
    MutexLock lock(&mutex_);
    follow = std::exchange(bound_, false) && !lost_ && !ending_;
  }
  if (follow) callbacks_.follow_coordinator();
}

}  // namespace coxswain
