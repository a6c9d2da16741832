#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "capi/call.h"
#include "capi/open_session.h"
#include "client/comm/communicator.h"

namespace coxswain::capi {
namespace {

// What a communicator takes to notice its own timeout, or that it is aborted.
constexpr absl::Duration kEndMargin = absl::Minutes(1);

// A collective on its way from the caller's thread to another and back.
class Collective {
 public:
  using Start = std::function<WorkPtr(Communicator& communicator)>;

  Collective(std::shared_ptr<OpenSession> open, Start start)
      : open_(std::move(open)), start_(std::move(start)) {}

  // Runs it to its end. Whatever that is, the caller's memory is not used after
  // it.
  absl::Status Run() {
    MutexLock order(&open_->collectives);
    if (open_->world == nullptr) {
      auto connected = open_->session->World();
      if (!connected.ok()) return Explain(*open_->session, connected.status());
      open_->world = *std::move(connected);
    }
    const std::shared_ptr<ProcessGroup> world = open_->world;
    Communicator& communicator = world->communicator();
    {
      MutexLock lock(&mutex_);
      if (open_->collectives_over) return Over();
      started_ = world;
    }
    const WorkPtr work = start_(communicator);
    absl::Status status = work->Wait(open_->collective_timeout + kEndMargin);
    if (!work->Done()) {
      communicator.Abort("a collective did not end");
      work->Wait(absl::InfiniteDuration()).IgnoreError();
    }
    // These errors are not of the generation.
    if (open_->collectives_over || absl::IsInvalidArgument(status) ||
        absl::IsUnimplemented(status)) {
      return status;
    }
    // Replaces the error by the coordinator's reason, which names the rank that
    // was lost.
    return Explain(*open_->session, status);
  }

  // Returns whether it has started, and uses the caller's memory until Run
  // returns.
  bool Cancel(const absl::Status& why) {
    MutexLock lock(&mutex_);
    open_->collectives_over = true;
    if (started_ == nullptr) return false;
    started_->communicator().Abort(why.message());
    return true;
  }

 private:
  static absl::Status Over() {
    return absl::AbortedError(
        "a collective of this session was cancelled, so its ranks are not in "
        "step any more: leave it as failed");
  }

  const std::shared_ptr<OpenSession> open_;
  const Start start_;
  Mutex mutex_;
  std::shared_ptr<ProcessGroup> started_ ABSL_GUARDED_BY(mutex_);
};

Answer RunCollective(std::shared_ptr<OpenSession> open, cx_call* call,
                     Collective::Start start) {
  const auto collective =
      std::make_shared<Collective>(std::move(open), std::move(start));
  Work work;
  work.run = [collective] { return collective->Run(); };
  work.cancel = [collective](const absl::Status& why) {
    return collective->Cancel(why);
  };
  return Do(call, std::move(work));
}

}  // namespace

absl::StatusOr<Span> SpanOf(void* data, int64_t count, cx_dtype dtype,
                            absl::string_view argument) {
  Span span;
  COXSWAIN_ASSIGN_OR_RETURN(span.dtype, DTypeOf(dtype));
  const auto size = static_cast<int64_t>(SizeOf(span.dtype));
  if (count < 0 || count > std::numeric_limits<ptrdiff_t>::max() / size) {
    return InvalidArgument("count", absl::StrCat("is ", count));
  }
  if (count > 0) COXSWAIN_RETURN_IF_ERROR(CheckPresent(data, argument));
  span.data = data;
  span.count = count;
  return span;
}

}  // namespace coxswain::capi

namespace capi = coxswain::capi;

cx_code cx_all_reduce(cx_session session, void* data, int64_t count,
                      cx_dtype dtype, int32_t op, cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const auto span,
                              capi::SpanOf(data, count, dtype, "data"));
    if (op < CX_SUM || op > CX_MAX) {
      return capi::InvalidArgument(
          "op", absl::StrCat("is ", op, ", not CX_SUM, CX_MIN or CX_MAX"));
    }
    static_assert(static_cast<int>(coxswain::ReduceOp::kMax) == CX_MAX);
    return capi::RunCollective(
        open, call, [span, op](coxswain::Communicator& communicator) {
          return communicator.AllReduce(span,
                                        static_cast<coxswain::ReduceOp>(op));
        });
  });
}

cx_code cx_broadcast(cx_session session, void* data, int64_t count,
                     cx_dtype dtype, int32_t root, cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const auto span,
                              capi::SpanOf(data, count, dtype, "data"));
    return capi::RunCollective(
        open, call, [span, root](coxswain::Communicator& communicator) {
          return communicator.Broadcast(span, root);
        });
  });
}

cx_code cx_all_gather(cx_session session, const void* input,
                      int64_t input_count, void* output, int64_t output_count,
                      cx_dtype dtype, cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(
        const auto from,
        capi::SpanOf(const_cast<void*>(input), input_count, dtype, "input"));
    COXSWAIN_ASSIGN_OR_RETURN(
        const auto to, capi::SpanOf(output, output_count, dtype, "output"));
    const int world_size = open->session->world_size();
    if (output_count / world_size != input_count ||
        output_count % world_size != 0) {
      return capi::InvalidArgument(
          "output",
          absl::StrCat("takes ", output_count, " elements, and ", world_size,
                       " times ", input_count, " are gathered"));
    }
    return capi::RunCollective(
        open, call, [from, to](coxswain::Communicator& communicator) {
          return communicator.AllGather(from, to);
        });
  });
}
