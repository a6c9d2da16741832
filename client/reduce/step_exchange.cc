#include "client/reduce/step_exchange.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/comm/work.h"
#include "client/reduce/agreement.h"
#include "client/reduce/bucket_slices.h"

namespace coxswain {
namespace {

// Where a rank's data stands, as the header has it.
constexpr double kHasData = 0;
constexpr double kEndsHere = 1;  // with this step
constexpr double kHasEnded = 2;

double StandingOf(const schedule::Ticket& ticket) {
  if (ticket.without_data()) return kHasEnded;
  return ticket.end_of_data ? kEndsHere : kHasData;
}

template <typename T>
Span SpanOf(std::vector<T>& values, DType dtype) {
  Span span;
  span.data = values.data();
  span.count = static_cast<int64_t>(values.size());
  span.dtype = dtype;
  return span;
}

// Returns `count` elements of a bucket from `begin` on as runs within them:
// those that statistics count, and the others, each as long as can be.
std::vector<GradientSlot> RunsOf(const Bucket& bucket, int64_t begin,
                                 int64_t count) {
  std::vector<GradientSlot> runs;
  for (const GradientSlot& slot : bucket.gradients) {
    const int64_t first = std::max(slot.offset - begin, int64_t{0});
    const int64_t last = std::min(slot.offset + slot.count - begin, count);
    if (first >= last) continue;
    if (!runs.empty() && runs.back().measured == slot.measured) {
      runs.back().count = last - runs.back().offset;
      continue;
    }
    GradientSlot run;
    run.offset = first;
    run.count = last - first;
    run.measured = slot.measured;
    runs.push_back(run);
  }
  return runs;
}

}  // namespace

StepExchange::StepExchange(Context context)
    : context_(std::move(context)),
      communicator_(*context_.communicator),
      slicing_(*context_.slicing),
      flights_({context_.hook, context_.slicing, context_.options->clock,
                context_.options->timeout, context_.buckets->size(),
                [this](const Bucket& bucket) { return OnAverage(bucket); },
                context_.options->slices, context_.options->hybrid.replicas}) {
  report_.step = context_.hook->step();
  report_.begun = context_.options->clock->Now();
  report_.total_weight = communicator_.size();
  report_.live_ranks = communicator_.size();
  report_.ranks_with_data = communicator_.size();
}

absl::Status StepExchange::ExchangeHeader() {
  if (!context_.options->uneven_inputs) return absl::OkStatus();
  const size_t ranks = static_cast<size_t>(communicator_.size());
  auto header = std::make_shared<std::vector<double>>(3 * ranks);
  const size_t rank = static_cast<size_t>(communicator_.rank());
  const schedule::Ticket& ticket = context_.ticket;
  (*header)[rank] = ticket.weight;
  (*header)[ranks + rank] = StandingOf(ticket);
  (*header)[2 * ranks + rank] = static_cast<double>(ticket.plan_version);
  COXSWAIN_RETURN_IF_ERROR(
      Await(communicator_.AllReduce(SpanOf(*header, DType::kFloat64)), header));
  ReadHeader(*header);
  return absl::OkStatus();
}

void StepExchange::ReadHeader(const std::vector<double>& header) {
  const size_t ranks = header.size() / 3;
  report_.total_weight = 0;
  report_.live_ranks = 0;
  report_.ranks_with_data = 0;
  for (size_t rank = ranks; rank-- > 0;) {
    plans_.insert(plans_.begin(),
                  static_cast<int64_t>(header[2 * ranks + rank]));
    if (header[ranks + rank] != kHasData) ++report_.ended_ranks;
    if (header[ranks + rank] != kHasEnded) ++report_.ranks_with_data;
    report_.total_weight += header[rank];
    if (header[rank] == 0) continue;
    ++report_.live_ranks;
    report_.first_live_rank = static_cast<int>(rank);
  }
  report_.ended = context_.options->end_at_first &&
                  report_.ranks_with_data < static_cast<int>(ranks);
  report_.empty = report_.live_ranks == 0 || report_.ended;
  if (!report_.empty) Weigh();
}

void StepExchange::Weigh() {
  const double ranks = communicator_.size();
  const schedule::Ticket& ticket = context_.ticket;
  const bool counts = ticket.weight > 0;
  if (context_.hook->applies_share()) {
    shared_ = *context_.buckets;
    for (Bucket& bucket : shared_) {
      bucket.share =
          counts ? context_.divisor / report_.total_weight : 1 / ranks;
    }
  } else if (counts) {
    scale_ = context_.divisor * ranks / report_.total_weight;
  }
  // Whatever they are, even if they are not finite.
  if (!counts && !ticket.without_data()) scale_ = 0;
}

absl::Status StepExchange::CheckPlans() const {
  std::map<int64_t, std::vector<int>> ranks;
  for (size_t i = 0; i < plans_.size(); ++i) {
    ranks[plans_[i]].push_back(static_cast<int>(i));
  }
  if (ranks.size() < 2) return absl::OkStatus();
  std::vector<std::string> versions;
  for (const auto& [version, followers] : ranks) {
    versions.push_back(absl::StrCat(version, " on ", NameRanks(followers)));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the ranks follow different versions of the plan: ",
      absl::StrJoin(versions, ", "),
      "; a plan that a decision brings counts from the next step on, on all "
      "ranks"));
}

