#include "tests/conformance/channel_conformance.h"

#include <limits>
#include <numeric>
#include <thread>

#include "client/comm/work.h"
#include "client/device/tensor.h"

namespace coxswain::channel_conformance {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr absl::Duration kLongest = absl::Minutes(2);
constexpr absl::Duration kShort = absl::Milliseconds(30);

Span SpanOf(std::vector<int32_t>* data) {
  return {data->data(), static_cast<int64_t>(data->size()), DType::kInt32, {}};
}

// Block `number`: of a size and with contents of its own.
std::vector<int32_t> Block(int number) {
  std::vector<int32_t> data(static_cast<size_t>(1 + number * 37 % 1000));
  std::iota(data.begin(), data.end(), number * 1000);
  return data;
}

absl::Status SendBlock(ChannelSender& sender, int number,
                       absl::Duration timeout = kLongest) {
  std::vector<int32_t> data = Block(number);
  return sender.Send(SpanOf(&data), timeout);
}

// Expects that it is the block that comes.
void ReceiveBlock(ChannelReceiver& receiver, int number) {
  std::vector<int32_t> data(Block(number).size());
  ASSERT_OK(receiver.Receive(SpanOf(&data), kLongest)) << "block " << number;
  ASSERT_EQ(data, Block(number)) << "block " << number;
}

absl::Status ReceiveAny(ChannelReceiver& receiver,
                        absl::Duration timeout = kLongest) {
  std::vector<int32_t> data(1);
  return receiver.Receive(SpanOf(&data), timeout);
}

TEST_P(ChannelConformance, BlocksArriveOnceInTheirOrder) {
  Open();
  constexpr int kBlocks = 500;
  std::thread sending([&] {
    for (int i = 0; i < kBlocks; ++i) ASSERT_OK(SendBlock(*sender_, i));
    EXPECT_OK(sender_->Drain(kMinutes));
  });
  for (int i = 0; i < kBlocks; ++i) ReceiveBlock(*receiver_, i);
  sending.join();
  EXPECT_THAT(ReceiveAny(*receiver_, kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("rank 0 did not send a block within 30ms")));
}

TEST_P(ChannelConformance, ASenderIsAheadByTheSlotsAtMost) {
  Open();
  const int64_t before = group_[0]->payload_bytes();
  int64_t bytes = 0;
  int sent = 0;
  for (; sent < kSlots; ++sent) {
    ASSERT_OK(SendBlock(*sender_, sent));
    bytes += static_cast<int64_t>(Block(sent).size() * sizeof(int32_t));
  }
  for (int received = 0; received < 20; ++received) {
    // Repeating it does no harm.
    for (int i = 0; i < 2; ++i) {
      ASSERT_THAT(SendBlock(*sender_, sent, kShort / 10),
                  StatusIs(absl::StatusCode::kDeadlineExceeded,
                           HasSubstr("rank 1 did not take a block")));
    }
    EXPECT_THAT(sender_->Drain(absl::ZeroDuration()),
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         HasSubstr("rank 1 did not take all blocks")));
    ReceiveBlock(*receiver_, received);
    ASSERT_OK(SendBlock(*sender_, sent));
    bytes += static_cast<int64_t>(Block(sent++).size() * sizeof(int32_t));
  }
  EXPECT_EQ(group_[0]->payload_bytes() - before, bytes);
}

TEST_P(ChannelConformance, WhoWaitsForABlockCounts) {
  const auto waits = std::make_shared<WaitCount>();
  for (const auto& comm : group_) comm->CountWaitsIn(waits);
  Open();
  EXPECT_THAT(ReceiveAny(*receiver_, kShort / 10),
              StatusIs(absl::StatusCode::kDeadlineExceeded, testing::_));
  EXPECT_EQ(waits->ended(), 0) << "what it waits for has not come";
  ASSERT_OK(SendBlock(*sender_, 0));
  EXPECT_EQ(waits->ended(), 1);
  ReceiveBlock(*receiver_, 0);
  EXPECT_EQ(waits->ended(), 2);
  EXPECT_OK(sender_->Drain(kLongest));
  EXPECT_EQ(waits->ended(), 3);
  EXPECT_FALSE(waits->any());
}

