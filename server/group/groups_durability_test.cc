// What the groups keep across a crash of the coordinator, and when they speak
// of it: new ones on the records that the old ones have left.
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fake_clock.h"
#include "base/mesh.h"
#include "base/status_matchers.h"
#include "proto/state.pb.h"
#include "server/group/group_records.h"
#include "server/group/groups.h"
#include "server/state/direct_writer.h"
#include "server/state/group_commit.h"
#include "server/state/quarantine.h"
#include "server/state/state_writer.h"
#include "tests/conformance/scripted_state_store.h"

namespace coxswain::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kTable[] = "group/1";
constexpr int kWorld = 4;

Fence FenceOf(int rank, uint64_t request = 0, int64_t generation = 1) {
  Fence fence;
  fence.job = "job";
  fence.generation = Generation(generation);
  fence.incarnation = Incarnation(100 + rank);
  fence.request_id = request;
  return fence;
}
Caller CallerOf(int rank, int world = kWorld) {
  return {{"node", rank}, rank, world};
}

GenerationResumed Running(int64_t generation, std::vector<int> left = {}) {
  GenerationResumed resumed;
  resumed.begin.job = "job";
  resumed.begin.generation = Generation(generation);
  resumed.begin.world_size = kWorld;
  resumed.left = std::move(left);
  return resumed;
}

// A coordinator's groups on records that outlive it.
template <typename Writer>
class Coordinator {
 public:
  explicit Coordinator(StateStore* state, const GroupLimits& limits = {})
      : writer(state), groups(limits, &clock, &writer) {}

  // The answer of a call; "" until there is one.
  std::string Declare(int rank, const std::string& name,
                      const std::vector<int>& ranks) {
    std::string outcome;
    groups.CreateGroup(FenceOf(rank), CallerOf(rank), name, ranks,
                       [&](const absl::StatusOr<GroupInfo>& group) {
                         outcome = group.ok() ? group->communicator_id
                                              : Code(group.status());
                       });
    return outcome;
  }
  std::string DeclareMesh(
      int rank, const std::string& name, const std::vector<MeshAxis>& axes,
      const std::vector<std::vector<std::string>>& joined = {}) {
    std::string outcome;
    groups.CreateMesh(
        FenceOf(rank), CallerOf(rank), name, {axes, joined},
        [&](const absl::StatusOr<std::vector<GroupInfo>>& groups) {
          outcome = groups.ok() ? "" : Code(groups.status());
          if (!groups.ok()) return;
          for (const GroupInfo& group : *groups) {
            absl::StrAppend(&outcome, group.name, " ");
          }
        });
    return outcome;
  }
  void Come(int rank, uint64_t request, std::string* outcome,
            const std::string& group = "", const std::string& tag = "tag") {
    groups.Barrier(FenceOf(rank, request), CallerOf(rank), group, tag,
                   absl::Seconds(60), [outcome](const BarrierAnswer& answer) {
                     *outcome = answer.status.ok() ? "ok" : Code(answer.status);
                   });
  }
  // All ranks come with this request id. Returns their answers.
  std::vector<std::string> AllCome(uint64_t request) {
    std::vector<std::string> outcomes(kWorld);
    for (int rank = 0; rank < kWorld; ++rank)
      Come(rank, request, &outcomes[rank]);
    return outcomes;
  }
  static std::string Code(const absl::Status& status) {
    return absl::StatusCodeToString(status.code());
  }

  FakeClock clock;
  Writer writer;
  Groups groups;
};

// Each operation is one commit; callers ask again, those without an answer
// and the others.
// What EncodeMesh would make of axes that no mesh has.
std::string AxesRecord(const std::vector<MeshAxis>& axes) {
  state::v1::Mesh mesh;
  for (const MeshAxis& axis : axes) {
    mesh.add_axes()->set_name(axis.name);
    mesh.mutable_axes()->rbegin()->set_size(axis.size);
  }
  return mesh.SerializeAsString();
}

