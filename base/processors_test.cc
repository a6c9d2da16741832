#include "base/processors.h"

#include <gtest/gtest.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>

namespace coxswain {
namespace {

void KeepOn(const Processors& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (size_t i = 0; i < processors.size(); ++i) {
    if (processors.test(i)) CPU_SET(i, &set);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(set), &set), 0);
}

// Returns what a child counts that is kept on these processors.
int CountOfChild(const Processors& processors) {
  const pid_t child = fork();
  if (child == 0) {
    KeepOn(processors);
    _exit(ProcessorsOfSiblings());
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WEXITSTATUS(status);
}

TEST(ProcessorsTest, ThoseOfALauncherAndOfNoMachine) {
  const Processors all = ProcessorsOfThread();
  ASSERT_TRUE(all.any());
  Processors first;
  first.set(all._Find_first());
  // A rank that its launcher keeps on a processor.
  EXPECT_EQ(CountOfChild(first), static_cast<int>(all.count() % 256));
  // A launcher that is kept on one, with all its ranks.
  KeepOn(first);
  EXPECT_EQ(ProcessorsOfThread(), first);
  EXPECT_EQ(CountOfChild(first), 1);
  KeepOn(all);
}

}  // namespace
}  // namespace coxswain
