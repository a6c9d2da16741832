#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "client/comm/memory_store.h"
#include "client/comm/shm/shm_communicator.h"

namespace coxswain {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

// Milliseconds, by far; a busy or instrumented machine may need longer.
constexpr absl::Duration kSoonEnough = absl::Seconds(10);
constexpr absl::Duration kForEver = absl::Minutes(2);

absl::Time Now() { return Clock::Real()->Now(); }

std::vector<std::unique_ptr<Communicator>> MakePair() {
  auto store = std::make_shared<MemoryStore>();
  std::vector<std::unique_ptr<Communicator>> pair(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      CommunicatorOptions options;
      options.id = "aborted";
      options.rank = rank;
      options.size = 2;
      options.store = store;
      options.timeout = kForEver;
      ASSERT_OK_AND_ASSIGN(pair[static_cast<size_t>(rank)],
                           ConnectShm(options));
    });
  }
  for (auto& thread : threads) thread.join();
  return pair;
}

Span SpanOfFloats(std::vector<float>* data) {
  Span span;
  span.data = data->data();
  span.count = static_cast<int64_t>(data->size());
  return span;
}

// A thread that waits, and when that was over.
class Waiter {
 public:
  explicit Waiter(std::function<absl::Status()> wait)
      : thread_([this, wait = std::move(wait)] {
          thread_id_ = static_cast<int>(syscall(SYS_gettid));
          status_ = wait();
          ended_ = Now();
        }) {}

  // Waits until the kernel shows the thread as sleeping.
  void AwaitAsleep() const {
    const absl::Time deadline = Now() + kSoonEnough;
    while (!Asleep() && Now() < deadline) sched_yield();
    EXPECT_TRUE(Asleep());
  }
  void Join() { thread_.join(); }
  // After Join.
  const absl::Status& status() const { return status_; }
  absl::Time ended() const { return ended_; }

 private:
  bool Asleep() const {
    if (thread_id_ == 0) return false;
    std::ifstream file(
        absl::StrCat("/proc/self/task/", thread_id_.load(), "/stat"));
    std::string line;
    std::getline(file, line);
    const size_t name_ends = line.rfind(')');
    return name_ends != std::string::npos && line.size() > name_ends + 2 &&
           line[name_ends + 2] == 'S';
  }

  std::atomic<int> thread_id_{0};
  absl::Status status_;
  absl::Time ended_;
  std::thread thread_;  // last: it uses the others
};

struct Case {
  const char* name;
  // What rank 0 waits for and rank 1 never begins. May block.
  std::function<WorkPtr(Communicator&, std::vector<float>*)> begin;
  int repeats = 20;
};

class ShmAbortTest : public testing::TestWithParam<Case> {};

// Returns how long the wait of rank `waits` goes on after rank 0 was aborted.
absl::Duration Measure(int waits) {
  WorkPtr work;  // outlives all threads
  const auto pair = MakePair();
  std::vector<float> data(300000);
  Waiter waiter([&] {
    work = ShmAbortTest::GetParam().begin(*pair[static_cast<size_t>(waits)],
                                          &data);
    return work->Wait(kForEver);
  });
  waiter.AwaitAsleep();
  const absl::Time aborted = Now();
  pair[0]->Abort("the member left");
  waiter.Join();
  EXPECT_THAT(waiter.status(), AnyOf(StatusIs(absl::StatusCode::kAborted,
                                              HasSubstr("the member left")),
                                     StatusIs(absl::StatusCode::kUnavailable,
                                              HasSubstr("the member left"))));
  return waiter.ended() - aborted;
}

void MeasureAll(const std::string& what, int waits) {
  std::vector<absl::Duration> times;
  for (int i = 0; i < ShmAbortTest::GetParam().repeats; ++i) {
    times.push_back(Measure(waits));
  }
  std::sort(times.begin(), times.end());
  EXPECT_LT(times.back(), kSoonEnough);
  const std::string text =
      absl::StrCat("median ", absl::FormatDuration(times[times.size() / 2]),
                   ", longest ", absl::FormatDuration(times.back()));
  testing::Test::RecordProperty(what, text);
  std::printf("%s, %s: %s\n", ShmAbortTest::GetParam().name, what.c_str(),
              text.c_str());
}

TEST_P(ShmAbortTest, EndsTheWaitOfItsOwnRank) { MeasureAll("own rank", 0); }

TEST_P(ShmAbortTest, EndsTheWaitOfThePeer) { MeasureAll("peer", 1); }

int PeerOf(const Communicator& comm) { return 1 - comm.rank(); }

INSTANTIATE_TEST_SUITE_P(
    Waits, ShmAbortTest,
    testing::Values(
        Case{"Small",
             [](Communicator& comm, std::vector<float>* data) {
               return comm.AllReduce(SpanOfFloats(data).Slice(0, 10));
             }},
        Case{"SmallHandedOver",
             [](Communicator& comm, std::vector<float>* data) {
               const WorkPtr work =
                   comm.AllReduce(SpanOfFloats(data).Slice(0, 10));
               work->Done();
               return work;
             }},
        Case{"Large",
             [](Communicator& comm, std::vector<float>* data) {
               return comm.AllReduce(SpanOfFloats(data));
             }},
        Case{"Send",
             [](Communicator& comm, std::vector<float>* data) {
               return comm.Send(SpanOfFloats(data), PeerOf(comm), 1);
             }},
        Case{"Receive",
             [](Communicator& comm, std::vector<float>* data) {
               return comm.Receive(SpanOfFloats(data), PeerOf(comm), 1);
             }},
        Case{"Split",
             [](Communicator& comm, std::vector<float>*) {
               return Work::Ended(comm.Split({0, 1}).status());
             },
             // A question to the store lasts a second.
             3}),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace coxswain
