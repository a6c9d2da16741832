// What ranks do together, each in a thread of its own.

#include <errno.h>
#include <sys/mman.h>

#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/capi/loaded_library.h"

namespace coxswain::capi_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const LoadedLibrary& library = Library();

cx_code Announce(cx_session session, int64_t step, int micro_batches) {
  auto ticket = Init<cx_ticket>();
  ticket.step = step;
  ticket.micro_batches = micro_batches;
  return library.cx_announce(session, &ticket);
}

cx_code Decide(cx_session session, cx_decision* decision,
               const char* refuse = nullptr) {
  *decision = Init<cx_decision>();
  auto vote = Init<cx_vote>();
  vote.refuse = refuse != nullptr ? 1 : 0;
  vote.reason = refuse;
  return library.cx_decide(session, nullptr, &vote, decision, nullptr);
}

// Everything that waits does so at once and in slices.
class CapiRanksTest : public testing::TestWithParam<bool> {
 protected:
  static cx_code Call(const std::function<cx_code(cx_call*)>& function) {
    return GetParam() ? InSlices(function) : function(nullptr);
  }
};

INSTANTIATE_TEST_SUITE_P(AtOnceAndInSlices, CapiRanksTest, testing::Bool());

TEST_P(CapiRanksTest, KnowThemselvesAndEachOther) {
  Job job(2);
  job.Each([](int rank, cx_session session) {
    auto info = Init<cx_session_info>();
    ASSERT_EQ(library.cx_info(session, &info), CX_OK);
    EXPECT_EQ(info.rank, rank);
    EXPECT_EQ(info.world_size, 2);
    EXPECT_EQ(info.local_rank, rank);
    EXPECT_GE(info.generation, 1);
    auto member = Init<cx_member_info>();
    ASSERT_EQ(Call([&](cx_call* call) {
                return library.cx_member(session, 1 - rank, &member, call);
              }),
              CX_OK);
    EXPECT_EQ(member.rank, 1 - rank);
    EXPECT_STREQ(member.node, "host-a");
    EXPECT_EQ(member.slot, 1 - rank);
    EXPECT_STRNE(member.address, "");
    EXPECT_EQ(library.cx_member(session, 2, &member, nullptr),
              CX_INVALID_ARGUMENT);
    EXPECT_EQ(library.cx_status(session), CX_OK);
    EXPECT_EQ(library.cx_report_progress(session, 3), CX_OK);
    EXPECT_EQ(library.cx_report_wait(session, 1), CX_OK);
    EXPECT_EQ(library.cx_report_wait(session, 0), CX_OK);
    EXPECT_EQ(library.cx_note_micro_batch(session), CX_OK);
    auto event = Init<cx_event>();
    ASSERT_EQ(Call([&](cx_call* call) {
                return library.cx_next_event(session, 10000, &event, call);
              }),
              CX_OK);
    EXPECT_EQ(event.kind, CX_EVENT_JOINED);
    EXPECT_EQ(event.generation, info.generation);
    EXPECT_EQ(library.cx_next_event(session, 0, &event, nullptr),
              CX_DEADLINE_EXCEEDED);
    EXPECT_EQ(Call([&](cx_call* call) {
                return library.cx_next_event(session, 80, &event, call);
              }),
              CX_DEADLINE_EXCEEDED);
  });
  job.Leave();
  EXPECT_EQ(library.cx_status(job[0]), CX_CANCELLED);
}

