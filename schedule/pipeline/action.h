#ifndef COXSWAIN_SCHEDULE_PIPELINE_ACTION_H_
#define COXSWAIN_SCHEDULE_PIPELINE_ACTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace coxswain::pipeline {

// What a rank does next, in the words of torch.distributed.pipelining.
enum class ActionKind : uint8_t {
  kForward,             // F
  kBackward,            // B: both of the following
  kBackwardInput,       // I: the gradients of the stage's inputs
  kBackwardWeight,      // W: those of its parameters
  kSendForward,         // SEND_F: activations to the next stage
  kReceiveForward,      // RECV_F
  kSendBackward,        // SEND_B: gradients to the stage before
  kReceiveBackward,     // RECV_B
  kWaitSendForward,     // WAIT_SEND_F: until the message has been received
  kWaitSendBackward,    // WAIT_SEND_B
  kUnshard,             // UNSHARD: of parameters, as FSDP does
  kReshard,             // RESHARD
  kReduceGradient,      // REDUCE_GRAD: over the data-parallel ranks
  kWaitReduceGradient,  // WAIT_REDUCE_GRAD
};

// The most that a schedule has. They bound memory where a schedule is read.
inline constexpr int kMaxRanks = 4096;
inline constexpr int kMaxStages = 1 << 16;
inline constexpr int kMaxMicroBatches = 1 << 16;
inline constexpr int64_t kMaxActions = int64_t{1} << 23;  // of all ranks

struct Action {
  int stage = 0;
  int micro_batch = -1;  // -1: it is of no micro-batch, as REDUCE_GRAD
  ActionKind kind = ActionKind::kForward;
  // Of the first of several that run at the same time: how many these are; they
  // follow each other. 0 of all others.
  uint16_t overlap = 0;

  friend bool operator==(const Action& a, const Action& b) {
    return a.stage == b.stage && a.micro_batch == b.micro_batch &&
           a.kind == b.kind && a.overlap == b.overlap;
  }
  friend bool operator!=(const Action& a, const Action& b) { return !(a == b); }
};

// F, B, I or W.
bool IsCompute(ActionKind kind);
// SEND_F or SEND_B; RECV_F or RECV_B; WAIT_SEND_F or WAIT_SEND_B.
bool IsSend(ActionKind kind);
bool IsReceive(ActionKind kind);
bool IsWaitForSend(ActionKind kind);
bool IsTransfer(ActionKind kind);  // any of these six
bool IsOfMicroBatch(ActionKind kind);

// Returns the number of the channel that a transfer uses: there is one from
// each stage to the next, for activations, and one to the stage before, for
// gradients. A schedule has fewer than 2 * stages + 2.
int ChannelOf(const Action& transfer);

// Returns "2F0", "1SEND_B3", "0REDUCE_GRAD".
std::string ToString(const Action& action);

// Reads an action as ToString writes it, or several that run at the same time
// as torch does: "(0F3;3B1)OVERLAP_F_B". Each is one of F, B, I and W then.
// INVALID_ARGUMENT names the text.
absl::StatusOr<std::vector<Action>> ParseActions(absl::string_view text);

}  // namespace coxswain::pipeline

#endif  // COXSWAIN_SCHEDULE_PIPELINE_ACTION_H_
