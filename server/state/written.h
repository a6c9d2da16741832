#ifndef COXSWAIN_SERVER_STATE_WRITTEN_H_
#define COXSWAIN_SERVER_STATE_WRITTEN_H_

#include <memory>

#include "base/mutex.h"
#include "server/state/state_writer.h"

namespace coxswain::server {

// Returns once the callbacks of all that was written before have run: for the
// destructor of a room whose callbacks refer to it. Not to be called from a
// callback, nor under a lock that one takes.
inline void WaitUntilWritten(StateWriter* writer) {
  struct Signal {
    Mutex mutex;
    CondVar changed;
    bool written ABSL_GUARDED_BY(mutex) = false;
  };
  const auto signal = std::make_shared<Signal>();
  writer->AfterWritten([signal] {
    {
      MutexLock lock(&signal->mutex);
      signal->written = true;
    }
    signal->changed.NotifyOne();
  });
  MutexLock lock(&signal->mutex);
  // The writer always calls back.
  signal->changed.WaitForWork(
      &signal->mutex,
      [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return signal->written; });
}

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STATE_WRITTEN_H_
