#ifndef COXSWAIN_CLIENT_ELASTIC_CATCH_UP_FRAME_H_
#define COXSWAIN_CLIENT_ELASTIC_CATCH_UP_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"
#include "client/comm/tcp/tcp_socket.h"
#include "client/device/tensor.h"

// What travels between a member and a newcomer that takes its state while it
// waits. Used by sender, source and receiver.
//
// A member sends kHello, and then for each step: kStep, its pieces of the
// averages where the step was applied, and as many pieces of the state as kStep
// has announced: at first all of its share, later those that were asked for:
// all that hold the elements of a damaged piece, after the same step. A
// newcomer answers with kAgain and kReached, and with kLacks to rank 0, which
// has the coordinator wait.

namespace coxswain::catch_up {

// Of so many ranks, from rank 0 on, a newcomer takes the state.
inline constexpr int kMaxSources = 8;
inline constexpr int64_t kPieceBytes = int64_t{1} << 20;
// Of what is no piece: a host's name, the small rest of a step.
inline constexpr int64_t kMaxSmallBytes = int64_t{64} << 20;
// Of the state: that a newcomer has asked one member for, and that have not
// come.
inline constexpr size_t kMaxAsked = 1024;
// Of the text of an answer.
inline constexpr int64_t kMaxAnswerBytes = 512;

enum class Kind : uint32_t {
  kHello = 1,
  kStep = 2,
  kAverages = 3,
  kState = 4,
  kAgain = 5,    // the newcomer asks for this piece of the state, and why
  kReached = 6,  // the newcomer holds all of the state of this step
  kLacks = 7,    // the newcomer has asked another member with kAgain
};

// The flags of kStep.
inline constexpr uint32_t kBegins = 1;   // all of the state follows
inline constexpr uint32_t kApplied = 2;  // the optimizer has taken it
inline constexpr uint32_t kLast = 4;     // the generation ends after it
// Of kAgain: another one follows, to be sent after the same step.
inline constexpr uint32_t kMore = 8;

struct Header {
  uint32_t magic = kMagic;
  Kind kind = Kind::kHello;
  uint32_t flags = 0;
  uint32_t checksum = 0;  // CRC-32C of the payload
  int64_t progress = 0;   // ElasticState::progress after the step
  int64_t number = 0;     // of the piece; kStep: how many kState follow
  int64_t bytes = 0;      // of the payload
  uint32_t reserved = 0;
  uint32_t own_checksum = 0;  // CRC-32C of all before it

  static constexpr uint32_t kMagic = 0x43585550;
};

// The payload of kHello, before the host's name.
struct Hello {
  uint64_t secret = 0;
  int64_t generation = 0;
  int64_t lineage = 0;  // RankFacts::lineage
  int32_t rank = 0;
  int32_t sources = 0;
};

// Returns the bytes of a header.
std::string Encode(Header header);
// Fails with DATA_LOSS for bytes that are none.
absl::StatusOr<Header> Decode(absl::string_view bytes);

// Memory that is divided into pieces as if it lay in a row.
class PiecesOf {
 public:
  explicit PiecesOf(std::vector<Span> spans);

  int64_t pieces() const { return (bytes_ + kPieceBytes - 1) / kPieceBytes; }
  int64_t bytes() const { return bytes_; }
  // Return how many bytes this one has, and all of these together.
  int64_t SizeOf(int64_t piece) const;
  int64_t SizeOf(const std::vector<int64_t>& pieces) const;
  // Calls `visit` for each run of memory of a piece, in order.
  void Visit(int64_t piece,
             const std::function<void(char* data, int64_t bytes)>& visit) const;
  // Calls `visit` for each run of a piece: which span, and where in it.
  void VisitSpans(int64_t piece,
                  const std::function<void(size_t span, int64_t begin,
                                           int64_t bytes)>& visit) const;
  // Returns where a span begins.
  int64_t begin(size_t span) const { return begins_[span]; }

 private:
  std::vector<Span> spans_;
  std::vector<int64_t> begins_;
  int64_t bytes_ = 0;
};

// Move all of the bytes. Fail with DEADLINE_EXCEEDED at `end`, with CANCELLED
// once `wake` is raised, and as SendSome and ReceiveSome.
absl::Status SendAll(const UniqueFd& socket, absl::string_view bytes,
                     const WakeFd& wake, absl::Time end);
absl::Status ReceiveAll(const UniqueFd& socket, char* data, int64_t bytes,
                        const WakeFd& wake, absl::Time end);

}  // namespace coxswain::catch_up

#endif  // COXSWAIN_CLIENT_ELASTIC_CATCH_UP_FRAME_H_
