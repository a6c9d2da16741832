#include "hooks/kernels/parallel.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

TEST(ParallelTest, EveryPartRunsOnce) {
  for (const int parts : {0, 1, 2, 5, 9}) {
    std::vector<std::atomic<int>> runs(10);
    RunParts(parts, [&](int part) { ++runs[static_cast<size_t>(part)]; });
    for (int i = 0; i < 10; ++i) {
      EXPECT_EQ(runs[static_cast<size_t>(i)], i < parts ? 1 : 0);
    }
  }
}

TEST(ParallelTest, PartsRunAtTheSameTime) {
  // Each part waits for the other, which two threads can do and one cannot.
  Mutex mutex;
  CondVar both;
  int there = 0;
  RunParts(2, [&](int) {
    MutexLock lock(&mutex);
    ++there;
    both.NotifyAll();
    EXPECT_TRUE(
        both.WaitFor(&mutex, absl::Minutes(1), [&] { return there == 2; }));
  });
}

TEST(ParallelTest, CallersFromSeveralThreadsAllFinish) {
  std::atomic<int> runs{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int k = 0; k < 200; ++k) RunParts(3, [&](int) { ++runs; });
    });
  }
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(runs, 4 * 200 * 3);
}

TEST(ParallelTest, TheChildOfAForkWorksAlone) {
  RunParts(3, [](int) {});
  const pid_t child = fork();
  if (child == 0) {
    int runs = 0;
    RunParts(3, [&](int) { ++runs; });
    std::exit(runs == 3 ? 0 : 1);  // with the handlers of an exit
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(ParallelTest, RangesCoverAndAreCutAtGrains) {
  SetKernelThreads(3);
  Mutex mutex;
  std::set<std::pair<int64_t, int64_t>> ranges;
  RunRanges(1001, 64, int64_t{1} << 30, [&](int64_t begin, int64_t end) {
    MutexLock lock(&mutex);
    ranges.emplace(begin, end);
  });
  EXPECT_EQ(ranges.size(), 3u);
  int64_t at = 0;
  for (const auto& [begin, end] : ranges) {
    EXPECT_EQ(begin, at);
    EXPECT_TRUE(end % 64 == 0 || end == 1001);
    at = end;
  }
  EXPECT_EQ(at, 1001);
  SetKernelThreads(1);
}

TEST(ParallelTest, SeveralRangesAreCoveredAndCutAtGrains) {
  const std::vector<WorkRange> work = {
      {5, 0},        {1000, 1 << 20}, {0, 1 << 10}, {3, 1 << 10},
      {40, 1 << 19}, {7, 0},          {1, 1 << 16}, {999, 1 << 20}};
  for (int threads = 1; threads <= 8; ++threads) {
    SetKernelThreads(threads);
    Mutex mutex;
    std::vector<std::vector<std::pair<int64_t, int64_t>>> ranges(work.size());
    RunRanges(work, 4, [&](size_t i, int64_t begin, int64_t end) {
      MutexLock lock(&mutex);
      ranges[i].emplace_back(begin, end);
    });
    for (size_t i = 0; i < work.size(); ++i) {
      std::sort(ranges[i].begin(), ranges[i].end());
      int64_t at = 0;
      for (const auto& [begin, end] : ranges[i]) {
        EXPECT_EQ(begin, at) << i << ", " << threads;
        EXPECT_TRUE(end % 4 == 0 || end == work[i].count) << end;
        at = end;
      }
      EXPECT_EQ(at, work[i].count) << i << ", " << threads;
    }
  }
  SetKernelThreads(1);
}

// Each waits for the other, though neither is work for two threads.
TEST(ParallelTest, SmallRangesShareTheThreads) {
  SetKernelThreads(2);
  Mutex mutex;
  CondVar both;
  int there = 0;
  const int64_t before = ParallelRegions();
  RunRanges({{9, 300 << 10}, {9, 300 << 10}}, 10,
            [&](size_t, int64_t begin, int64_t end) {
              EXPECT_EQ(begin, 0);
              EXPECT_EQ(end, 9);
              MutexLock lock(&mutex);
              ++there;
              both.NotifyAll();
              EXPECT_TRUE(both.WaitFor(&mutex, absl::Minutes(1),
                                       [&] { return there == 2; }));
            });
  EXPECT_EQ(ParallelRegions(), before + 1);
  SetKernelThreads(1);
}

TEST(ParallelTest, TheVariableIsAWholeNumberFromOne) {
  EXPECT_EQ(ParseKernelThreads("1").value_or(0), 1);
  EXPECT_EQ(ParseKernelThreads("16").value_or(0), 16);
  EXPECT_EQ(ParseKernelThreads("1000").value_or(0), 256);
  for (const char* value :
       {"", "0", "-2", "four", "4x", "2.5", "1e2", "99999999999"}) {
    EXPECT_THAT(
        ParseKernelThreads(value),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 testing::HasSubstr(std::string("COXSWAIN_KERNEL_THREADS='") +
                                    value + "' is not")));
  }
}

TEST(ParallelTest, SmallWorkAndTheNumberOfThreadsBoundTheParts) {
  SetKernelThreads(4);
  EXPECT_EQ(KernelParts(1000), 1);
  EXPECT_EQ(KernelParts(int64_t{1} << 19), 2);
  EXPECT_EQ(KernelParts(int64_t{1} << 30), 4);
  SetKernelThreads(0);
  EXPECT_EQ(KernelThreads(), 1);
  SetKernelThreads(1000);
  EXPECT_EQ(KernelThreads(), 256);
  SetKernelThreads(1);
}

TEST(TargetsTest, OnlyTargetsOfThisCpuCanBeUsed) {
  const auto targets = KernelTargets();
  ASSERT_FALSE(targets.empty());
  EXPECT_EQ(KernelTarget(), targets.front());
  EXPECT_TRUE(UseKernelTarget(targets.back()));
  EXPECT_EQ(KernelTarget(), targets.back());
  EXPECT_EQ(KernelTargets(), targets);
  EXPECT_FALSE(UseKernelTarget("Z80"));
  EXPECT_TRUE(UseKernelTarget(targets.front()));
}

}  // namespace
}  // namespace coxswain
