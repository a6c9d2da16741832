#include "tests/security/attack.h"

#include <sys/resource.h>

#include <algorithm>

#include "base/check.h"
#include "tests/security/call_attack.h"
#include "tests/security/socket_attack.h"

namespace coxswain {

std::vector<AttackKind> AllAttacks() {
  return {AttackKind::kSilent,
          AttackKind::kGreetedSilent,
          AttackKind::kGarbage,
          AttackKind::kBrokenFrames,
          AttackKind::kResets,
          AttackKind::kWholeResets,
          AttackKind::kManyResets,
          AttackKind::kHalfMessages,
          AttackKind::kPaddedHalfMessages,
          AttackKind::kEndlessHeaders,
          AttackKind::kPings,
          AttackKind::kSmallCalls,
          AttackKind::kHugeMessages,
          AttackKind::kAbandonedStreams,
          AttackKind::kCompressedJoins};
}

std::string NameOf(AttackKind kind) {
  switch (kind) {
    case AttackKind::kSilent:
      return "Silent";
    case AttackKind::kGreetedSilent:
      return "GreetedSilent";
    case AttackKind::kGarbage:
      return "Garbage";
    case AttackKind::kBrokenFrames:
      return "BrokenFrames";
    case AttackKind::kResets:
      return "Resets";
    case AttackKind::kWholeResets:
      return "WholeResets";
    case AttackKind::kManyResets:
      return "ManyResets";
    case AttackKind::kHalfMessages:
      return "HalfMessages";
    case AttackKind::kPaddedHalfMessages:
      return "PaddedHalfMessages";
    case AttackKind::kEndlessHeaders:
      return "EndlessHeaders";
    case AttackKind::kPings:
      return "Pings";
    case AttackKind::kSmallCalls:
      return "SmallCalls";
    case AttackKind::kHugeMessages:
      return "HugeMessages";
    case AttackKind::kAbandonedStreams:
      return "AbandonedStreams";
    case AttackKind::kCompressedJoins:
      return "CompressedJoins";
  }
  COXSWAIN_CHECK(false);
  return "";
}

std::unique_ptr<Attack> Attack::Begin(AttackKind kind, int port,
                                      int connections) {
  switch (kind) {
    case AttackKind::kSmallCalls:
    case AttackKind::kHugeMessages:
    case AttackKind::kAbandonedStreams:
    case AttackKind::kCompressedJoins:
      return BeginCallAttack(kind, port);
    case AttackKind::kResets:
    case AttackKind::kWholeResets:
      // As fast as it goes, which one is enough for.
      return BeginSocketAttack(kind, port, 1);
    case AttackKind::kEndlessHeaders:
    case AttackKind::kPings:
      return BeginSocketAttack(kind, port, 16);
    case AttackKind::kHalfMessages:
    case AttackKind::kPaddedHalfMessages:
      return BeginSocketAttack(kind, port, 64);
    default:
      return BeginSocketAttack(kind, port, connections);
  }
}

bool RaiseDescriptorLimit(int wanted) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  const auto most = static_cast<rlim_t>(wanted);
  if (limit.rlim_cur >= most) return true;
  limit.rlim_cur = std::min(most, limit.rlim_max);
  return setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= most;
}

}  // namespace coxswain
