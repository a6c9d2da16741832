#include "tests/fuzz/hostile_client.h"

#include <utility>

#include "base/check.h"
#include "grpc/support/time.h"

namespace coxswain {
namespace {

// What answers at all answers within this; what does not is left to wait.
constexpr int kMomentMs = 3;
constexpr int kTimeoutSeconds = 60;

gpr_timespec After(gpr_timespec time) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), time);
}

}  // namespace

HostileClient::HostileClient(const std::shared_ptr<grpc::Channel>& channel,
                             OnMessage on_message)
    : on_message_(std::move(on_message)), stub_(channel) {}

HostileClient::~HostileClient() {
  for (const auto& call : calls_) call->context.TryCancel();
  for (const auto& call : calls_) {
    while (!call->done || call->writing) {
      // A call that does not end is a finding.
      COXSWAIN_CHECK(
          Handle(After(gpr_time_from_seconds(kTimeoutSeconds, GPR_TIMESPAN))));
    }
  }
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

size_t HostileClient::Open(const std::string& method) {
  calls_.push_back(std::make_unique<Call>());
  Call& call = *calls_.back();
  call.method = method;
  for (int kind = 0; kind < kKinds; ++kind) {
    call.tags[kind] = {&call, static_cast<Kind>(kind)};
  }
  call.stream = stub_.PrepareCall(&call.context, method, &queue_);
  call.stream->StartCall(TagOf(&call, kStart));
  return calls_.size() - 1;
}

void HostileClient::Write(size_t call, absl::string_view message) {
  const grpc::Slice slice(message.data(), message.size());
  calls_[call]->writes.emplace_back(&slice, 1);
  Advance(calls_[call].get());
}

void HostileClient::WritesDone(size_t call) {
  calls_[call]->half_close = true;
  Advance(calls_[call].get());
}

void HostileClient::Cancel(size_t call) { calls_[call]->context.TryCancel(); }

void HostileClient::Settle(size_t call) {
  while (!calls_[call]->done &&
         Handle(After(gpr_time_from_millis(kMomentMs, GPR_TIMESPAN)))) {
  }
}

bool HostileClient::Handle(gpr_timespec deadline) {
  void* tag = nullptr;
  bool ok = false;
  if (queue_.AsyncNext(&tag, &ok, deadline) !=
      grpc::CompletionQueue::GOT_EVENT) {
    return false;
  }
  Handle(*static_cast<Tag*>(tag), ok);
  return true;
}

void HostileClient::Handle(const Tag& tag, bool ok) {
  Call& call = *tag.call;
  switch (tag.kind) {
    case kStart:
      call.started = true;
      call.ended = !ok;
      call.stream->Read(&call.incoming, TagOf(&call, kRead));
      return Advance(&call);
    case kRead:
      if (!ok) {
        call.ended = true;
        call.stream->Finish(&call.status, TagOf(&call, kFinish));
        return;
      }
      on_message_(call.method, call.incoming);
      call.incoming.Clear();
      call.stream->Read(&call.incoming, TagOf(&call, kRead));
      return;
    case kWrite:
      call.writing = false;
      call.ended = call.ended || !ok;
      return Advance(&call);
    case kFinish:
      call.done = true;
      return;
    case kKinds:
      return;
  }
}

void HostileClient::Advance(Call* call) {
  if (!call->started || call->writing || call->ended) return;
  if (!call->writes.empty()) {
    call->writing = true;
    const grpc::ByteBuffer next = std::move(call->writes.front());
    call->writes.pop_front();
    call->stream->Write(next, TagOf(call, kWrite));
  } else if (call->half_close) {
    call->writing = true;
    call->ended = true;
    call->stream->WritesDone(TagOf(call, kWrite));
  }
}

}  // namespace coxswain
