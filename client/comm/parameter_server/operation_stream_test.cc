#include "client/comm/parameter_server/operation_stream.h"

#include <memory>
#include <string>
#include <utility>

#include "base/crc32c.h"
#include "base/status_matchers.h"
#include "base/tensor_chunk.h"

namespace coxswain {
namespace {

// A stream that keeps what was sent, and receives what a test sends.
class FakeStub : public ParameterStub {
 public:
  struct Written {
    int messages = 0;
    int chunks = 0;
  };
  class Stream : public ExchangeStream {
   public:
    explicit Stream(FakeStub* stub) : stub_(stub) {}
    int64_t Write(const v1::ExchangeRequest&) override {
      return ++stub_->written.messages;
    }
    int64_t WriteChunk(int64_t, uint32_t, absl::string_view) override {
      return ++stub_->written.chunks;
    }
    void Cancel() override {}

   private:
    FakeStub* const stub_;
  };

  std::unique_ptr<ExchangeStream> Exchange(
      ExchangeCallbacks callbacks_in) override {
    callbacks = std::move(callbacks_in);
    return std::make_unique<Stream>(this);
  }
  std::string address() const override { return "nowhere"; }

  void Answer(uint64_t operation, const std::string& bytes) const {
    ExchangeEvent event;
    event.head.set_operation_id(operation);
    event.has_chunk = true;
    event.crc32c = Crc32c(bytes);
    event.pieces = {bytes};
    callbacks.on_event(event);
  }

  ExchangeCallbacks callbacks;
  Written written;
};

TEST(ExchangeTest, AbandonedMemoryIsLeftAlone) {
  const auto stub = std::make_shared<FakeStub>();
  OperationStream exchange(stub, std::make_shared<TransferBytes>(), nullptr);
  // It is not opened in time, which makes no difference here.
  EXPECT_THAT(exchange.Open({}, absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, testing::_));
  std::string input(2 * kTensorChunkBytes, 'i'), output(4, 'o');
  TensorTransfer transfer;
  transfer.operation.set_bytes(static_cast<int64_t>(input.size()));
  transfer.operation.mutable_range()->set_bytes(4);
  transfer.operation.mutable_range()->set_count(1);
  transfer.input = input.data();
  transfer.output = output.data();
  const auto operation = exchange.Begin(transfer);
  stub->callbacks.on_written();  // open
  stub->callbacks.on_written();  // the operation
  EXPECT_EQ(stub->written.chunks, 1);
  EXPECT_THAT(exchange.Abandon(operation, absl::AbortedError("enough")),
              StatusIs(absl::StatusCode::kAborted, "enough"));
  stub->callbacks.on_written();
  stub->Answer(1, "late");
  EXPECT_EQ(stub->written.chunks, 1);
  EXPECT_EQ(output, "oooo");
  // The first end stays.
  EXPECT_THAT(exchange.Abandon(operation, absl::AbortedError("again")),
              StatusIs(absl::StatusCode::kAborted, "enough"));
}

}  // namespace
}  // namespace coxswain