TEST(GroupsDurabilityTest, ACrashBetweenAnyTwoOperationsLosesNothing) {
  const auto run = [](Coordinator<DirectWriter>* c) {
    std::vector<std::string> outcomes;
    outcomes.push_back(c->Declare(1, "odd", {3, 1}));
    outcomes.push_back(
        c->DeclareMesh(2, "m", {{"dp", 2}, {"tp", 2}}, {{"dp", "tp"}}));
    outcomes.push_back(c->AllCome(1).front());
    outcomes.push_back(c->Declare(0, "even", {0, 2}));
    outcomes.push_back(c->AllCome(2).back());
    return outcomes;
  };
  ScriptedStateStore untouched;
  Coordinator<DirectWriter> reference(&untouched);
  const std::vector<std::string> expected = run(&reference);
  EXPECT_THAT(expected, ElementsAre("job/1/odd", "m/dp/0 m/tp/1 m/dp+tp/0 ",
                                    "ok", "job/1/even", "ok"));
  for (int crash = 0; crash <= static_cast<int>(expected.size()); ++crash) {
    SCOPED_TRACE(crash);
    ScriptedStateStore state;
    {
      Coordinator<DirectWriter> first(&state);
      state.CrashAfter(crash);
      const std::vector<std::string> outcomes = run(&first);
      for (int i = 0; i < static_cast<int>(outcomes.size()); ++i) {
        EXPECT_EQ(outcomes[i], i < crash ? expected[i] : "UNAVAILABLE") << i;
      }
    }
    state.CrashAfter(-1);
    for (int restart = 0; restart < 2; ++restart) {
      Coordinator<DirectWriter> later(&state);
      ASSERT_OK(later.groups.OnResume({Running(1)}));
      EXPECT_EQ(run(&later), expected);
      EXPECT_EQ(later.Declare(1, "odd", {1, 3}), "FAILED_PRECONDITION");
      EXPECT_EQ(later.DeclareMesh(1, "m", {{"dp", 4}}), "FAILED_PRECONDITION");
      EXPECT_EQ(later.Declare(1, "m/dp/1", {1, 3}), "job/1/m/dp/1");
    }
  }
}

TEST(GroupsDurabilityTest, EachRestartAddsToWhatTheOneBeforeHasLeft) {
  ScriptedStateStore state;
  for (uint64_t request = 1; request <= 3; ++request) {
    Coordinator<DirectWriter> next(&state);
    ASSERT_OK(next.groups.OnResume({Running(1)}));
    for (uint64_t before = 1; before < request; ++before) {
      std::string outcome;
      next.Come(2, before, &outcome);
      EXPECT_EQ(outcome, "ok");
    }
    EXPECT_THAT(next.AllCome(request), testing::Each("ok"));
  }
}

// The others have their answers, and will not come again.
TEST(GroupsDurabilityTest, ARankWhoseAnswerWasLostGetsItFromTheNextOne) {
  ScriptedStateStore state;
  {
    Coordinator<DirectWriter> first(&state);
    EXPECT_THAT(first.AllCome(5), testing::Each("ok"));
  }
  Coordinator<DirectWriter> second(&state);
  ASSERT_OK(second.groups.OnResume({Running(1, {3})}));
  std::string outcome;
  second.Come(2, 5, &outcome);
  EXPECT_EQ(outcome, "ok");
  std::string later;
  second.Come(2, 6, &later);
  EXPECT_EQ(later, "FAILED_PRECONDITION") << "rank 3 has left";
}

TEST(GroupsDurabilityTest, AWaitingCallerCallsAgain) {
  ScriptedStateStore state;
  std::vector<std::string> lost(kWorld);
  {
    Coordinator<DirectWriter> first(&state);
    for (int rank = 0; rank < 3; ++rank) first.Come(rank, 5, &lost[rank]);
  }
  Coordinator<DirectWriter> second(&state);
  ASSERT_OK(second.groups.OnResume({Running(1)}));
  EXPECT_THAT(second.AllCome(5), testing::Each("ok"));
}