TEST_P(CapiRanksTest, GoOnInTheNextGeneration) {
  Job job(2);
  auto before = Init<cx_session_info>();
  ASSERT_EQ(library.cx_info(job[0], &before), CX_OK);
  ASSERT_EQ(library.cx_leave(job[1], "it makes way", 1, nullptr), CX_OK);
  cx_session next = 7;
  EXPECT_EQ(library.cx_rejoin(job[1], &next, nullptr), CX_FAILED_PRECONDITION);
  EXPECT_EQ(next, 0u);
  EXPECT_THAT(Message(), HasSubstr("has left the job"));
  EXPECT_EQ(library.cx_rejoin(job[0], nullptr, nullptr), CX_INVALID_ARGUMENT);
  Together(2, [&](int i) {
    cx_session mine = 0;
    if (i == 0) {
      ASSERT_EQ(Call([&](cx_call* call) {
                  return library.cx_rejoin(job[0], &mine, call);
                }),
                CX_OK)
          << Message();
      EXPECT_EQ(library.cx_close(job[0]), CX_OK);
    } else {
      // Another process in the place of the one that has left for good.
      const auto options = OptionsOf(job.name().c_str(), 1, 2);
      ASSERT_EQ(library.cx_join(&options, &mine, nullptr), CX_OK) << Message();
    }
    auto info = Init<cx_session_info>();
    ASSERT_EQ(library.cx_info(mine, &info), CX_OK);
    EXPECT_GT(info.generation, before.generation);
    EXPECT_EQ(info.rank, i);
    EXPECT_EQ(info.job, job.name());
    EXPECT_EQ(library.cx_barrier(mine, "all are here", 10000, nullptr), CX_OK);
    EXPECT_EQ(library.cx_leave(mine, "done", 0, nullptr), CX_OK);
    EXPECT_EQ(library.cx_close(mine), CX_OK);
  });
}

TEST_P(CapiRanksTest, ShareTheStore) {
  Job job(2);
  const std::string bytes("a\0b", 3);
  job.Each([&](int rank, cx_session session) {
    const void* value = nullptr;
    size_t size = 0;
    if (rank == 0) {
      EXPECT_EQ(library.cx_store_get(session, "no", 0, &value, &size, nullptr),
                CX_NOT_FOUND);
      EXPECT_EQ(Call([&](cx_call* call) {
                  return library.cx_store_get(session, "no", 80, &value, &size,
                                              call);
                }),
                CX_DEADLINE_EXCEEDED);
      EXPECT_EQ(Call([&](cx_call* call) {
                  return library.cx_store_set(session, "key", bytes.data(),
                                              bytes.size(), call);
                }),
                CX_OK);
    } else {
      ASSERT_EQ(Call([&](cx_call* call) {
                  return library.cx_store_get(session, "key", 10000, &value,
                                              &size, call);
                }),
                CX_OK);
      EXPECT_EQ(std::string(static_cast<const char*>(value), size), bytes);
    }
    EXPECT_EQ(Call([&](cx_call* call) {
                return library.cx_store_add(session, "n", rank + 1, nullptr,
                                            call);
              }),
              CX_OK);
    EXPECT_EQ(Call([&](cx_call* call) {
                return library.cx_barrier(session, "added", 10000, call);
              }),
              CX_OK);
    int64_t sum = 0;
    EXPECT_EQ(library.cx_store_add(session, "n", 0, &sum, nullptr), CX_OK);
    EXPECT_EQ(sum, 3);
    const char* keys[] = {"key", "n"};
    EXPECT_EQ(Call([&](cx_call* call) {
                return library.cx_store_wait(session, keys, 2, 10000, call);
              }),
              CX_OK);
  });
  int32_t swapped = 7, existed = 7;
  const void* value = nullptr;
  size_t size = 0;
  EXPECT_EQ(Call([&](cx_call* call) {
              return library.cx_store_compare_set(
                  job[0], "n", "4", 1, "5", 1, &value, &size, &swapped, call);
            }),
            CX_OK);
  EXPECT_EQ(swapped, 0);
  EXPECT_EQ(std::string(static_cast<const char*>(value), size), "3");
  EXPECT_EQ(library.cx_store_compare_set(job[0], "n", "3", 1, "5", 1, nullptr,
                                         nullptr, &swapped, nullptr),
            CX_OK);
  EXPECT_EQ(swapped, 1);
  int64_t count = 7;
  EXPECT_EQ(library.cx_store_count_keys(job[1], "n", &count, nullptr), CX_OK);
  EXPECT_EQ(count, 1);
  EXPECT_EQ(library.cx_store_count_keys(job[1], "no", &count, nullptr), CX_OK);
  EXPECT_EQ(count, 0);
  EXPECT_EQ(library.cx_store_count_keys(job[1], nullptr, &count, nullptr),
            CX_OK);
  EXPECT_GE(count, 1);
  EXPECT_EQ(Call([&](cx_call* call) {
              return library.cx_store_delete(job[1], "n", &existed, call);
            }),
            CX_OK);
  EXPECT_EQ(existed, 1);
  EXPECT_EQ(library.cx_store_delete(job[1], "n", &existed, nullptr), CX_OK);
  EXPECT_EQ(existed, 0);
  EXPECT_EQ(library.cx_barrier(job[0], "alone", 50, nullptr),
            CX_DEADLINE_EXCEEDED);
  EXPECT_EQ(library.cx_last_error_kind(), CX_ERROR_MEMBERS_MISSING);
  EXPECT_THAT(Ranks(), ElementsAre(1));
  job.Leave();
}

