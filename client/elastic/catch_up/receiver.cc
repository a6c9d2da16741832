#include "client/elastic/catch_up/receiver.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/exception_status.h"
#include "base/logging.h"
#include "base/peer_text.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"

namespace coxswain::catch_up {
namespace {

constexpr size_t kMaxHostBytes = 256;

}  // namespace

absl::StatusOr<std::unique_ptr<Receiver>> Receiver::Listen(
    const Options& options, CatchUpTarget* target) {
  COXSWAIN_ASSIGN_OR_RETURN(TcpListener listener, ListenTcp(options.address));
  std::unique_ptr<Receiver> receiver(new Receiver(options, target));
  receiver->listener_ = std::move(listener.socket);
  receiver->address_ =
      absl::StrCat(listener.address.host, ":", listener.address.port);
  receiver->secret_ = options.random->NextId();
  COXSWAIN_ASSIGN_OR_RETURN(
      receiver->thread_, StartThread([raw = receiver.get()] { raw->Run(); }));
  return receiver;
}

absl::StatusOr<std::unique_ptr<Receiver>> Receiver::ListenFor(
    const SessionOptions& session, CatchUpTarget* target) {
  Options options;
  options.address = session.address;
  options.random = session.random;
  if (options.address.empty()) {
    COXSWAIN_ASSIGN_OR_RETURN(options.address,
                              LocalAddressTowards(session.coordinator));
  }
  return Listen(options, target);
}

Receiver::~Receiver() { End(); }

absl::Status Receiver::Unexpected(const Header& header) {
  return absl::DataLossError(absl::StrCat(
      "a member sent piece ", header.number, " of kind ",
      static_cast<uint32_t>(header.kind), ", of ", header.bytes,
      " bytes, after step ", header.progress,
      ", where another one was expected: its model or optimizer is another"));
}

absl::Time Receiver::In(absl::Duration time) const {
  return Clock::Real()->Now() + time;
}

absl::StatusOr<std::optional<CaughtUp>> Receiver::Finish(
    absl::Duration timeout) {
  AwaitLastStep(timeout);
  End();
  MutexLock lock(&mutex_);
  return result_;
}

void Receiver::AwaitLastStep(absl::Duration timeout) {
  const absl::Time begun = Clock::Real()->Now();
  MutexLock lock(&mutex_);
  while (taking_ && !done_) {
    const bool working = working_;
    const absl::Time longest = begun + options_.longest_finish;
    const absl::Time end =
        working ? longest
                : std::min(std::max(begun, moved_) + timeout, longest);
    const absl::Duration left = end - Clock::Real()->Now();
    if (left <= absl::ZeroDuration()) return;
    changed_.WaitFor(&mutex_, left,
                     [this, working]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                       return done_ || working_ != working;
                     });
  }
}

void Receiver::Cancel() {
  {
    MutexLock lock(&mutex_);
    ending_ = true;
  }
  wake_.Raise();
}

void Receiver::End() {
  Cancel();
  if (thread_.joinable()) thread_.join();
}

void Receiver::Run() {
  absl::StatusOr<CaughtUp> served =
      WithoutExceptions([this] { return Serve(); });
  members_.clear();
  listener_ = UniqueFd();
  absl::StatusOr<std::optional<CaughtUp>> result = std::optional<CaughtUp>();
  if (served.ok()) {
    result = std::optional<CaughtUp>(*served);
  } else {
    if (begun_) {
      const absl::Status undone = UndoCatchUp(&target_);
      if (!undone.ok()) result = undone;
    }
    if (!absl::IsCancelled(served.status()) || begun_) {
      LogWarning("not_caught_up",
                 {{"address", address_},
                  {"reason", served.status().ToString()},
                  {"next", "it copies the state when the members regroup"}});
    }
  }
  MutexLock lock(&mutex_);
  result_ = std::move(result);
  done_ = true;
  changed_.NotifyAll();
}

absl::StatusOr<CaughtUp> Receiver::Serve() {
  COXSWAIN_RETURN_IF_ERROR(AcceptMembers());
  {
    MutexLock lock(&mutex_);
    taking_ = true;
  }
  return TakeSteps();
}

absl::Status Receiver::AcceptMembers() {
  absl::Time end = absl::InfiniteFuture();  // until the first has connected
  size_t accepted = 0;
  do {
    std::vector<pollfd> entries = {{listener_.get(), POLLIN, 0},
                                   {wake_.get(), POLLIN, 0}};
    PollUntil(&entries, end);
    if (entries[1].revents != 0) {
      return absl::CancelledError("this worker waits no more");
    }
    if (Clock::Real()->Now() >= end) {
      return absl::DeadlineExceededError(absl::StrCat(
          accepted, " of ", members_.size(), " members have connected within ",
          absl::FormatDuration(options_.connect_timeout)));
    }
    if (entries[0].revents == 0) continue;
    const size_t before = members_.size();
    absl::Status status = AcceptOne(In(absl::Seconds(1)));
    if (absl::IsCancelled(status)) return status;
    // It is none of the members.
    if (!status.ok()) continue;
    ++accepted;
    if (before == 0) end = In(options_.connect_timeout);
  } while (members_.empty() || accepted < members_.size());
  return absl::OkStatus();
}

absl::Status Receiver::AcceptOne(absl::Time end) {
  Member member;
  COXSWAIN_ASSIGN_OR_RETURN(member.socket, AcceptTcp(listener_));
  if (!member.socket.valid()) return absl::UnavailableError("it has gone");
  char head[sizeof(Header)];
  COXSWAIN_RETURN_IF_ERROR(
      ReceiveAll(member.socket, head, sizeof(head), wake_, end));
  COXSWAIN_ASSIGN_OR_RETURN(const Header header,
                            Decode(absl::string_view(head, sizeof(head))));
  if (header.kind != Kind::kHello ||
      header.bytes < static_cast<int64_t>(sizeof(Hello)) ||
      header.bytes > static_cast<int64_t>(sizeof(Hello) + kMaxHostBytes)) {
    return Unexpected(header);
  }
  std::string payload(static_cast<size_t>(header.bytes), '\0');
  COXSWAIN_RETURN_IF_ERROR(
      ReceiveAll(member.socket, payload.data(), header.bytes, wake_, end));
  if (Crc32c(payload) != header.checksum) {
    return absl::DataLossError("a member's name did not arrive as it was sent");
  }
  std::memcpy(&member.hello, payload.data(), sizeof(Hello));
  member.host = OneLine(ValidUtf8(payload.substr(sizeof(Hello))));
  const Hello& hello = member.hello;
  if (hello.secret != secret_ || hello.sources < 1 ||
      hello.sources > kMaxSources || hello.rank < 0 ||
      hello.rank >= hello.sources) {
    return absl::PermissionDeniedError("it is no member of the job");
  }
  if (members_.empty()) members_.resize(static_cast<size_t>(hello.sources));
  if (static_cast<size_t>(hello.rank) >= members_.size()) {
    return absl::PermissionDeniedError("it is of another generation");
  }
  Member& place = members_[static_cast<size_t>(hello.rank)];
  if (place.socket.valid()) {
    return absl::AlreadyExistsError("the rank has connected before");
  }
  place = std::move(member);
  return absl::OkStatus();
}

}  // namespace coxswain::catch_up
