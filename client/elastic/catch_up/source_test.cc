// A member's end, with a newcomer that only reads.

#include "client/elastic/catch_up/source.h"

#include <poll.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/no_threads_for_test.h"
#include "base/status_matchers.h"
#include "client/comm/tcp/tcp_socket.h"
#include "client/elastic/catch_up/frame.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::catch_up::source_test {
namespace {

constexpr int64_t kPieces = 32;

class SourceTest : public ::testing::Test {
 protected:
  SourceTest() : state_(kPieces * kPieceBytes, 'a') {
    auto listener = ListenTcp("127.0.0.1");
    EXPECT_OK(listener);
    listener_ = *std::move(listener);
    Source::Options options;
    options.world_size = 1;
    options.copies_beside_training = true;
    source_ = std::make_unique<Source>(options);
  }

  std::vector<Span> StateSpans() {
    return {{state_.data(), static_cast<int64_t>(state_.size()), DType::kUInt8,
             Device()}};
  }
  void EndStep(int64_t progress, bool begins) {
    Source::Step step;
    step.progress = progress;
    step.rest = "rest";
    step.state = [this] { return StateSpans(); };
    if (begins) {
      step.newcomers = {
          {absl::StrCat(listener_.address.host, ":", listener_.address.port),
           /*secret=*/3, /*incarnation=*/7}};
    }
    source_->EndStep(step);
  }
  void Accept() {
    std::vector<pollfd> entries = {{listener_.socket.get(), POLLIN, 0}};
    PollUntil(&entries, end_);
    auto accepted = AcceptTcp(listener_.socket);
    ASSERT_OK(accepted);
    ASSERT_TRUE(accepted->valid());
    member_ = *std::move(accepted);
  }
  // The next frame that it has sent.
  void Take(Header* header, std::string* payload) {
    char head[sizeof(Header)];
    ASSERT_OK(ReceiveAll(member_, head, sizeof(head), none_, end_));
    ASSERT_OK_AND_ASSIGN(*header, Decode({head, sizeof(head)}));
    payload->resize(static_cast<size_t>(header->bytes));
    ASSERT_OK(ReceiveAll(member_, payload->data(), header->bytes, none_, end_));
  }

  const absl::Time end_ = Clock::Real()->Now() + absl::Seconds(30);
  const WakeFd none_;
  std::string state_;
  TcpListener listener_;
  UniqueFd member_;
  std::unique_ptr<Source> source_;
};

TEST_F(SourceTest, TheStateMayChangeOnceTheNextStepsAveragesAreCopied) {
  EndStep(1, /*begins=*/true);
  EXPECT_TRUE(source_->active());
  source_->CopyAverages({});
  // What is copied last is the first to change.
  for (int64_t piece = kPieces - 1; piece >= 0; --piece) {
    std::memset(state_.data() + piece * kPieceBytes, 'b', kPieceBytes);
  }
  EndStep(2, /*begins=*/false);

  Accept();
  Header header;
  std::string payload;
  Take(&header, &payload);
  EXPECT_EQ(header.kind, Kind::kHello);
  Take(&header, &payload);
  EXPECT_EQ(header.kind, Kind::kStep);
  EXPECT_EQ(header.flags, kBegins);
  EXPECT_EQ(header.number, kPieces);
  EXPECT_EQ(header.progress, 1);
  EXPECT_EQ(payload, "rest");
  const std::string piece(kPieceBytes, 'a');
  for (int64_t number = 0; number < kPieces && !HasFailure(); ++number) {
    Take(&header, &payload);
    EXPECT_EQ(header.kind, Kind::kState);
    EXPECT_EQ(header.number, number);
    EXPECT_TRUE(payload == piece) << number;
  }
  Take(&header, &payload);
  EXPECT_EQ(header.kind, Kind::kStep);
  EXPECT_EQ(header.progress, 2);
  EXPECT_EQ(header.number, 0);
}

TEST_F(SourceTest, SendsAsManyPiecesAsMayBeAskedFor) {
  state_.resize(10);  // one piece
  Source::Options options;
  options.world_size = 1;
  options.max_queued_bytes = static_cast<int64_t>(kMaxAsked + 1) * kPieceBytes;
  source_ = std::make_unique<Source>(options);
  EndStep(1, /*begins=*/true);
  Accept();
  Header header;
  std::string payload;
  for (const Kind kind : {Kind::kHello, Kind::kStep, Kind::kState}) {
    Take(&header, &payload);
    ASSERT_EQ(header.kind, kind);
  }
  std::string asks;
  for (size_t left = kMaxAsked + 6; left > 0; --left) {
    Header again;
    again.kind = Kind::kAgain;
    again.flags = left > 1 ? kMore : 0;
    asks += Encode(again);
  }
  ASSERT_OK(SendAll(member_, asks, none_, end_));
  header.number = 0;
  for (int64_t step = 2; header.number == 0 && !HasFailure(); ++step) {
    ASSERT_LT(step, 50'000) << "what was asked for has not come";
    EndStep(step, /*begins=*/false);
    Take(&header, &payload);
    EXPECT_EQ(header.kind, Kind::kStep);
  }
  ASSERT_EQ(header.number, static_cast<int64_t>(kMaxAsked));
  for (size_t i = 0; i < kMaxAsked && !HasFailure(); ++i) {
    Take(&header, &payload);
    EXPECT_EQ(header.kind, Kind::kState);
    EXPECT_TRUE(payload == state_);
  }
}

TEST_F(SourceTest, ANewcomerForWhichThereIsNoThreadGetsNothing) {
  {
    const NoThreads none;
    EndStep(1, /*begins=*/true);
  }
  EXPECT_FALSE(source_->active());
  const std::vector<NewcomerReport> reports = source_->Reports();
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(reports[0].incarnation, 7U);
  EXPECT_TRUE(reports[0].settled);
}

// Its thread ends with it, before the state's memory does.
TEST_F(SourceTest, MayEndWhileItCopies) {
  EndStep(1, /*begins=*/true);
  source_.reset();
  std::string().swap(state_);
}

}  // namespace
}  // namespace coxswain::catch_up::source_test