TEST_P(CapiRanksTest, ExchangeData) {
  Job job(2);
  job.Each([](int rank, cx_session session) {
    std::vector<double> sums = {1.0 + rank, 2};
    EXPECT_EQ(Call([&](cx_call* call) {
                return library.cx_all_reduce(session, sums.data(), 2,
                                             CX_FLOAT64, CX_SUM, call);
              }),
              CX_OK)
        << Message();
    EXPECT_THAT(sums, ElementsAre(3, 4));
    int64_t largest = rank;
    EXPECT_EQ(Call([&](cx_call* call) {
                return library.cx_all_reduce(session, &largest, 1, CX_INT64,
                                             CX_MAX, call);
              }),
              CX_OK);
    EXPECT_EQ(largest, 1);
    float value = static_cast<float>(rank) + 0.5f;
    EXPECT_EQ(Call([&](cx_call* call) {
                return library.cx_broadcast(session, &value, 1, CX_FLOAT32, 1,
                                            call);
              }),
              CX_OK);
    EXPECT_EQ(value, 1.5f);
    const int32_t mine[] = {rank, 10 * rank};
    std::vector<int32_t> all(4, -1);
    EXPECT_EQ(Call([&](cx_call* call) {
                return library.cx_all_gather(session, mine, 2, all.data(), 4,
                                             CX_INT32, call);
              }),
              CX_OK);
    EXPECT_THAT(all, ElementsAre(0, 0, 1, 10));
    // Ranks that begin different collectives get an error, and go on.
    EXPECT_EQ(library.cx_all_reduce(session, sums.data(), rank + 1, CX_FLOAT64,
                                    CX_SUM, nullptr),
              CX_INVALID_ARGUMENT);
    EXPECT_EQ(library.cx_all_reduce(session, sums.data(), 2, CX_FLOAT64, CX_SUM,
                                    nullptr),
              CX_OK);
  });
  job.Leave();
}

TEST_P(CapiRanksTest, DecideTogether) {
  Job job(2, "accumulation=3 commit_vote=true hook=bf16");
  job.Each([](int rank, cx_session session) {
    auto plan = Init<cx_plan_info>();
    ASSERT_EQ(library.cx_plan(session, &plan), CX_OK);
    EXPECT_EQ(plan.accumulation, 3);
    EXPECT_EQ(plan.flags, uint64_t{CX_PLAN_COMMIT_VOTE});
    EXPECT_STREQ(plan.hook, "bf16");
    EXPECT_THAT(plan.words, HasSubstr("commit_vote=true"));
    EXPECT_EQ(plan.version, 1);

    auto decision = Init<cx_decision>();
    const auto step = [&](int64_t number, const char* refuse) {
      ASSERT_EQ(Announce(session, number, 3), CX_OK) << Message();
      ASSERT_EQ(Call([&](cx_call* call) {
                  return library.cx_grant(session, nullptr, call);
                }),
                CX_OK);
      auto vote = Init<cx_vote>();
      vote.refuse = refuse != nullptr ? 1 : 0;
      vote.reason = refuse;
      decision = Init<cx_decision>();
      ASSERT_EQ(Call([&](cx_call* call) {
                  return library.cx_decide(session, "train", &vote, &decision,
                                           call);
                }),
                CX_OK)
          << Message();
    };
    step(0, nullptr);
    EXPECT_EQ(decision.commit, 1);
    EXPECT_EQ(decision.plan_changed, 0);
    EXPECT_EQ(decision.plan_version, 1);
    EXPECT_EQ(decision.accumulation, 3);
    EXPECT_STREQ(decision.hook, "bf16");
    EXPECT_STREQ(decision.stop, "");
    step(1, rank == 1 ? "the loss is NaN" : nullptr);
    EXPECT_EQ(decision.commit, 0);
    EXPECT_THAT(decision.reason,
                AllOf(HasSubstr("rank 1"), HasSubstr("the loss is NaN")));
    if (rank == 0) {
      EXPECT_EQ(library.cx_request(session, CX_REQUEST_CHECKPOINT, "because"),
                CX_OK);
      EXPECT_EQ(library.cx_request(session, CX_REQUEST_STOP, "enough"), CX_OK);
    }
    step(2, nullptr);
    EXPECT_THAT(decision.stop, HasSubstr("enough"));
    EXPECT_THAT(decision.checkpoint, HasSubstr("because"));
  });
  job.Leave();
}

