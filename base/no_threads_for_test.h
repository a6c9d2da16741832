#ifndef COXSWAIN_BASE_NO_THREADS_FOR_TEST_H_
#define COXSWAIN_BASE_NO_THREADS_FOR_TEST_H_

#include <pthread.h>

#include <cstddef>

#include "base/check.h"

namespace coxswain {

// While it exists no thread can be started in this process: its stack would be
// larger than what a process can address.
class NoThreads {
 public:
  NoThreads() {
    COXSWAIN_CHECK(pthread_getattr_default_np(&before_) == 0);
    pthread_attr_t huge;
    COXSWAIN_CHECK(pthread_attr_init(&huge) == 0);
    COXSWAIN_CHECK(pthread_attr_setstacksize(&huge, size_t{1} << 50) == 0);
    COXSWAIN_CHECK(pthread_setattr_default_np(&huge) == 0);
    pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    COXSWAIN_CHECK(pthread_setattr_default_np(&before_) == 0);
    pthread_attr_destroy(&before_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_;
};

}  // namespace coxswain

#endif  // COXSWAIN_BASE_NO_THREADS_FOR_TEST_H_
