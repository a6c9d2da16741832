#ifndef COXSWAIN_SERVER_SCHEDULE_SCHEDULE_OUTBOX_H_
#define COXSWAIN_SERVER_SCHEDULE_SCHEDULE_OUTBOX_H_

#include <deque>
#include <map>
#include <string>
#include <utility>

#include "schedule/epoch.h"
#include "schedule/step_agreement.h"
#include "server/schedule/job_schedule.h"

namespace coxswain::server {

// Holds the effects of a generation's schedule, in order, until a thread
// carries them out. Not thread-safe.
//
// It is bounded, whatever ranks send. What is for all ranks grows with the
// rounds alone. An answer to one rank takes the place of the one before it in
// the same stream: a rank is in one round of a stream, and waits for no other.
class ScheduleOutbox {
 public:
  // Adds what one call has returned; its messages are of this epoch.
  void Add(JobSchedule::Effects effects, const schedule::Epoch& epoch);
  bool empty() const { return queue_.empty() && answers_.empty(); }
  // Returns the next effects, with all answers that wait. Must not be empty.
  JobSchedule::Effects Take();
  // Drops what was decided in an earlier epoch, except that a plan has come
  // into force, which stays so.
  void DropDecisions();

 private:
  std::deque<JobSchedule::Effects> queue_;  // with no answer to one rank
  // By rank and stream.
  std::map<std::pair<int, std::string>, schedule::Message> answers_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_SCHEDULE_SCHEDULE_OUTBOX_H_