TEST(CapiScheduleTest, ARankThatCountsDifferentlyIsNamed) {
  Job job(2, "accumulation=4");
  job.Each([](int rank, cx_session session) {
    cx_decision decision;
    ASSERT_EQ(Announce(session, 0, 4), CX_OK);
    ASSERT_EQ(Decide(session, &decision), CX_OK);
    EXPECT_EQ(Announce(session, 1, rank == 1 ? 3 : 4), CX_OK);
    EXPECT_EQ(Decide(session, &decision), CX_ABORTED);
    EXPECT_EQ(library.cx_last_error_kind(), CX_ERROR_RANKS_DIFFER);
    EXPECT_THAT(Message(), AllOf(HasSubstr("step 1"), HasSubstr("3 on rank 1"),
                                 HasSubstr("4 on rank 0")));
    EXPECT_THAT(Ranks(), ElementsAre(1));
    // A buffer of size 0 gets no rank, but the call returns the number.
    int32_t none = -5;
    EXPECT_EQ(library.cx_last_error_ranks(&none, 0), 1u);
    EXPECT_EQ(none, -5);
    EXPECT_EQ(library.cx_status(session), CX_ABORTED);
    // It stays until the next error.
    auto info = Init<cx_session_info>();
    EXPECT_EQ(library.cx_info(session, &info), CX_OK);
    EXPECT_EQ(library.cx_last_error_code(), CX_ABORTED);
  });
}

TEST(CapiScheduleTest, APlanThatIsSetFromOutsideComesWithADecision) {
  Job job(2, "accumulation=3");
  Child set({kCoxswain, "plan", "set", job.name(), "accumulation=5",
             "--coordinator", StartedCoordinator::address()});
  ASSERT_EQ(set.Wait(), 0);
  job.Each([](int, cx_session session) {
    cx_decision decision = Init<cx_decision>();
    int64_t step = 0;
    for (; step < 100 && decision.plan_changed == 0; ++step) {
      ASSERT_EQ(Announce(session, step, 3), CX_OK) << Message();
      ASSERT_EQ(Decide(session, &decision), CX_OK) << Message();
    }
    EXPECT_EQ(decision.plan_version, 2);
    EXPECT_EQ(decision.accumulation, 5);
    auto plan = Init<cx_plan_info>();
    ASSERT_EQ(library.cx_plan(session, &plan), CX_OK);
    EXPECT_EQ(plan.version, 2);
    EXPECT_EQ(plan.accumulation, 5);
    // The end of the data cuts a window of it short.
    auto ticket = Init<cx_ticket>();
    ticket.flags = CX_TICKET_END_OF_DATA;
    ticket.step = step;
    ticket.micro_batches = 2;
    ASSERT_EQ(library.cx_announce(session, &ticket), CX_OK) << Message();
    ASSERT_EQ(Decide(session, &decision), CX_OK) << Message();
    EXPECT_EQ(decision.commit, 1);
    EXPECT_EQ(decision.plan_changed, 0);
    auto event = Init<cx_event>();
    do {
      ASSERT_EQ(library.cx_next_event(session, 10000, &event, nullptr), CX_OK);
    } while (event.kind != CX_EVENT_PLAN_CHANGED);
    EXPECT_THAT(event.text, HasSubstr("accumulation=5"));
  });
  job.Leave();
}

