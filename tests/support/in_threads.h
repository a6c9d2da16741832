#ifndef COXSWAIN_TESTS_SUPPORT_IN_THREADS_H_
#define COXSWAIN_TESTS_SUPPORT_IN_THREADS_H_

#include <functional>
#include <thread>
#include <vector>

namespace coxswain {

// Runs `work(i)` for i below `count`, each in a thread, to their ends.
inline void InThreads(int count, const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SUPPORT_IN_THREADS_H_
