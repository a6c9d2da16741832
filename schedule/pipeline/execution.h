#ifndef COXSWAIN_SCHEDULE_PIPELINE_EXECUTION_H_
#define COXSWAIN_SCHEDULE_PIPELINE_EXECUTION_H_

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "schedule/pipeline/schedule.h"

namespace coxswain::pipeline {

// The messages of a schedule over channels that keep their order: from each
// stage one to the next and one to the stage before, with a capacity of so many
// messages sent and not yet received. With capacity 0 a send and its receive
// happen together.
//
// Each rank's list is fixed, and each channel has one sender and one receiver:
// an action that has become possible stays so. Hence every execution does the
// same actions, and one shows whether all end (a marked graph). This class is
// that execution, in time linear in the actions. `schedule` must outlive it.
class Execution {
 public:
  // INVALID_ARGUMENT: it has no transfers, or a negative capacity.
  // FAILED_PRECONDITION: messages are awaited in another order than they are
  // sent in.
  static absl::StatusOr<Execution> Create(const Schedule& schedule,
                                          int capacity);

  // Calls `visit` for each action that can be done, after all that it waits
  // for; of a send and a receive that happen together, for the send first, and
  // nothing else between. `at` is the action's place in the rank's list. Called
  // once.
  void Run(absl::FunctionRef<void(int rank, int at)> visit);

  // After Run: the place of the action that a rank waits at; the length of its
  // list where it has reached the end.
  int place(int rank) const { return place_[rank]; }
  bool AllEnd() const;

  // Which action another must wait for, as far as messages go.
  struct Need {
    int rank = -1;
    int at = -1;
  };
  // After Run: what a rank that has not reached its end waits for.
  Need NeedOf(int rank) const;

  // Returns how many messages of its channel come before that of a transfer.
  int OrderOf(const Action& transfer) const;
  // Returns the places of a channel's sends, and receives, in the lists.
  const std::vector<int>& sends(int channel) const {
    return channels_[channel].sends;
  }
  const std::vector<int>& receives(int channel) const {
    return channels_[channel].receives;
  }
  int channels() const { return static_cast<int>(channels_.size()); }
  int capacity() const { return capacity_; }

 private:
  struct Channel {
    std::vector<int> sends;
    std::vector<int> receives;
    std::vector<int> order;  // by micro-batch
    int sent = 0;
    int received = 0;
    bool sender_waits = false;
    bool receiver_waits = false;
  };

  Execution(const Schedule& schedule, int capacity)
      : schedule_(&schedule), capacity_(capacity) {}

  absl::Status FindChannels();
  const Action& ActionAt(int rank, int at) const {
    return schedule_->of_rank()[rank][at];
  }
  int SenderOf(int channel) const;
  int ReceiverOf(int channel) const;
  // Takes a rank as far as it comes.
  void Advance(int rank, absl::FunctionRef<void(int rank, int at)> visit);
  // Passes the message that both ends of a channel have come to.
  void Meet(int channel, absl::FunctionRef<void(int rank, int at)> visit);

  const Schedule* schedule_;
  int capacity_;
  std::vector<Channel> channels_;
  std::vector<int> place_;
  std::vector<int> ready_;  // ranks to take further
};

}  // namespace coxswain::pipeline

#endif  // COXSWAIN_SCHEDULE_PIPELINE_EXECUTION_H_