TEST(GroupsDurabilityTest, ACompletionIsAnsweredAfterItsCommit) {
  ScriptedStateStore state;
  Coordinator<GroupCommit> coordinator(&state);
  state.Hold();
  const std::vector<std::string>& outcomes = coordinator.AllCome(0);
  EXPECT_THAT(outcomes, testing::Each(""));
  std::vector<std::string> received(kWorld + 1);
  for (int rank = 0; rank < kWorld; ++rank) {
    coordinator.Come(rank, 5, &received[rank], "", "other");
  }
  // A repeat is answered with the others.
  coordinator.Come(1, 5, &received[kWorld], "", "other");
  EXPECT_THAT(received, testing::Each(""));
  state.Release();
  WaitUntilWritten(&coordinator.writer);
  EXPECT_THAT(received, testing::Each("ok"));
}

TEST(GroupsDurabilityTest, ABarrierIsOneCommit) {
  ScriptedStateStore state;
  Coordinator<DirectWriter> coordinator(&state);
  for (int i = 1; i <= 10; ++i) {
    EXPECT_THAT(coordinator.AllCome(i), testing::Each("ok"));
  }
  EXPECT_EQ(state.applies(), 10u);
}

TEST(GroupsDurabilityTest, ACompletionThatCannotBeWrittenIsTriedAgain) {
  ScriptedStateStore state;
  Coordinator<DirectWriter> coordinator(&state);
  state.CrashAfter(0);
  EXPECT_THAT(coordinator.AllCome(5), testing::Each("UNAVAILABLE"));
  state.CrashAfter(-1);
  std::vector<std::string> outcomes(kWorld);
  for (int rank = 0; rank < kWorld; ++rank) {
    coordinator.Come(rank, 5, &outcomes[rank]);
    EXPECT_EQ(outcomes[0], rank + 1 < kWorld ? "" : "ok");
  }
  EXPECT_THAT(outcomes, testing::Each("ok"));
}

TEST(GroupsDurabilityTest, RememberedCompletionsAreBoundedOnDiskAsWell) {
  constexpr int kRanks = 4096;
  ScriptedStateStore state;
  int answered = 0;
  const auto all_come = [&](Groups* groups, uint64_t request) {
    for (int rank = 0; rank < kRanks; ++rank) {
      groups->Barrier(FenceOf(rank, request), CallerOf(rank, kRanks), "", "tag",
                      absl::Seconds(60), [&](const BarrierAnswer& answer) {
                        answered += answer.status.ok() ? 1 : 0;
                      });
    }
  };
  {
    Coordinator<DirectWriter> first(&state);
    for (int request = 1; request <= 20; ++request) {
      all_come(&first.groups, request);
    }
    EXPECT_EQ(answered, 20 * kRanks);
    // 4 completions of 4,096 ranks, and one that goes with the next.
    EXPECT_LE(state.List(kTable)->size(), 5u);
  }
  Coordinator<DirectWriter> second(&state);
  ASSERT_OK(second.groups.OnResume({Running(1)}));
  answered = 0;
  for (int request = 17; request <= 20; ++request) {
    all_come(&second.groups, request);
  }
  EXPECT_EQ(answered, 4 * kRanks);
}

