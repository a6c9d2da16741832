#include "client/rpc/bulk_stream.h"

namespace coxswain {

BulkStream::BulkStream(const std::shared_ptr<grpc::Channel>& channel,
                       const std::string& method, const CallOptions& options)
    : context_(MakeContext(options)),
      link_(options.cancel, context_),
      on_end_(options.on_stream_end),
      stub_(channel),
      call_(stub_.PrepareCall(context_.get(), method, &queue_)) {
  call_->StartCall(this);
  Await();  // A call that does not start fails with its first operation.
}

BulkStream::~BulkStream() {
  if (!finished_) {
    context_->TryCancel();
    grpc::Status ignored;
    call_->Finish(&ignored, this);
    Await();
  }
  queue_.Shutdown();
  Await();  // gRPC wants a queue to be empty at its end.
}

bool BulkStream::Await() {
  void* tag = nullptr;
  bool ok = false;
  return queue_.Next(&tag, &ok) && ok;
}

bool BulkStream::Write(const grpc::ByteBuffer& message) {
  call_->Write(message, this);
  return Await();
}

bool BulkStream::WritesDone() {
  call_->WritesDone(this);
  return Await();
}

bool BulkStream::Read(grpc::ByteBuffer* message) {
  call_->Read(message, this);
  return Await();
}

absl::Status BulkStream::Finish() {
  grpc::Status status;
  call_->Finish(&status, this);
  finished_ = true;
  Await();
  absl::Status end = link_.Translate(status);
  if (on_end_ != nullptr) on_end_(end);
  return end;
}

}  // namespace coxswain
