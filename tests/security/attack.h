#ifndef COXSWAIN_TESTS_SECURITY_ATTACK_H_
#define COXSWAIN_TESTS_SECURITY_ATTACK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace coxswain {

// What one client does to a coordinator that the others use.
enum class AttackKind {
  // Connections, kept up: whichever is closed is opened again.
  kSilent,         // that never greet
  kGreetedSilent,  // that send the HTTP/2 preface, and nothing more
  kGarbage,        // that send bytes of no protocol
  kBrokenFrames,   // that greet, and send frames that make no sense
  kResets,         // one, that begins calls and resets them, as fast as it can
  kWholeResets,    // one, that sends requests, and resets their calls
  kManyResets,     // all of them begin calls and reset them
  kHalfMessages,   // 64, with large messages that never become whole
  kPaddedHalfMessages,  // the same, with headers as large as they may be
  kEndlessHeaders,      // 16, that begin a call whose headers have no end
  kPings,               // 16, that send pings and read no answer
  // Calls of gRPC, begun again as they end.
  kSmallCalls,        // many small ones at once on one connection
  kHugeMessages,      // messages as large as they may be, and larger
  kAbandonedStreams,  // streams without a first message, left half-way
  kCompressedJoins,   // that wait, each a thousand times as large as it is sent
};
std::vector<AttackKind> AllAttacks();
std::string NameOf(AttackKind kind);

// One attack, from its making to its end, on a thread of its own.
class Attack {
 public:
  // What it has done so far.
  struct Count {
    int64_t connections = 0;  // that it has opened
    int64_t closed = 0;       // of these, by the coordinator
    int64_t calls = 0;        // that have ended
    int64_t bytes = 0;        // sent over its own connections
  };

  // Begins an attack, with `connections` connections if it needs any. Returns
  // once they have been opened, or the first calls have been sent.
  static std::unique_ptr<Attack> Begin(AttackKind kind, int port,
                                       int connections);
  virtual ~Attack() = default;
  virtual Count count() const = 0;
};

// Lets this process have so many descriptors. False if it may not.
bool RaiseDescriptorLimit(int wanted);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SECURITY_ATTACK_H_
