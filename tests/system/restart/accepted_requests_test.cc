// Whatever a coordinator accepts it can store, and whatever it has stored the
// next one can load. The seeds are kept; COXSWAIN_PROPERTY_SEEDS sets how many
// are played.
#include <unistd.h>

#include <cstdint>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "proto/journal.pb.h"
#include "proto/parameter.pb.h"
#include "tests/support/environment.h"
#include "tests/system/restart/play.h"

namespace coxswain {
namespace {

// Returns those that store something; a play sends all of them.
const std::set<std::string>& Storing() {
  static const auto* const names = new std::set<std::string>{
      "Join",        "Attach",      "Leave",      "ReportExit",
      "ProposePlan", "CreateGroup", "CreateMesh", "Barrier",
      "Set",         "Add",         "CompareSet", "DeleteKey",
      "Begin",       "Upload",      "Commit",     "Delete",
  };
  return *names;
}

// Returns those that change nothing, or only what is in memory.
const std::set<std::string>& Others() {
  static const auto* const names = new std::set<std::string>{
      "Members",  "Describe", "GetPlan", "RequestCheckpoint",
      "Why",      "Get",      "Wait",    "Watch",
      "List",     "Show",     "Verify",  "Download",
      "Exchange", "Read",     "Follow",  "CountKeys",
  };
  return *names;
}

TEST(AcceptedRequestsTest, EveryRpcIsKnownToStoreOrNot) {
  std::set<std::string> named = Storing();
  named.insert(Others().begin(), Others().end());
  std::set<std::string> served;
  for (const google::protobuf::Descriptor* message :
       {v1::JoinRequest::descriptor(), v1::GetPlanRequest::descriptor(),
        v1::CreateGroupRequest::descriptor(), v1::SetRequest::descriptor(),
        v1::BeginRequest::descriptor(), v1::ExchangeRequest::descriptor(),
        v1::JournalRequest::descriptor()}) {
    const google::protobuf::ServiceDescriptor* const service =
        message->file()->service(0);
    for (int i = 0; i < service->method_count(); ++i) {
      served.insert(service->method(i)->name());
    }
  }
  EXPECT_EQ(served, named);
}

TEST(AcceptedRequestsTest, WhatIsAcceptedIsStoredAndLoaded) {
  OutcomesOf all;
  const int64_t seeds = FromEnvironment("COXSWAIN_PROPERTY_SEEDS", 8);
  for (int64_t seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Play play(static_cast<uint64_t>(seed),
              absl::StrCat(testing::TempDir(), "/play-", getpid(), "-", seed));
    play.Run();
    for (const auto& [rpc, outcomes] : play.outcomes()) {
      all[rpc].accepted += outcomes.accepted;
      all[rpc].refused += outcomes.refused;
    }
    if (HasFailure()) break;
  }
  for (const std::string& rpc : Storing()) {
    EXPECT_GT(all[rpc].accepted, 0) << rpc;
    // Whatever a launcher reports is taken, and so is a shard of ours.
    if (rpc == "ReportExit" || rpc == "Upload") continue;
    EXPECT_GT(all[rpc].refused, 0) << rpc;
  }
}

}  // namespace
}  // namespace coxswain