TEST(GroupsDurabilityTest, OneDeclarationIsCommittedForAllItsCallers) {
  constexpr int kRanks = 1000;
  ScriptedStateStore state;
  Coordinator<GroupCommit> coordinator(&state);
  std::atomic<int> declared{0};
  std::atomic<int> refused{0};
  const auto declare = [&](int rank, const std::vector<MeshAxis>& axes) {
    coordinator.groups.CreateMesh(
        FenceOf(rank), CallerOf(rank, kRanks), "m", {axes, {}},
        [&](const absl::StatusOr<std::vector<GroupInfo>>& groups) {
          if (groups.ok()) ++declared;
          if (absl::IsFailedPrecondition(groups.status())) ++refused;
        });
  };
  state.Hold();
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank != 500) declare(rank, {{"dp", 100}, {"tp", 10}});
  }
  declare(500, {{"dp", 10}, {"tp", 100}});
  EXPECT_EQ(declared, 0);
  state.Release();
  WaitUntilWritten(&coordinator.writer);
  EXPECT_EQ(declared, kRanks - 1);
  EXPECT_EQ(refused, 1);
  EXPECT_EQ(state.applies(), 1u);
}

TEST(GroupsDurabilityTest, DeclarationsThatWaitForOneAnotherAreBounded) {
  GroupLimits limits;
  limits.max_declarations = 2;
  ScriptedStateStore state;
  Coordinator<GroupCommit> coordinator(&state, limits);
  std::vector<std::string> outcomes(4);
  state.Hold();
  // The first is being written, and the others wait to see what it becomes.
  for (int rank = 0; rank < 4; ++rank) {
    coordinator.groups.CreateGroup(
        FenceOf(rank), CallerOf(rank), "g", {0, 1, 2, 3},
        [&outcomes, rank](const absl::StatusOr<GroupInfo>& group) {
          outcomes[rank] = group.ok() ? "ok" : group.status().ToString();
        });
  }
  state.Release();
  WaitUntilWritten(&coordinator.writer);
  EXPECT_EQ(outcomes[0], "ok");
  EXPECT_EQ(outcomes[1], "ok");
  EXPECT_EQ(outcomes[2], "ok");
  EXPECT_THAT(outcomes[3], testing::HasSubstr("RESOURCE_EXHAUSTED"));
  EXPECT_THAT(outcomes[3], testing::HasSubstr("max_declarations"));
}

TEST(GroupsDurabilityTest, ACallerMakesItsOwnDeclarationAfterOneFailed) {
  ScriptedStateStore state;
  Coordinator<GroupCommit> coordinator(&state);
  std::string first;
  std::string second;
  const auto declare = [&](int rank, const std::vector<int>& ranks,
                           std::string* outcome) {
    coordinator.groups.CreateGroup(
        FenceOf(rank), CallerOf(rank), "g", ranks,
        [outcome](const absl::StatusOr<GroupInfo>& group) {
          *outcome = group.ok()
                         ? "ok"
                         : absl::StatusCodeToString(group.status().code());
        });
  };
  state.Hold();
  state.Refuse("g");
  declare(0, {0, 1}, &first);
  ASSERT_TRUE(state.WaitForApplies(1));
  declare(2, {2, 3}, &second);
  state.Release();
  WaitUntilWritten(&coordinator.writer);
  EXPECT_EQ(first, "UNAVAILABLE");
  state.RefuseNothing();
  WaitUntilWritten(&coordinator.writer);
  // Its own commit failed as well, or was made after the disk was mended: it
  // never gets the answer that something else was declared.
  EXPECT_THAT(second, testing::AnyOf("UNAVAILABLE", "ok"));
}

TEST(GroupsDurabilityTest, WhatBelongsToNoRunningGenerationIsDropped) {
  ScriptedStateStore state;
  const auto declare = [](Groups* groups, int64_t generation) {
    groups->CreateGroup(
        FenceOf(0, 0, generation), CallerOf(0), "g", {0},
        [](const absl::StatusOr<GroupInfo>& group) { EXPECT_OK(group); });
  };
  {
    Coordinator<DirectWriter> first(&state);
    for (const int generation : {1, 2, 3}) declare(&first.groups, generation);
    first.groups.OnGenerationEnded("job", Generation(3),
                                   absl::AbortedError("x"));
  }
  EXPECT_THAT(*state.Tables("group/"), ElementsAre("group/1", "group/2"));
  Coordinator<DirectWriter> second(&state);
  ASSERT_OK(second.groups.OnResume({Running(2)}));
  EXPECT_THAT(*state.Tables("group/"), ElementsAre("group/2"));
  EXPECT_EQ(second.groups.scope_count(), 1u);
}