TEST_P(ChannelConformance, BothDirectionsAndOtherExchangesAreIndependent) {
  Open();
  ASSERT_OK_AND_ASSIGN(const auto back, group_[1]->OpenSender(Options(0)));
  ASSERT_OK_AND_ASSIGN(const auto returned,
                       group_[0]->OpenReceiver(Options(1)));
  // The first is full, and none of the rest waits for it.
  for (int i = 0; i < kSlots; ++i) ASSERT_OK(SendBlock(*sender_, i));
  std::vector<int32_t> message = {7};
  const WorkPtr sent = group_[0]->Send(SpanOf(&message), 1, 5);
  std::vector<int32_t> arrived = {0};
  const WorkPtr received = group_[1]->Receive(SpanOf(&arrived), 0, 5);
  for (int i = 0; i < 10; ++i) {
    ASSERT_OK(SendBlock(*back, 100 + i));
    ReceiveBlock(*returned, 100 + i);
  }
  EXPECT_OK(sent->Wait(kMinutes));
  EXPECT_OK(received->Wait(kMinutes));
  EXPECT_EQ(arrived, message);
  std::vector<int32_t> sums[] = {{1}, {2}};
  const WorkPtr first = group_[0]->AllReduce(SpanOf(&sums[0]));
  EXPECT_OK(group_[1]->AllReduce(SpanOf(&sums[1]))->Wait(kMinutes));
  EXPECT_OK(first->Wait(kMinutes));
  EXPECT_EQ(sums[0][0], 3);
  for (int i = 0; i < kSlots; ++i) ReceiveBlock(*receiver_, i);
}

TEST_P(ChannelConformance, SeveralChannelsOfEachRankOfAGroup) {
  group_.clear();
  group_ = GetParam().make_group(4, kMinutes);
  // Stages that pass blocks on, each with a channel to the next one.
  std::vector<std::thread> stages;
  for (int rank = 0; rank < 4; ++rank) {
    stages.emplace_back([&, rank] {
      Communicator& comm = *group_[static_cast<size_t>(rank)];
      std::unique_ptr<ChannelSender> out;
      std::unique_ptr<ChannelReceiver> in;
      if (rank < 3) {
        ASSERT_OK_AND_ASSIGN(out, comm.OpenSender(Options(rank + 1)));
      }
      if (rank > 0) {
        ASSERT_OK_AND_ASSIGN(in, comm.OpenReceiver(Options(rank - 1)));
      }
      for (int i = 0; i < 100; ++i) {
        if (in != nullptr) ReceiveBlock(*in, i);
        if (out != nullptr) {
          ASSERT_OK(SendBlock(*out, i));
        }
      }
      if (out != nullptr) {
        EXPECT_OK(out->Drain(kMinutes));
      }
    });
  }
  for (auto& stage : stages) stage.join();
}

TEST_P(ChannelConformance, ABlockIsComparedWithWhatIsToBeReceived) {
  Open();
  ASSERT_OK(SendBlock(*sender_, 4));
  std::vector<float> other(Block(4).size());
  const Span floats = {
      other.data(), static_cast<int64_t>(other.size()), DType::kFloat32, {}};
  EXPECT_THAT(receiver_->Receive(floats, kMinutes),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("rank 0 sends 149 x int32"),
                             HasSubstr("149 x float32 are to be received"))));
  EXPECT_THAT(ReceiveAny(*receiver_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("1 x int32 are to be received")));
  // It has stayed where it is.
  ReceiveBlock(*receiver_, 4);
}

TEST_P(ChannelConformance, BlocksThatFitNoSlotAreRefused) {
  Open();
  std::vector<int32_t> data(kSlotBytes / sizeof(int32_t) + 1);
  EXPECT_THAT(
      sender_->Send(SpanOf(&data), kMinutes),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1001 x int32")));
  Span span = SpanOf(&data);
  span.count = 0;
  EXPECT_THAT(sender_->Send(span, kMinutes),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("")));
  span.count = -1;
  EXPECT_THAT(sender_->Send(span, kMinutes),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("")));
  span.count = 1;
  span.device = GetParam().elsewhere;
  EXPECT_THAT(sender_->Send(span, kMinutes),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("")));
  EXPECT_THAT(receiver_->Receive(span, kMinutes),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("")));
  data.pop_back();
  EXPECT_OK(sender_->Send(SpanOf(&data), kMinutes));
}

