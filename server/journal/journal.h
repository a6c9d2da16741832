#ifndef COXSWAIN_SERVER_JOURNAL_JOURNAL_H_
#define COXSWAIN_SERVER_JOURNAL_JOURNAL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/mutex.h"

namespace coxswain::server {

// Something that happened to a job. What is not known is -1.
struct JournalEvent {
  int64_t sequence = 0;  // the journal's; grows, from 1
  absl::Time time;       // calendar time
  std::string level;     // "debug", "info", "warning", "error"
  std::string event;     // as in the log: "member_lost", for example
  std::string job;       // not empty
  int64_t generation = -1;
  int rank = -1;
  int64_t step = -1;
  // All other fields of the log's line, in its order.
  std::vector<std::pair<std::string, std::string>> fields;
};

// Beyond a limit the oldest events are dropped. Peers control the names of jobs
// and the texts of events.
struct JournalLimits {
  // For one more, the job without an event for longest is dropped.
  size_t max_jobs = 256;
  size_t max_events_per_job = 1024;
  size_t max_bytes = 16 << 20;  // of all events, estimated
  // Longer events are cut: a log's line has no bound of its own.
  size_t max_event_bytes = 4096;
  size_t max_fields = 32;
};

// The newest events of each job, in memory: those of this coordinator since it
// was started. Written by its log, read by the services that show it.
//
// Thread-safe. Note() may be called with any other lock held: it runs no
// callback.
class Journal {
 public:
  explicit Journal(const JournalLimits& limits = {}) : limits_(limits) {}

  // Sets the sequence. An event without a job is not kept; bytes that are no
  // UTF-8 become U+FFFD, so that what is kept can be sent.
  void Note(JournalEvent event);

  // Returns up to `limit` events with a higher sequence than `after`, the
  // oldest first. An empty `job` stands for all.
  std::vector<JournalEvent> Read(const std::string& job, int64_t after,
                                 int limit) const;

  // Returns the sequence of the newest event; 0: there was none yet.
  int64_t newest() const;
  // Returns the highest sequence of the events that were dropped because of the
  // limits; 0: none was.
  int64_t forgotten() const;

  // Calls `on_news` from Tick() whenever something was noted since the last
  // one, until it is forgotten. It must be quick, may call Read(), and must not
  // call Listen(), Forget() or Tick().
  uint64_t Listen(std::function<void()> on_news);
  // Once this has returned the callback does not run, nor will it. Must not be
  // called with a lock held that the callback takes.
  void Forget(uint64_t listener);

  // Notifies listeners of new events. To be called often.
  void Tick();

  // Notifies listeners that no more events will come. Note() and Read() still
  // work.
  void Close();
  bool closed() const;

 private:
  using Sequences = std::deque<int64_t>;

  Sequences* JobLocked(const std::string& name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropOldestLocked(const std::string& job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropQuietestJobLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const JournalLimits limits_;
  mutable Mutex mutex_;
  int64_t newest_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t forgotten_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, JournalEvent> events_ ABSL_GUARDED_BY(mutex_);
  // Those of each job, in order; none is empty.
  std::map<std::string, Sequences> jobs_ ABSL_GUARDED_BY(mutex_);

  Mutex listeners_mutex_;  // Before mutex_. Held while listeners are called.
  uint64_t last_listener_ ABSL_GUARDED_BY(listeners_mutex_) = 0;
  int64_t told_ ABSL_GUARDED_BY(listeners_mutex_) = 0;
  std::map<uint64_t, std::function<void()>> listeners_
      ABSL_GUARDED_BY(listeners_mutex_);
};

// Notes every line of the process's log that has a `job` field in a journal,
// for as long as it lives. Where several coordinators live in one process, as
// in tests, the journal of each has the lines of all. Thread-safe.
class JournalSink : public LogSink {
 public:
  // Both outlive it.
  JournalSink(Journal* journal, const Clock* clock);
  ~JournalSink() override;
  JournalSink(const JournalSink&) = delete;
  JournalSink& operator=(const JournalSink&) = delete;

  void OnLine(const LogLine& line) override;

 private:
  Journal* const journal_;
  const Clock* const clock_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_JOURNAL_JOURNAL_H_
