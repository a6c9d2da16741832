#include "client/rpc/journal_stub.h"

#include <atomic>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "client/rpc/call_context.h"
#include "client/rpc/credentials.h"
#include "proto/journal.grpc.pb.h"

namespace coxswain {
namespace {

class GrpcJournalStream : public JournalStream {
 public:
  GrpcJournalStream(v1::Journal::Stub& stub, const v1::JournalRequest& request,
                    const CallOptions& options)
      : context_(MakeContext(options)),
        link_(options.cancel, context_),
        reader_(stub.Follow(context_.get(), request)) {}
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
  GrpcJournalStub(const std::string& address, const ClientSecurity& security)
      : address_(address) {
    for (const std::string& one :
         std::vector<std::string>(absl::StrSplit(address, ','))) {
      stubs_.push_back(
          v1::Journal::NewStub(MakeCoordinatorChannel(one, security)));
    }
  }

  absl::StatusOr<v1::JournalPage> Read(const v1::JournalRequest& request,
                                       const CallOptions& options) override {
    absl::Status status;
    for (size_t i = 0; i < stubs_.size(); ++i) {
      v1::JournalPage page;
      const ContextPtr context = MakeContext(options);
      const CancelLink link(options.cancel, context);
      status =
          link.Translate(stubs_[current_]->Read(context.get(), request, &page));
      if (status.ok()) return page;
      if (!absl::IsUnavailable(status)) break;
      current_ = (current_ + 1) % stubs_.size();
    }
    return status;
  }

  std::unique_ptr<JournalStream> Follow(const v1::JournalRequest& request,
                                        const CallOptions& options) override {
    return std::make_unique<GrpcJournalStream>(*stubs_[current_], request,
                                               options);
  }

  std::string address() const override { return address_; }

 private:
  const std::string address_;
  std::vector<std::unique_ptr<v1::Journal::Stub>> stubs_;
  std::atomic<size_t> current_{0};
};

}  // namespace

std::unique_ptr<JournalStub> ConnectJournal(const std::string& address,
                                            const ClientSecurity& security) {
  return std::make_unique<GrpcJournalStub>(address, security);
}

}  // namespace coxswain
