#ifndef COXSWAIN_EXAMPLES_FASHION_MNIST_EVENTS_H_
#define COXSWAIN_EXAMPLES_FASHION_MNIST_EVENTS_H_

#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "examples/progress/step_event.h"

namespace coxswain::examples {

// The run has ended well. Rates are over all ranks, bytes of one rank.
struct ResultEvent {
  std::string hook;
  int world_size = 0;
  int64_t steps = 0;
  // Steps that ran as the hook's spec asks for, past any start_step.
  int64_t compressed_steps = 0;
  double test_accuracy = 0;  // 0 to 1
  // Payload handed to collectives per compressed step; 0 if there was none.
  double bytes_sent_per_step = 0;
  // fp32 payload of all gradients over bytes_sent_per_step; 0 if unknown.
  double compression_ratio = 0;
  // What left the process per step, compressed or not.
  double wire_bytes_per_step = 0;
  double images_per_second = 0;
  double wall_seconds = 0;  // training only, without start-up and test
};

// What the trainer's rank 0 prints: see StepEvent.
using Event = std::variant<StepEvent, ResultEvent>;

std::string ToJsonLine(const Event& event);
// Fails with INVALID_ARGUMENT if the line is not such an event.
absl::StatusOr<Event> ParseEvent(absl::string_view line);

}  // namespace coxswain::examples

#endif  // COXSWAIN_EXAMPLES_FASHION_MNIST_EVENTS_H_
