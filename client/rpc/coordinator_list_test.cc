// The stubs beside the coordinator's own, given several of which one leads.
#include <atomic>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/rpc/journal_stub.h"
#include "client/rpc/parameter_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/journal.grpc.pb.h"

namespace coxswain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kNone[] = "127.0.0.1:1";

class JournalService : public v1::Journal::Service {
 public:
  grpc::Status Read(grpc::ServerContext*, const v1::JournalRequest*,
                    v1::JournalPage* page) override {
    if (stopping) return {grpc::StatusCode::UNAVAILABLE, "shutting down"};
    page->set_term(7);
    return grpc::Status::OK;
  }
  grpc::Status Follow(grpc::ServerContext*, const v1::JournalRequest*,
                      grpc::ServerWriter<v1::JournalPage>* writer) override {
    v1::JournalPage page;
    page.set_term(7);
    writer->Write(page);
    return grpc::Status::OK;
  }

  std::atomic<bool> stopping{false};
};

class CoordinatorListTest : public ::testing::Test {
 protected:
  CoordinatorListTest() {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(&journal_);
    server_ = builder.BuildAndStart();
    leader_ = absl::StrCat("127.0.0.1:", port);
    list_ = absl::StrCat(kNone, ",", leader_);
  }

  JournalService journal_;
  std::unique_ptr<grpc::Server> server_;
  std::string leader_;
  std::string list_;  // in which the leader comes last
};

TEST_F(CoordinatorListTest, AJournalIsReadWhereACoordinatorIs) {
  const auto stub = ConnectJournal(list_);
  EXPECT_EQ(stub->address(), list_);
  ASSERT_OK_AND_ASSIGN(const auto page, stub->Read({}, {}));
  EXPECT_EQ(page.term(), 7);
  // And followed there.
  const auto stream = stub->Follow({}, {});
  v1::JournalPage followed;
  EXPECT_TRUE(stream->Read(&followed));
  EXPECT_EQ(followed.term(), 7);
  EXPECT_FALSE(stream->Read(&followed));
  EXPECT_OK(stream->Finish());
}

// Not the error of one that does not lead.
TEST_F(CoordinatorListTest, AJournalsOwnUnavailableIsReturned) {
  journal_.stopping = true;
  const auto stub = ConnectJournal(absl::StrCat(leader_, ",", kNone));
  EXPECT_THAT(stub->Read({}, {}), StatusIs(absl::StatusCode::kUnavailable,
                                           HasSubstr("shutting down")));
  journal_.stopping = false;
  EXPECT_OK(stub->Read({}, {}));
}

TEST_F(CoordinatorListTest, ParametersComeFromTheOneThatIsThere) {
  ASSERT_OK_AND_ASSIGN(
      const auto stub,
      ConnectParameterStub(list_, {}, absl::Seconds(20), nullptr));
  EXPECT_EQ(stub->address(), leader_);
}

TEST_F(CoordinatorListTest,
       WithoutACoordinatorTheParametersErrorNamesTheAddresses) {
  EXPECT_THAT(ConnectParameterStub(absl::StrCat(kNone, ",127.0.0.1:2"), {},
                                   absl::Milliseconds(300), nullptr),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("connecting to the parameter service at "
                                       "127.0.0.1:1,127.0.0.1:2"),
                             HasSubstr("within 300ms"))));
}

TEST_F(CoordinatorListTest, ARaisedSignalEndsTheWaitForAConnection) {
  CancelSignal cancel;
  cancel.Raise(absl::AbortedError("the generation is over"));
  EXPECT_THAT(
      ConnectParameterStub(kNone, {}, absl::Hours(1), &cancel),
      StatusIs(absl::StatusCode::kAborted, HasSubstr("generation is over")));
}

}  // namespace
}  // namespace coxswain