TEST(GroupsDurabilityTest, TheEndOfAGenerationLeavesNoRecordOfALateCommit) {
  ScriptedStateStore state;
  Coordinator<GroupCommit> coordinator(&state);
  state.Hold();
  std::vector<std::string> outcomes(kWorld);
  for (int rank = 0; rank < kWorld; ++rank) {
    coordinator.Come(rank, 5, &outcomes[rank]);
  }
  ASSERT_TRUE(state.WaitForApplies(1));
  coordinator.groups.OnGenerationEnded("job", Generation(1),
                                       absl::AbortedError("over"));
  EXPECT_THAT(outcomes, testing::Each("ABORTED"));
  state.Release();
  for (int i = 0; i < 3; ++i) WaitUntilWritten(&coordinator.writer);
  EXPECT_THAT(*state.Tables(""), testing::IsEmpty());
}

TEST(GroupsDurabilityTest, ACommitThatIsLateForTheEndIsDroppedAsWell) {
  ScriptedStateStore state;
  Coordinator<InterruptedWriter> coordinator(&state);
  coordinator.writer.Interrupt([&] {
    coordinator.groups.OnGenerationEnded("job", Generation(1),
                                         absl::AbortedError("over"));
  });
  EXPECT_EQ(coordinator.Declare(0, "g", {0}), "ABORTED");
  EXPECT_THAT(*state.Tables(""), testing::IsEmpty());
}

// And no other generation loses anything.
TEST(GroupsDurabilityTest, ARecordThatCannotBeReadGoesIntoQuarantine) {
  const std::vector<std::pair<std::string, std::string>> records = {
      {"b", "?"},
      {"b12345678", "?"},
      {"gname", "?"},
      {"mname", "?"},
      {"", "?"},
      {"x", "?"},
      // Numbers that no generation of this size has.
      {"gname", EncodeRanks({0, kWorld})},
      {"gname", EncodeRanks({-1})},
      {"gname", EncodeRanks({0, 0})},
      {"gname", std::string("\x0a\x05\x80\x80\x80\x80\x10", 7)},  // 2^32
      {"mname", AxesRecord({{"dp", 1 << 30}, {"tp", 1 << 30}})},
      {"mname", AxesRecord({{"dp", 0}})},
      {"mname", AxesRecord({{"dp", -1}, {"tp", -kWorld}})},
  };
  for (const auto& [key, value] : records) {
    SCOPED_TRACE(key);
    ScriptedStateStore state;
    ASSERT_OK(state.Put(kTable, key, value));
    ASSERT_OK(state.Put(kTable, "ggood", EncodeRanks({0})));
    ASSERT_OK(state.Put("group/2", "ggood", EncodeRanks({0})));
    Coordinator<DirectWriter> coordinator(&state);
    ASSERT_OK(coordinator.groups.OnResume({Running(1), Running(2)}));
    ASSERT_OK_AND_ASSIGN(const auto quarantined, ListQuarantined(state));
    ASSERT_EQ(quarantined.size(), 1u);
    EXPECT_EQ(quarantined[0].table, kTable);
    EXPECT_EQ(quarantined[0].key, key);
    EXPECT_EQ(state.List("quarantine")->at(0).second, value);
    // The membership ends the generation, whose records are of no use.
    EXPECT_EQ(state.List(kTable)->size(), 0u);
    EXPECT_EQ(coordinator.groups.scope_count(), 1u);
    EXPECT_EQ(state.List("group/2")->size(), 1u);
  }
}

}  // namespace
}  // namespace coxswain::server
