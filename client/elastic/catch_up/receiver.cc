#include "client/elastic/catch_up/receiver.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/logging.h"
#include "base/peer_text.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"

namespace coxswain::catch_up {
namespace {

constexpr size_t kMaxHostBytes = 256;

std::vector<Span> SpansOf(const std::vector<CatchUpTarget::Part>& parts) {
  std::vector<Span> spans;
  for (const CatchUpTarget::Part& part : parts) spans.push_back(part.span);
  return spans;
}

absl::Status Unexpected(const Header& header) {
  return absl::DataLossError(absl::StrCat(
      "a member sent piece ", header.number, " of kind ",
      static_cast<uint32_t>(header.kind), ", of ", header.bytes,
      " bytes, after step ", header.progress,
      ", where another one was expected: its model or optimizer is another"));
}

// Returns the pieces of the state that hold what an optimizer makes of one
// piece of the averages.
std::vector<int64_t> MadeOf(const std::vector<CatchUpTarget::Part>& averages,
                            int64_t piece,
                            const std::vector<CatchUpTarget::Part>& state) {
  const PiecesOf from(SpansOf(averages));
  const PiecesOf to(SpansOf(state));
  std::vector<int64_t> made;
  from.VisitSpans(piece, [&](size_t span, int64_t begin, int64_t bytes) {
    for (size_t i = 0; i < state.size(); ++i) {
      if (state[i].parameter != averages[span].parameter) continue;
      // The same elements, whatever their type here.
      const int64_t size = state[i].span.bytes();
      const int64_t of = std::max<int64_t>(1, averages[span].span.bytes());
      const int64_t first = to.begin(i) + begin * size / of;
      const int64_t last = to.begin(i) + ((begin + bytes) * size + of - 1) / of;
      for (int64_t at = first / kPieceBytes; at * kPieceBytes < last; ++at) {
        made.push_back(at);
      }
    }
  });
  std::sort(made.begin(), made.end());
  made.erase(std::unique(made.begin(), made.end()), made.end());
  return made;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Receiver>> Receiver::Listen(
    const Options& options, CatchUpTarget* target) {
  COXSWAIN_ASSIGN_OR_RETURN(TcpListener listener, ListenTcp(options.address));
  std::unique_ptr<Receiver> receiver(new Receiver(options, target));
  receiver->listener_ = std::move(listener.socket);
  receiver->address_ =
      absl::StrCat(listener.address.host, ":", listener.address.port);
  receiver->secret_ = options.random->NextId();
  receiver->thread_ = std::thread([raw = receiver.get()] { raw->Run(); });
  return receiver;
}

Receiver::~Receiver() { End(); }

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
    const absl::Time end = std::min(std::max(begun, moved_) + timeout,
                                    begun + options_.longest_finish);
    const absl::Duration left = end - Clock::Real()->Now();
    if (left <= absl::ZeroDuration()) return;
    changed_.WaitFor(&mutex_, left,
                     [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return done_; });
  }
}

void Receiver::End() {
  {
    MutexLock lock(&mutex_);
    ending_ = true;
  }
  wake_.Raise();
  if (thread_.joinable()) thread_.join();
}

void Receiver::Run() {
  absl::StatusOr<CaughtUp> served = Serve();
  members_.clear();
  listener_ = UniqueFd();
  absl::StatusOr<std::optional<CaughtUp>> result = std::optional<CaughtUp>();
  if (served.ok()) {
    result = std::optional<CaughtUp>(*served);
  } else {
    if (begun_) {
      const absl::Status undone = target_.Undo();
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
    // Whoever it was: it is none of the members.
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

absl::StatusOr<CaughtUp> Receiver::TakeSteps() {
  CaughtUp caught_up;
  caught_up.lineage = members_[0].hello.lineage;
  caught_up.trained = members_[0].hello.generation;
  for (const Member& member : members_) {
    if (member.hello.generation != caught_up.trained ||
        member.hello.lineage != caught_up.lineage) {
      return absl::FailedPreconditionError(
          "the members that connected are of different generations");
    }
  }
  for (bool first = true;; first = false) {
    std::string rest;
    COXSWAIN_ASSIGN_OR_RETURN(const Header step, TakeStepHeaders(first, &rest));
    const bool applied = (step.flags & kApplied) != 0;
    if (first) {
      begun_ = true;
      COXSWAIN_RETURN_IF_ERROR(target_.Begin(rest));
    } else {
      if (applied) COXSWAIN_RETURN_IF_ERROR(TakeAverages(step, rest));
      COXSWAIN_RETURN_IF_ERROR(target_.Step(rest, applied));
      // The step may have made the state that it has damaged.
      COXSWAIN_RETURN_IF_ERROR(AskForDamaged());
    }
    COXSWAIN_RETURN_IF_ERROR(TakeState(first));
    caught_up.progress = step.progress;
    const bool whole = missing_.empty();
    if ((step.flags & kLast) != 0) {
      if (whole) return caught_up;
      return absl::DataLossError(absl::StrCat(
          missing_.size(), " pieces were damaged, and not sent again before ",
          "the members' last step"));
    }
    if (!whole) continue;
    Header reached;
    reached.kind = Kind::kReached;
    reached.progress = step.progress;
    COXSWAIN_RETURN_IF_ERROR(Answer(0, reached, ""));
  }
}

absl::StatusOr<Header> Receiver::TakeHeader(size_t rank,
                                            absl::Duration timeout) {
  {
    MutexLock lock(&mutex_);
    // Also where there is always something to read.
    if (ending_) return absl::CancelledError("this worker waits no more");
    moved_ = Clock::Real()->Now();
  }
  char head[sizeof(Header)];
  const absl::Status received =
      ReceiveAll(members_[rank].socket, head, sizeof(head), wake_, In(timeout));
  if (!received.ok()) {
    return WithPrefix(
        absl::StrCat("rank ", rank, " on ", members_[rank].host, ": "),
        received);
  }
  return Decode(absl::string_view(head, sizeof(head)));
}

absl::StatusOr<Header> Receiver::TakeStepHeaders(bool first,
                                                 std::string* rest) {
  steps_.clear();
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    COXSWAIN_ASSIGN_OR_RETURN(const Header step,
                              TakeHeader(rank, options_.step_timeout));
    const Header& of_all = steps_.empty() ? step : steps_[0];
    const bool begins = (step.flags & kBegins) != 0;
    if (step.kind != Kind::kStep || begins != first ||
        step.progress != of_all.progress || step.flags != of_all.flags ||
        (rank > 0 && step.bytes > 0)) {
      return Unexpected(step);
    }
    steps_.push_back(step);
    if (rank > 0) continue;
    rest->resize(static_cast<size_t>(step.bytes));
    COXSWAIN_RETURN_IF_ERROR(ReceiveAll(members_[0].socket, rest->data(),
                                        step.bytes, wake_,
                                        In(options_.receive_timeout)));
    if (Crc32c(*rest) != step.checksum) {
      return absl::DataLossError(absl::StrCat(
          "the description of step ", step.progress, " from rank 0 on ",
          members_[0].host, " did not arrive as it was sent"));
    }
  }
  return steps_[0];
}

absl::StatusOr<bool> Receiver::TakePiece(size_t rank, const Header& expected,
                                         const PiecesOf& to) {
  COXSWAIN_ASSIGN_OR_RETURN(const Header header,
                            TakeHeader(rank, options_.receive_timeout));
  if (header.kind != expected.kind || header.number != expected.number ||
      header.progress != expected.progress ||
      header.bytes != to.SizeOf(expected.number)) {
    return Unexpected(header);
  }
  absl::Status status;
  uint32_t checksum = 0;
  to.Visit(header.number, [&](char* data, int64_t bytes) {
    if (!status.ok()) return;
    status = ReceiveAll(members_[rank].socket, data, bytes, wake_,
                        In(options_.receive_timeout));
    checksum =
        Crc32c(absl::string_view(data, static_cast<size_t>(bytes)), checksum);
  });
  COXSWAIN_RETURN_IF_ERROR(status);
  return checksum == header.checksum;
}

absl::Status Receiver::TakeAverages(const Header& step,
                                    absl::string_view rest) {
  COXSWAIN_ASSIGN_OR_RETURN(const Parts parts, target_.Averages(rest));
  const PiecesOf averages(SpansOf(parts));
  // One of each rank after the other: all of them send at the same time.
  for (int64_t piece = 0; piece < averages.pieces(); ++piece) {
    const size_t rank = static_cast<size_t>(piece) % members_.size();
    Header expected = step;
    expected.kind = Kind::kAverages;
    expected.number = piece;
    COXSWAIN_ASSIGN_OR_RETURN(const bool sound,
                              TakePiece(rank, expected, averages));
    if (!sound) damaged_.emplace_back(rank, expected);
  }
  averages_ = parts;
  return absl::OkStatus();
}

absl::Status Receiver::AskForDamaged() {
  if (damaged_.empty()) return absl::OkStatus();
  COXSWAIN_ASSIGN_OR_RETURN(const Parts state, target_.State());
  for (const auto& [rank, piece] : std::exchange(damaged_, {})) {
    COXSWAIN_RETURN_IF_ERROR(AskAgain(rank, "the averages", piece,
                                      MadeOf(averages_, piece.number, state)));
  }
  return absl::OkStatus();
}

absl::Status Receiver::TakeState(bool first) {
  int64_t most = 0;
  int64_t all = 0;
  for (const Header& step : steps_) {
    most = std::max(most, step.number);
    all += std::min(step.number, kMaxSmallBytes);
  }
  if (most == 0 && !first) return absl::OkStatus();
  COXSWAIN_ASSIGN_OR_RETURN(const Parts parts, target_.State());
  const PiecesOf state(SpansOf(parts));
  if (first && all != state.pieces()) return Unexpected(steps_[0]);
  for (int64_t i = 0; i < most; ++i) {
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      if (i >= steps_[rank].number) continue;
      Header expected = steps_[rank];
      expected.kind = Kind::kState;
      // What is sent again comes in the order in which it was asked for.
      expected.number = static_cast<int64_t>(rank) +
                        i * static_cast<int64_t>(members_.size());
      if (!first) {
        if (asked_[rank].empty()) return Unexpected(steps_[rank]);
        expected.number = asked_[rank].front();
        asked_[rank].pop_front();
      }
      COXSWAIN_ASSIGN_OR_RETURN(const bool sound,
                                TakePiece(rank, expected, state));
      // Another rank may have been asked for it since.
      const auto missing = missing_.find(expected.number);
      if (sound && missing != missing_.end() && missing->second == rank) {
        missing_.erase(missing);
      }
      if (!sound) {
        COXSWAIN_RETURN_IF_ERROR(
            AskAgain(rank, "the state", expected, {expected.number}));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Receiver::AskAgain(size_t rank, absl::string_view what,
                                const Header& piece,
                                const std::vector<int64_t>& pieces) {
  const std::string text = absl::StrCat(
      "piece ", piece.number, " of ", what, " of step ", piece.progress,
      " from rank ", rank, " on ", members_[rank].host,
      " did not arrive as it was sent: damaged memory, or a damaged network");
  damage_.push_back(text);
  const size_t other = (rank + 1) % members_.size();
  LogWarning("piece_damaged",
             {{"rank", static_cast<int64_t>(rank)},
              {"host", members_[rank].host},
              {"reason", text},
              {"next", absl::StrCat("it is asked of rank ", other)}});
  if (static_cast<int>(damage_.size()) > options_.max_damaged) {
    return absl::DataLossError(
        absl::StrCat(damage_.size(), " pieces were damaged; the last: ", text));
  }
  for (const int64_t number : pieces) {
    missing_[number] = other;
    asked_[other].push_back(number);
    Header again;
    again.kind = Kind::kAgain;
    again.number = number;
    again.flags = number == pieces.back() ? 0 : kMore;
    COXSWAIN_RETURN_IF_ERROR(Answer(other, again, text));
  }
  return absl::OkStatus();
}

absl::Status Receiver::Answer(size_t rank, Header header,
                              absl::string_view text) {
  header.bytes = static_cast<int64_t>(text.size());
  header.checksum = Crc32c(text);
  return SendAll(members_[rank].socket, absl::StrCat(Encode(header), text),
                 wake_, In(options_.receive_timeout));
}

}  // namespace coxswain::catch_up
