#include "client/reduce/step_exchange.h"

#include <cstring>
#include <set>
#include <utility>

#include "base/status_macros.h"
#include "client/comm/wait_holding.h"
#include "client/reduce/exchange_pipeline.h"

namespace coxswain {
namespace {

template <typename T>
Span SpanOf(std::vector<T>& values, DType dtype) {
  Span span;
  span.data = values.data();
  span.count = static_cast<int64_t>(values.size());
  span.dtype = dtype;
  return span;
}

}  // namespace

StepExchange::StepExchange(Context context)
    : context_(std::move(context)), communicator_(*context_.communicator) {
  report_.step = context_.hook->step();
  report_.begun = context_.options->clock->Now();
  report_.total_weight = communicator_.size();
  report_.live_ranks = communicator_.size();
}

absl::Status StepExchange::Run() {
  COXSWAIN_RETURN_IF_ERROR(ExchangeWeights());
  if (report_.empty) return absl::OkStatus();
  COXSWAIN_RETURN_IF_ERROR(ExchangeBuckets());
  COXSWAIN_RETURN_IF_ERROR(ExchangeUsers());
  return ExchangeOrder();
}

absl::Status StepExchange::ExchangeWeights() {
  if (!context_.options->uneven_inputs) return absl::OkStatus();
  auto weights = std::make_shared<std::vector<double>>(
      static_cast<size_t>(communicator_.size()));
  (*weights)[static_cast<size_t>(communicator_.rank())] = context_.weight;
  COXSWAIN_RETURN_IF_ERROR(Await(
      communicator_.AllReduce(SpanOf(*weights, DType::kFloat64)), weights));
  report_.total_weight = 0;
  report_.live_ranks = 0;
  for (size_t rank = weights->size(); rank-- > 0;) {
    report_.total_weight += (*weights)[rank];
    if ((*weights)[rank] == 0) continue;
    ++report_.live_ranks;
    report_.first_live_rank = static_cast<int>(rank);
  }
  report_.empty = report_.live_ranks == 0;
  if (report_.empty || context_.weight == 0) return absl::OkStatus();
  scale_ = context_.weight * communicator_.size() / report_.total_weight;
  return absl::OkStatus();
}

absl::Status StepExchange::ExchangeBuckets() {
  timings_.assign(context_.buckets->size(), BucketTiming());
  ExchangePipeline::Options options;
  options.timeout = context_.options->timeout;
  options.clock = context_.options->clock;
  options.await_ready = [this](const Bucket& bucket) {
    return AwaitReady(bucket);
  };
  options.on_average = [this](const Bucket& bucket) {
    return OnAverage(bucket);
  };
  ExchangePipeline pipeline(options, *context_.buckets, *context_.hook,
                            communicator_, &timings_);
  absl::Status status = pipeline.Run();
  if (status.ok()) return status;
  // Aborts the communicator, so that the pipeline's collectives end.
  status = context_.fail(status);
  pipeline.Drain(context_.options->after_abort());
  return status;
}

absl::Status StepExchange::AwaitReady(const Bucket& bucket) {
  COXSWAIN_RETURN_IF_ERROR(context_.marks->AwaitBucket(bucket.index));
  if (scale_ != 1) Scale(bucket.data, scale_);
  return absl::OkStatus();
}

absl::Status StepExchange::OnAverage(const Bucket& bucket) {
  const ReducerOptions& options = *context_.options;
  for (const GradientSlot& slot : bucket.gradients) {
    const Span average = bucket.Gradient(slot);
    void* const outside = TakeOutside(slot.parameter);
    if (options.measures()) {
      statistics_.Add(outside == nullptr ? Measure(average)
                                         : CopyAndMeasure(average, outside));
    } else if (outside != nullptr && average.count > 0) {
      std::memcpy(outside, average.data, static_cast<size_t>(average.bytes()));
    }
  }
  return options.on_average ? options.on_average(bucket) : absl::OkStatus();
}

// Null where the copy has to wait for the end of the step: until the norm is
// known, or whether any rank used what this one did not.
void* StepExchange::TakeOutside(int parameter) {
  const ReducerOptions& options = *context_.options;
  if (options.max_norm > 0) return nullptr;
  if (options.find_unused_parameters && !context_.marks->used(parameter)) {
    return nullptr;
  }
  return context_.marks->TakeOutside(parameter);
}

absl::Status StepExchange::ExchangeUsers() {
  if (!context_.options->find_unused_parameters) return absl::OkStatus();
  auto users = std::make_shared<std::vector<int32_t>>(context_.marks->users());
  COXSWAIN_RETURN_IF_ERROR(
      Await(communicator_.AllReduce(SpanOf(*users, DType::kInt32)), users));
  users_ = *users;
  return absl::OkStatus();
}

absl::Status StepExchange::ExchangeOrder() {
  if (!context_.learns_order) return absl::OkStatus();
  const std::vector<int> ready = context_.marks->ready_order();
  auto order =
      std::make_shared<std::vector<int32_t>>(ready.begin(), ready.end());
  // Those that this rank did not use come last.
  const std::set<int> used(ready.begin(), ready.end());
  for (int i = static_cast<int>(context_.parameters); i-- > 0;) {
    if (used.count(i) == 0) order->push_back(i);
  }
  COXSWAIN_RETURN_IF_ERROR(
      Await(communicator_.Broadcast(SpanOf(*order, DType::kInt32), 0), order));
  ready_order_.assign(order->begin(), order->end());
  return absl::OkStatus();
}

absl::Status StepExchange::Await(const WorkPtr& work,
                                 std::shared_ptr<const void> memory) {
  return WaitHolding(work, std::move(memory), context_.options->timeout);
}

}  // namespace coxswain
