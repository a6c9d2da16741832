#include "client/rpc/journal_stub.h"

#include "client/rpc/call_context.h"
#include "client/rpc/credentials.h"
#include "client/rpc/failover.h"
#include "proto/journal.grpc.pb.h"

namespace coxswain {
namespace {

class GrpcJournalStream : public JournalStream {
 public:
  GrpcJournalStream(const std::shared_ptr<grpc::Channel>& channel,
                    const v1::JournalRequest& request,
                    const CallOptions& options)
      : context_(MakeContext(options)),
        link_(options.cancel, context_),
        reader_(v1::Journal::Stub(channel).Follow(context_.get(), request)) {}
  ~GrpcJournalStream() override {
    if (finished_) return;
    context_->TryCancel();
    reader_->Finish();
  }

  bool Read(v1::JournalPage* page) override { return reader_->Read(page); }
  absl::Status Finish() override {
    finished_ = true;
    return link_.Translate(reader_->Finish());
  }

 private:
  const ContextPtr context_;
  const CancelLink link_;
  const std::unique_ptr<grpc::ClientReader<v1::JournalPage>> reader_;
  bool finished_ = false;
};

class GrpcJournalStub : public JournalStub {
 public:
  GrpcJournalStub(const std::string& addresses, const ClientSecurity& security)
      : addresses_(addresses),
        channels_(MakeCoordinatorChannels(addresses, security)),
        failover_(FailoverOver(channels_)) {}

  absl::StatusOr<v1::JournalPage> Read(const v1::JournalRequest& request,
                                       const CallOptions& options) override {
    v1::JournalPage page;
    absl::Status status = failover_.Call(options, [&](size_t at,
                                                      const CallOptions& once) {
      const ContextPtr context = MakeContext(once);
      const CancelLink link(once.cancel, context);
      return link.Translate(
          v1::Journal::Stub(channels_[at]).Read(context.get(), request, &page));
    });
    if (!status.ok()) return status;
    return page;
  }

  std::unique_ptr<JournalStream> Follow(const v1::JournalRequest& request,
                                        const CallOptions& options) override {
    return std::make_unique<GrpcJournalStream>(channels_[failover_.Current()],
                                               request, options);
  }

  std::string address() const override { return addresses_; }

 private:
  const std::string addresses_;
  const ChannelPtrs channels_;
  Failover failover_;
};

}  // namespace

std::unique_ptr<JournalStub> ConnectJournal(const std::string& address,
                                            const ClientSecurity& security) {
  return std::make_unique<GrpcJournalStub>(address, security);
}

}  // namespace coxswain