TEST(CapiScheduleTest, ADecisionHasTheHookOfThePlan) {
  const Job job(1, "hook=powersgd(rank=2) compression_start=7");
  auto plan = Init<cx_plan_info>();
  ASSERT_EQ(library.cx_plan(job[0], &plan), CX_OK) << Message();
  EXPECT_STREQ(plan.hook, "powersgd(rank=2,start_step=7)");
  cx_decision decision;
  ASSERT_EQ(Announce(job[0], 0, 1), CX_OK) << Message();
  ASSERT_EQ(Decide(job[0], &decision), CX_OK) << Message();
  EXPECT_STREQ(decision.hook, plan.hook);
}

TEST(CapiScheduleTest, OtherParametersAreAnotherLayout) {
  Job job(2);
  job.Each([](int rank, cx_session session) {
    const int64_t shape[] = {4, 8};
    const cx_parameter parameters[] = {
        {"weight", shape, 2, CX_FLOAT32},
        {"bias", shape, 1, rank == 0 ? CX_FLOAT32 : CX_FLOAT64}};
    cx_decision decision;
    ASSERT_EQ(library.cx_configure(session, parameters, 1), CX_OK);
    ASSERT_EQ(Announce(session, 0, 1), CX_OK);
    ASSERT_EQ(Decide(session, &decision), CX_OK) << Message();
    ASSERT_EQ(library.cx_configure(session, parameters, 2), CX_OK);
    EXPECT_EQ(Announce(session, 1, 1), CX_OK);
    EXPECT_EQ(Decide(session, &decision), CX_ABORTED);
    EXPECT_THAT(Message(), HasSubstr("layout of the buckets"));
  });
}

TEST(CapiScheduleTest, OtherReplicatedParametersAreNamed) {
  Job job(2);
  job.Each([](int rank, cx_session session) {
    cx_decision decision;
    for (int64_t step = 0; step < 2; ++step) {
      auto ticket = Init<cx_ticket>();
      ticket.step = step;
      ticket.micro_batches = 1;
      ticket.flags = CX_TICKET_REPLICATED_CHECKSUM;
      ticket.replicated_checksum = 7;
      if (step == 1) ticket.replicated_checksum += static_cast<uint64_t>(rank);
      // Of another data index's nobody asks.
      ticket.pipeline = static_cast<uint64_t>(rank);
      EXPECT_EQ(library.cx_announce(session, &ticket), CX_OK) << Message();
      EXPECT_EQ(Decide(session, &decision), step == 0 ? CX_OK : CX_ABORTED)
          << Message();
    }
    EXPECT_THAT(Message(), HasSubstr("checksum of the replicated parameters"));
  });
}

TEST(CapiScheduleTest, AStrictGrantWaitsForAllRanks) {
  Job job(2, "enforcement=strict");
  auto plan = Init<cx_plan_info>();
  ASSERT_EQ(library.cx_plan(job[0], &plan), CX_OK);
  EXPECT_EQ(plan.flags, uint64_t{CX_PLAN_STRICT});
  ASSERT_EQ(Announce(job[0], 0, 1), CX_OK);
  cx_call call = 0;
  EXPECT_EQ(library.cx_grant(job[0], nullptr, &call), CX_AGAIN);
  ASSERT_EQ(Announce(job[1], 0, 1), CX_OK);
  EXPECT_EQ(library.cx_grant(job[1], nullptr, nullptr), CX_OK) << Message();
  cx_code code = CX_AGAIN;
  while (code == CX_AGAIN) code = library.cx_wait(&call);
  EXPECT_EQ(code, CX_OK) << Message();
  job.Each([](int, cx_session session) {
    cx_decision decision;
    EXPECT_EQ(Decide(session, &decision), CX_OK) << Message();
  });
  job.Leave();
}