TEST_P(ChannelConformance, EndsWithDifferentSlotsAreRefused) {
  ASSERT_OK_AND_ASSIGN(sender_, group_[0]->OpenSender(Options(1)));
  ChannelOptions options = Options(0);
  options.slots = kSlots + 1;
  ASSERT_OK_AND_ASSIGN(receiver_, group_[1]->OpenReceiver(options));
  EXPECT_THAT(SendBlock(*sender_, 0),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rank 1 has opened it with 4 slots of 4000 "
                                 "bytes, and rank 0 with 3 of 4000")));
  EXPECT_THAT(ReceiveAny(*receiver_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rank 0 has opened it with 3 slots")));
  const WorkPtr barrier = group_[0]->Barrier();
  EXPECT_OK(group_[1]->Barrier()->Wait(kMinutes));
  EXPECT_OK(barrier->Wait(kMinutes));
}

TEST_P(ChannelConformance, OptionsThatMakeNoSenseAreRefused) {
  const auto refused = [&](const ChannelOptions& options) {
    EXPECT_THAT(group_[0]->OpenSender(options),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("")));
    EXPECT_THAT(group_[0]->OpenReceiver(options),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("")));
  };
  refused(Options(0));
  refused(Options(2));
  refused(Options(-1));
  for (const int slots : {0, -1, kMaxChannelSlots + 1}) {
    ChannelOptions options = Options(1);
    options.slots = slots;
    refused(options);
  }
  for (const int64_t bytes :
       {int64_t{0}, int64_t{-1}, kMaxChannelBytes / kSlots + 1,
        std::numeric_limits<int64_t>::max()}) {
    ChannelOptions options = Options(1);
    options.slot_bytes = bytes;
    refused(options);
  }
}

TEST_P(ChannelConformance, ATagIsUsedOnceInADirection) {
  Open();
  EXPECT_THAT(group_[0]->OpenSender(Options(1)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("opened before; take another tag")));
  sender_.reset();
  EXPECT_THAT(group_[0]->OpenSender(Options(1)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("")));
  ChannelOptions options = Options(1);
  options.tag = 6;
  EXPECT_OK(group_[0]->OpenSender(options));
}

TEST_P(ChannelConformance, AnEndThatIsNotOpenedIsNamed) {
  ASSERT_OK_AND_ASSIGN(sender_, group_[0]->OpenSender(Options(1)));
  EXPECT_THAT(SendBlock(*sender_, 0, kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("rank 1 did not open it within 30ms")));
  ASSERT_OK_AND_ASSIGN(receiver_, group_[1]->OpenReceiver(Options(0)));
  EXPECT_OK(SendBlock(*sender_, 0));
  ReceiveBlock(*receiver_, 0);
}

TEST_P(ChannelConformance, WhatHasArrivedIsReceivedAfterTheSendersEnd) {
  Open();
  for (int i = 0; i < kSlots; ++i) ASSERT_OK(SendBlock(*sender_, i));
  sender_.reset();
  for (int i = 0; i < kSlots; ++i) ReceiveBlock(*receiver_, i);
  EXPECT_THAT(ReceiveAny(*receiver_),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("rank 0 has closed its end")));
}

TEST_P(ChannelConformance, AReceiverThatIsClosedEndsTheSender) {
  Open();
  for (int i = 0; i < kSlots; ++i) ASSERT_OK(SendBlock(*sender_, i));
  const auto closed = StatusIs(absl::StatusCode::kUnavailable,
                               HasSubstr("rank 1 has closed its end"));
  std::thread waiting(
      [&] { EXPECT_THAT(SendBlock(*sender_, kSlots), closed); });
  receiver_.reset();
  waiting.join();
  EXPECT_THAT(sender_->Drain(kMinutes), closed);
  // The communicator can still be used.
  ChannelOptions options = Options(1);
  options.tag = 6;
  ASSERT_OK_AND_ASSIGN(sender_, group_[0]->OpenSender(options));
  options.peer = 0;
  ASSERT_OK_AND_ASSIGN(receiver_, group_[1]->OpenReceiver(options));
  ASSERT_OK(SendBlock(*sender_, 1));
  ReceiveBlock(*receiver_, 1);
}

TEST_P(ChannelConformance, AnAbortEndsBothEnds) {
  Open();
  for (int i = 0; i < kSlots; ++i) ASSERT_OK(SendBlock(*sender_, i));
  ASSERT_OK_AND_ASSIGN(const auto other, group_[1]->OpenSender(Options(0)));
  std::thread sending([&] {
    EXPECT_THAT(SendBlock(*sender_, kSlots),
                StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
  });
  std::thread waiting([&] {
    EXPECT_THAT(SendBlock(*other, 0),
                StatusIs(absl::StatusCode::kUnavailable,
                         AllOf(HasSubstr("rank 0"), HasSubstr("enough"))));
  });
  group_[0]->Abort("enough");
  sending.join();
  waiting.join();
  EXPECT_THAT(group_[0]->OpenReceiver(Options(1)),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
}

}  // namespace
}  // namespace coxswain::channel_conformance