absl::Status StepExchange::Run() {
  if (report_.empty) return absl::OkStatus();
  absl::Status status = ExchangeAll();
  if (status.ok()) return status;
  status = context_.fail(status);
  // Averages may still be on their way to the caller's memory.
  context_.memory->Quiesce(context_.options->after_abort());
  return status;
}

absl::Status StepExchange::ExchangeAll() {
  // Not those over hybrid.replicas: which there are depends on the slice.
  const int64_t before = slicing_.sequence();
  COXSWAIN_RETURN_IF_ERROR(ExchangeBuckets());
  collectives_ = slicing_.sequence() - before;
  if (!context_.norm_by_vote) COXSWAIN_RETURN_IF_ERROR(ExchangeStatistics());
  COXSWAIN_RETURN_IF_ERROR(ExchangeUsers());
  COXSWAIN_RETURN_IF_ERROR(ExchangeOrder());
  return context_.memory->AwaitAverages(context_.options->timeout);
}

absl::Status StepExchange::ExchangeBuckets() {
  absl::Status status = RunRounds();
  if (status.ok()) return status;
  // Aborts the communicator, so that the collectives in flight end.
  status = context_.fail(status);
  flights_.Drain(context_.options->after_abort());
  return status;
}

absl::Status StepExchange::RunRounds() {
  for (const Bucket& bucket : buckets()) {
    COXSWAIN_ASSIGN_OR_RETURN(std::shared_ptr<const Bucket> ready,
                              AwaitReady(bucket));
    COXSWAIN_RETURN_IF_ERROR(flights_.Round(std::move(ready)));
  }
  while (!flights_.empty()) {
    COXSWAIN_RETURN_IF_ERROR(flights_.Round(nullptr));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Bucket>> StepExchange::Placed(
    const Bucket& bucket) const {
  if (context_.pool != nullptr) return FromPool(bucket);
  std::shared_ptr<Bucket> placed;
  for (size_t i = 0; i < bucket.gradients.size(); ++i) {
    void* const outside =
        context_.marks->TakeInPlace(bucket.gradients[i].parameter);
    if (outside == nullptr) continue;
    if (placed == nullptr) placed = std::make_shared<Bucket>(bucket);
    placed->gradients[i].outside = outside;
  }
  if (placed != nullptr) return placed;
  return std::shared_ptr<const Bucket>(std::shared_ptr<void>(), &bucket);
}

absl::StatusOr<std::shared_ptr<const Bucket>> StepExchange::FromPool(
    const Bucket& bucket) const {
  auto placed = std::make_shared<Bucket>(bucket);
  COXSWAIN_ASSIGN_OR_RETURN(placed->data, context_.pool->Take(bucket.index));
  for (const GradientSlot& slot : placed->gradients) {
    if (!context_.marks->absent(slot.parameter)) continue;
    COXSWAIN_RETURN_IF_ERROR(
        context_.memory->ClearGradient(*placed, placed->Gradient(slot)));
  }
  return std::shared_ptr<const Bucket>(std::move(placed));
}

absl::StatusOr<std::shared_ptr<const Bucket>> StepExchange::AwaitReady(
    const Bucket& bucket) {
  if (context_.pool != nullptr) context_.pool->SetAwaited(bucket.index);
  COXSWAIN_RETURN_IF_ERROR(context_.marks->AwaitBucket(bucket.index));
  if (context_.pool != nullptr) context_.pool->SetAwaited(-1);
  COXSWAIN_ASSIGN_OR_RETURN(std::shared_ptr<const Bucket> placed,
                            Placed(bucket));
  if (context_.options->finds_non_finite) FindNonFinite(*placed);
  if (scale_ != 1) {
    COXSWAIN_RETURN_IF_ERROR(context_.memory->Weigh(*placed, scale_));
  }
  if (context_.options->gate != nullptr) {
    context_.options->gate->NoteBucket(bucket.index);
  }
  return placed;
}

void StepExchange::FindNonFinite(const Bucket& bucket) {
  if (bucket.data.device.kind != Device::Kind::kCpu) return;
  for (const GradientSlot& slot : bucket.gradients) {
    if (Measure(bucket.Gradient(slot)).non_finite == 0) continue;
    own_non_finite_.push_back(slot.parameter);
  }
}

absl::Status StepExchange::OnAverage(const Bucket& bucket) {
  const ReducerOptions& options = *context_.options;
  if (options.slices) return TakeSlice(bucket);
  std::vector<void*> outside;
  for (const GradientSlot& slot : bucket.gradients) {
    outside.push_back(TakeOutside(slot.parameter));
  }
  COXSWAIN_RETURN_IF_ERROR(
      context_.memory->TakeAverages(bucket, outside, options.measures()));
  if (!options.on_average) return absl::OkStatus();
  COXSWAIN_RETURN_IF_ERROR(context_.memory->AwaitAverages(options.timeout));
  return HandOver(bucket);
}

absl::Status StepExchange::TakeSlice(const Bucket& bucket) {
  const ReducerOptions& options = *context_.options;
  Bucket own = bucket;
  own.data = BucketSlices::Of(bucket.data, slicing_.size())
                 .Slice(bucket.data, slicing_.rank());
  own.gradients = RunsOf(bucket,
                         BucketSlices::Of(bucket.data, slicing_.size())
                             .begin(bucket.data.count, slicing_.rank()),
                         own.data.count);
  const bool first = context_.ticket.micro == 0;
  Span kept;
  if (context_.own != nullptr) kept = context_.own->at(bucket.index);
  if (options.measures() || (first && context_.own != nullptr)) {
    std::vector<void*> to;
    for (const GradientSlot& run : own.gradients) {
      to.push_back(first && context_.own != nullptr
                       ? kept.Slice(run.offset, run.count).data
                       : nullptr);
    }
    COXSWAIN_RETURN_IF_ERROR(
        context_.memory->TakeAverages(own, to, options.measures()));
  }
  if (context_.own != nullptr && !first) {
    COXSWAIN_RETURN_IF_ERROR(
        context_.memory->AddAverages(own, kept, context_.pool == nullptr));
  }
  if (context_.pool != nullptr) context_.pool->GiveBack(bucket.index);
  if (!options.on_average) return absl::OkStatus();
  COXSWAIN_RETURN_IF_ERROR(context_.memory->AwaitAverages(options.timeout));
  return HandOver((*context_.buckets)[static_cast<size_t>(bucket.index)]);
}

// In the order of ranks, so that all have the same bits.
absl::Status StepExchange::ExchangeStatistics() {
  const ReducerOptions& options = *context_.options;
  if (!options.slices || !options.measures()) return absl::OkStatus();
  const auto ranks = static_cast<size_t>(slicing_.size());
  const auto rank = static_cast<size_t>(slicing_.rank());
  COXSWAIN_RETURN_IF_ERROR(context_.memory->AwaitAverages(options.timeout));
  const GradientStatistics own = context_.memory->statistics();
  auto all = std::make_shared<std::vector<double>>(2 * ranks);
  (*all)[rank] = own.sum_of_squares;
  (*all)[ranks + rank] = static_cast<double>(own.non_finite);
  COXSWAIN_RETURN_IF_ERROR(
      Await(slicing_.AllReduce(SpanOf(*all, DType::kFloat64)), all));
  for (size_t i = 0; i < ranks; ++i) {
    statistics_.Add({(*all)[i], static_cast<int64_t>((*all)[ranks + i])});
  }
  return absl::OkStatus();
}

absl::Status StepExchange::HandOver(const Bucket& bucket) {
  if (!takes_averages_) {
    COXSWAIN_ASSIGN_OR_RETURN(const schedule::Decision decision,
                              context_.decide());
    takes_averages_ = decision.commit;
  }
  return *takes_averages_ ? context_.options->on_average(bucket)
                          : absl::OkStatus();
}

// Null where the copy has to wait for the end of the step: until the norm is
// known, or whether any rank used what this one did not.
void* StepExchange::TakeOutside(int parameter) {
  const ReducerOptions& options = *context_.options;
  if (options.max_norm > 0 && !context_.norm_by_vote) return nullptr;
  if (options.find_unused_parameters && !context_.marks->used(parameter)) {
    return nullptr;
  }
  return context_.marks->TakeOutside(parameter);
}

absl::Status StepExchange::ExchangeUsers() {
  if (!context_.options->find_unused_parameters) return absl::OkStatus();
  if (context_.hook->reach() == GradientReach::kOwn) {
    users_ = context_.marks->users();
    return absl::OkStatus();
  }
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