TEST(CapiScheduleTest, ACancelledDecisionEndsItsStream) {
  Job job(2, "commit_vote=true");
  ASSERT_EQ(Announce(job[0], 0, 1), CX_OK);
  ASSERT_EQ(Announce(job[1], 0, 1), CX_OK);
  auto decision = Init<cx_decision>();
  cx_call call = 0;
  EXPECT_EQ(library.cx_decide(job[0], nullptr, nullptr, &decision, &call),
            CX_AGAIN);
  EXPECT_EQ(library.cx_cancel(&call), CX_OK);
  EXPECT_EQ(Decide(job[0], &decision), CX_FAILED_PRECONDITION);
  EXPECT_EQ(library.cx_leave(job[0], "interrupted", 1, nullptr), CX_OK);
  EXPECT_EQ(Decide(job[1], &decision), CX_ABORTED);
  EXPECT_EQ(library.cx_last_error_kind(), CX_ERROR_MEMBER_LOST);
  EXPECT_THAT(Ranks(), ElementsAre(0));
  EXPECT_THAT(Message(), HasSubstr("interrupted"));
}

TEST(CapiRejoinTest, ThatIsCancelledEndsTheMembership) {
  Job job(2);
  cx_call call = 0;
  cx_session next = 7;
  // The other one goes on, and is waited for.
  EXPECT_EQ(library.cx_rejoin(job[0], &next, &call), CX_AGAIN);
  EXPECT_EQ(library.cx_cancel(&call), CX_OK);
  EXPECT_EQ(library.cx_rejoin(job[0], &next, nullptr), CX_CANCELLED);
  EXPECT_EQ(next, 0u);
}

TEST(CapiCollectiveTest, ThatIsCancelledLeavesTheMemoryAlone) {
  Job job(2);
  job.Each([](int, cx_session session) {
    float once = 1;
    EXPECT_EQ(
        library.cx_all_reduce(session, &once, 1, CX_FLOAT32, CX_SUM, nullptr),
        CX_OK);
  });
  constexpr int kCount = 1 << 16;
  constexpr size_t kBytes = kCount * sizeof(float);
  void* const data = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(data, MAP_FAILED);
  cx_call call = 0;
  EXPECT_EQ(
      library.cx_all_reduce(job[0], data, kCount, CX_FLOAT32, CX_SUM, &call),
      CX_AGAIN);
  EXPECT_EQ(library.cx_cancel(&call), CX_OK);
  // Any access to it from here on ends the process.
  ASSERT_EQ(mprotect(data, kBytes, PROT_NONE), 0);
  float more = 1;
  EXPECT_EQ(
      library.cx_all_reduce(job[0], &more, 1, CX_FLOAT32, CX_SUM, nullptr),
      CX_ABORTED);
  EXPECT_EQ(library.cx_leave(job[0], "interrupted", 1, nullptr), CX_OK);
  EXPECT_NE(
      library.cx_all_reduce(job[1], &more, 1, CX_FLOAT32, CX_SUM, nullptr),
      CX_OK);
  EXPECT_EQ(munmap(data, kBytes), 0);
}

TEST(CapiCollectiveTest, GoesOnWithoutACoordinator) {
  std::string address;
  std::unique_ptr<Child> coordinator = StartedCoordinator::Start(&address);
  std::vector<cx_session> sessions(2);
  const auto add_up = [&](int slot) {
    float data = 1;
    EXPECT_EQ(library.cx_all_reduce(sessions[static_cast<size_t>(slot)], &data,
                                    1, CX_FLOAT32, CX_SUM, nullptr),
              CX_OK)
        << Message();
    EXPECT_EQ(data, 2.0f);
  };
  Together(2, [&](int slot) {
    auto options = OptionsOf("left-alone", slot, 2);
    options.coordinator = address.c_str();
    ASSERT_EQ(library.cx_join(&options, &sessions[static_cast<size_t>(slot)],
                              nullptr),
              CX_OK)
        << Message();
    add_up(slot);
  });
  coordinator.reset();
  Together(2, add_up);
  Together(2, [&](int slot) {
    EXPECT_EQ(library.cx_close(sessions[static_cast<size_t>(slot)]), CX_OK);
  });
}

