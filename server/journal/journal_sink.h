#ifndef COXSWAIN_SERVER_JOURNAL_JOURNAL_SINK_H_
#define COXSWAIN_SERVER_JOURNAL_JOURNAL_SINK_H_

#include "base/clock.h"
#include "base/logging.h"
#include "server/journal/journal.h"

namespace coxswain::server {

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

#endif  // COXSWAIN_SERVER_JOURNAL_JOURNAL_SINK_H_
