#ifndef COXSWAIN_SERVER_MEMBERSHIP_FLAT_EVENT_H_
#define COXSWAIN_SERVER_MEMBERSHIP_FLAT_EVENT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "schedule/ticket.h"
#include "server/membership/membership_types.h"

namespace coxswain::server {

// An event as tests look at it, with the fields of all its kinds side by side.
struct FlatEvent {
  enum class Kind {
    kAbort,
    kMemberLeft,
    kGrant,
    kDecision,
    kWarning,
    kFallback,
    kClosed,
  };

  explicit FlatEvent(const AttachEvent& event) {
    if (const auto* message = std::get_if<schedule::Message>(&event)) {
      Fill(*message);
    } else {
      Fill(std::get<MembershipEvent>(event));
    }
  }

  Kind kind = Kind::kClosed;
  std::string reason;
  std::optional<Member> member;
  absl::Status status;
  std::string stream;
  int64_t round = 0;
  schedule::Decision decision;
  schedule::Epoch epoch;
  int rank = 0;
  std::string address;

 private:
  void Fill(const schedule::Message& message) {
    using From = schedule::Message::Kind;
    kind = message.kind == From::kGrant      ? Kind::kGrant
           : message.kind == From::kDecision ? Kind::kDecision
                                             : Kind::kWarning;
    reason = message.text;
    stream = message.stream;
    round = message.round;
    decision = message.decision;
    epoch = message.epoch;
  }
  void Fill(const MembershipEvent& event) {
    using From = MembershipEvent::Kind;
    kind = event.kind == From::kAbort        ? Kind::kAbort
           : event.kind == From::kMemberLeft ? Kind::kMemberLeft
           : event.kind == From::kFallback   ? Kind::kFallback
                                             : Kind::kClosed;
    reason = event.reason;
    member = event.member;
    status = event.status;
    rank = event.rank;
    address = event.address;
  }
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_FLAT_EVENT_H_