TEST(CapiCloseTest, EndsCallsThatWaitAndNotifiesTheOthers) {
  Job job(2, "commit_vote=true");
  auto decision = Init<cx_decision>();
  ASSERT_EQ(Announce(job[0], 0, 1), CX_OK);
  ASSERT_EQ(Announce(job[1], 0, 1), CX_OK);
  cx_call call = 0;
  EXPECT_EQ(library.cx_decide(job[0], nullptr, nullptr, &decision, &call),
            CX_AGAIN);
  EXPECT_EQ(library.cx_close(job[0]), CX_OK);
  cx_code code = CX_AGAIN;
  while (code == CX_AGAIN) code = library.cx_wait(&call);
  EXPECT_EQ(code, CX_CANCELLED) << Message();
  EXPECT_EQ(library.cx_close(job[0]), CX_INVALID_ARGUMENT);
  EXPECT_EQ(Decide(job[1], &decision), CX_ABORTED);
  EXPECT_THAT(Message(), HasSubstr("closed without cx_leave"));
  auto event = Init<cx_event>();
  do {
    ASSERT_EQ(library.cx_next_event(job[1], 10000, &event, nullptr), CX_OK);
  } while (event.kind != CX_EVENT_GENERATION_ENDED);
  EXPECT_EQ(event.rank, 0);
  EXPECT_EQ(library.cx_next_event(job[1], 10000, &event, nullptr),
            CX_OUT_OF_RANGE);
}

// Run by the test after it, as two processes.
TEST(CapiProcessTest, DISABLED_TheLastRankDies) {
  cx_session session = 0;
  ASSERT_EQ(library.cx_join(nullptr, &session, nullptr), CX_OK) << Message();
  auto info = Init<cx_session_info>();
  ASSERT_EQ(library.cx_info(session, &info), CX_OK);
  float data = 1;
  ASSERT_EQ(
      library.cx_all_reduce(session, &data, 1, CX_FLOAT32, CX_SUM, nullptr),
      CX_OK);
  if (info.rank == 1) raise(SIGKILL);
  const cx_code code =
      library.cx_all_reduce(session, &data, 1, CX_FLOAT32, CX_SUM, nullptr);
  std::printf("survivor: %d %d rank %d: %s\n", code,
              library.cx_last_error_kind(), Ranks().empty() ? -1 : Ranks()[0],
              library.cx_last_error_message());
  std::fflush(stdout);
}

// Run by the test after it: exits while threads of the library still work for a
// join that was cancelled, and for one that was not.
TEST(CapiProcessTest, DISABLED_ExitsWhileItJoins) {
  const std::string job = "exits-" + std::to_string(getpid());
  cx_session sessions[2] = {};
  cx_call calls[2] = {};
  for (int slot = 0; slot < 2; ++slot) {
    const auto options = OptionsOf(job.c_str(), slot, 3);
    ASSERT_EQ(library.cx_join(&options, &sessions[slot], &calls[slot]),
              CX_AGAIN)
        << Message();
  }
  ASSERT_EQ(library.cx_cancel(&calls[0]), CX_OK);
}

TEST(CapiProcessTest, AnExitDoesNotCrashWhileAJoinEnds) {
  for (int i = 0; i < 20; ++i) {
    Child program({"/usr/bin/env",
                   "COXSWAIN_COORDINATOR=" + StartedCoordinator::address(),
                   program_invocation_name,
                   "--gtest_filter=*DISABLED_ExitsWhileItJoins",
                   "--gtest_also_run_disabled_tests"});
    EXPECT_THAT(program.LineWith("PASSED"), HasSubstr("1 test"));
    EXPECT_EQ(program.Wait(), 0) << i;
  }
}

TEST(CapiProcessTest, AKilledPeerIsNamed) {
  Child ranks({kCoxswain, "run", "--nproc", "2", "--no-prefix", "--",
               program_invocation_name,
               "--gtest_filter=*DISABLED_TheLastRankDies",
               "--gtest_also_run_disabled_tests"});
  const std::string line = ranks.LineWith("survivor:");
  EXPECT_THAT(line, HasSubstr("survivor: 10 2 rank 1: "));
  EXPECT_THAT(line, HasSubstr("killed by signal 9"));
  EXPECT_NE(ranks.Wait(), 0);
}

}  // namespace
}  // namespace coxswain::capi_test
