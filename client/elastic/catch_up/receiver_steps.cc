#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/elastic/catch_up/elements.h"
#include "client/elastic/catch_up/frame.h"
#include "client/elastic/catch_up/receiver.h"

// Of Receiver: what it does with what the members send.

namespace coxswain::catch_up {

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
      COXSWAIN_RETURN_IF_ERROR(Work([&] { return target_.Begin(rest); }));
    } else {
      if (applied) COXSWAIN_RETURN_IF_ERROR(TakeAverages(step, rest));
      COXSWAIN_RETURN_IF_ERROR(
          Work([&] { return target_.Step(rest, applied); }));
    }
    COXSWAIN_RETURN_IF_ERROR(TakeState(first));
    // Of averages, too, once the step has made the state that they damaged.
    COXSWAIN_RETURN_IF_ERROR(AskForDamaged());
    caught_up.progress = step.progress;
    const bool whole = requests_.empty();
    if ((step.flags & kLast) != 0) {
      if (whole) return caught_up;
      return absl::DataLossError(absl::StrCat(
          "what was asked of the members ", requests_.size(),
          " times, for pieces that were damaged, did not come before their ",
          "last step"));
    }
    if (!whole) continue;
    Header reached;
    reached.kind = Kind::kReached;
    reached.progress = step.progress;
    COXSWAIN_RETURN_IF_ERROR(Answer(0, reached, ""));
  }
}

absl::Status Receiver::Work(const std::function<absl::Status()>& work) {
  {
    MutexLock lock(&mutex_);
    working_ = true;
    changed_.NotifyAll();
  }
  absl::Status done = work();
  MutexLock lock(&mutex_);
  working_ = false;
  moved_ = Clock::Real()->Now();
  changed_.NotifyAll();
  return done;
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
    if (!sound) {
      damaged_.push_back({rank, expected, ElementsOf(parts, piece)});
    }
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
  const auto ranks = static_cast<int64_t>(members_.size());
  for (int64_t i = 0; i < most; ++i) {
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      if (i >= steps_[rank].number) continue;
      Header expected = steps_[rank];
      expected.kind = Kind::kState;
      expected.number = static_cast<int64_t>(rank) + i * ranks;
      if (!first) {
        COXSWAIN_ASSIGN_OR_RETURN(expected.number, NextAsked(rank));
      }
      COXSWAIN_ASSIGN_OR_RETURN(const bool sound,
                                TakePiece(rank, expected, state));
      if (!sound) {
        damaged_.push_back(
            {rank, expected, ElementsOf(parts, expected.number)});
      }
    }
  }
  return EndRequests(parts);
}

absl::StatusOr<int64_t> Receiver::NextAsked(size_t rank) {
  for (Request& request : requests_) {
    if (request.rank != rank || request.arrived == request.pieces.size()) {
      continue;
    }
    return request.pieces[request.arrived++];
  }
  return Unexpected(steps_[rank]);
}

absl::Status Receiver::EndRequests(const Parts& state) {
  std::deque<Request> ended;
  for (Request& request : std::exchange(requests_, {})) {
    (request.arrived == 0 ? requests_ : ended).push_back(std::move(request));
  }
  for (Request& request : ended) {
    if (request.arrived < request.pieces.size()) {
      return absl::DataLossError(absl::StrCat(
          "of ", request.pieces.size(), " pieces that belong together rank ",
          request.rank, " sent ", request.arrived));
    }
    // The optimizer may have made more state of these elements since they were
    // asked for, and so other pieces.
    const std::vector<int64_t> with = PiecesWith(request.elements, state);
    if (!std::includes(request.pieces.begin(), request.pieces.end(),
                       with.begin(), with.end())) {
      COXSWAIN_RETURN_IF_ERROR(Ask(std::move(request), state));
    }
  }
  return absl::OkStatus();
}

absl::Status Receiver::AskForDamaged() {
  if (damaged_.empty()) return absl::OkStatus();
  COXSWAIN_ASSIGN_OR_RETURN(const Parts state, target_.State());
  for (Damaged& damaged : std::exchange(damaged_, {})) {
    const Member& sender = members_[damaged.rank];
    Request request;
    request.rank = (damaged.rank + 1) % members_.size();
    request.elements = std::move(damaged.elements);
    request.reason = absl::StrCat(
        "piece ", damaged.piece.number, " of ",
        damaged.piece.kind == Kind::kAverages ? "the averages" : "the state",
        " of step ", damaged.piece.progress, " from rank ", damaged.rank,
        " on ", sender.host,
        " did not arrive as it was sent: damaged memory, or a damaged network");
    damage_.push_back(request.reason);
    LogWarning("piece_damaged",
               {{"rank", static_cast<int64_t>(damaged.rank)},
                {"host", sender.host},
                {"reason", request.reason},
                {"next", absl::StrCat("what it holds is asked of rank ",
                                      request.rank)}});
    if (static_cast<int>(damage_.size()) > options_.max_damaged) {
      return absl::DataLossError(absl::StrCat(
          damage_.size(), " pieces were damaged; the last: ", request.reason));
    }
    COXSWAIN_RETURN_IF_ERROR(Ask(std::move(request), state));
  }
  return absl::OkStatus();
}

absl::Status Receiver::Ask(Request request, const Parts& state) {
  request.pieces = PiecesWith(request.elements, state);
  request.arrived = 0;
  size_t asked = request.pieces.size();
  for (const Request& other : requests_) {
    if (other.rank == request.rank) asked += other.pieces.size();
  }
  if (asked > kMaxAsked) {
    return absl::DataLossError(absl::StrCat(
        "what was damaged is part of ", asked, " pieces of the state, and ",
        kMaxAsked, " may be asked of rank ", request.rank,
        " at a time; the last damage: ", request.reason));
  }
  for (const int64_t number : request.pieces) {
    Header again;
    again.kind = Kind::kAgain;
    again.number = number;
    again.flags = number == request.pieces.back() ? 0 : kMore;
    COXSWAIN_RETURN_IF_ERROR(Answer(request.rank, again, request.reason));
  }
  if (request.pieces.empty()) return absl::OkStatus();
  if (request.rank != 0) {
    Header lacks;
    lacks.kind = Kind::kLacks;
    COXSWAIN_RETURN_IF_ERROR(Answer(0, lacks, ""));
  }
  requests_.push_back(std::move(request));
  return absl::OkStatus();
}

absl::Status Receiver::Answer(size_t rank, Header header,
                              absl::string_view text) {
  text = text.substr(0, kMaxAnswerBytes);
  header.bytes = static_cast<int64_t>(text.size());
  header.checksum = Crc32c(text);
  return SendAll(members_[rank].socket, absl::StrCat(Encode(header), text),
                 wake_, In(options_.receive_timeout));
}

}  // namespace coxswain::catch_up
