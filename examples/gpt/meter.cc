#include "examples/gpt/meter.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/clock.h"
#include "base/status_macros.h"
#include "client/comm/communicator.h"
#include "client/comm/work.h"
#include "schedule/pipeline/timing.h"

namespace coxswain::examples::gpt {
namespace {

constexpr absl::Duration kReduceTimeout = absl::Minutes(5);

absl::Time ReadClock() { return Clock::Real()->Now(); }

bool IsPass(const pipeline::Action& action) {
  switch (action.kind) {
    case pipeline::ActionKind::kForward:
    case pipeline::ActionKind::kBackward:
    case pipeline::ActionKind::kBackwardInput:
    case pipeline::ActionKind::kBackwardWeight:
      return true;
    default:
      return false;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Meter>> Meter::Create(Session& session,
                                                     int64_t steps) {
  // A group of its own, so that what it exchanges counts along no axis.
  std::vector<int> all(static_cast<size_t>(session.world_size()));
  std::iota(all.begin(), all.end(), 0);
  COXSWAIN_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> ranks,
                            session.CreateGroup("meter", all));
  std::unique_ptr<Meter> meter(new Meter(std::move(ranks), steps));
  meter->begin_ = ReadClock();
  meter->interval_.begin = meter->begin_;
  return meter;
}

void Meter::Losses::Add(const torch::Pipeline& pipeline,
                        const std::vector<double>& losses) {
  // Ranks along tp have the same ones.
  if (pipeline.tensor_index() > 0) return;
  for (const double loss : losses) sum += loss;
  count += static_cast<double>(losses.size());
}

absl::StatusOr<std::vector<double>> Meter::Reduce(std::vector<double> numbers,
                                                  ReduceOp op) const {
  // Outlives this function if a peer stalls and the wait below times out.
  const auto memory = std::make_shared<std::vector<double>>(std::move(numbers));
  Span span;
  span.data = memory->data();
  span.count = static_cast<int64_t>(memory->size());
  span.dtype = DType::kFloat64;
  COXSWAIN_RETURN_IF_ERROR(WaitHolding(
      ranks_->communicator().AllReduce(span, op), memory, kReduceTimeout));
  return *memory;
}

absl::StatusOr<double> Meter::MeanOf(const Losses& losses) const {
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<double> all,
                            Reduce({losses.sum, losses.count}, ReduceOp::kSum));
  return all[0] / std::max(all[1], 1.0);
}

absl::StatusOr<double> Meter::MeanLoss(const torch::Pipeline& pipeline,
                                       const std::vector<double>& losses) {
  Losses own;
  own.Add(pipeline, losses);
  return MeanOf(own);
}

void Meter::AddActions(const std::vector<TimedAction>& actions) {
  if (!in_step_ || steps_ == 0 || actions.empty()) return;
  absl::Time end = actions.front().end;
  for (const TimedAction& timed : actions) {
    end = std::max(end, timed.end);
    if (!IsPass(timed.action)) continue;
    passes_ += absl::ToDoubleSeconds(timed.end - timed.begin);
  }
  span_ += absl::ToDoubleSeconds(end - actions.front().begin);
}

void Meter::BeginStep(const torch::Pipeline& pipeline) {
  in_step_ = true;
  before_ = pipeline.payload_bytes();
}

void Meter::EndStep(const torch::Pipeline& pipeline,
                    const torch::PipelineResult& result, int64_t step,
                    int64_t tokens) {
  in_step_ = false;
  const torch::AxisBytes now = pipeline.payload_bytes();
  sent_.pp += now.pp - before_.pp;
  sent_.data += now.data - before_.data;
  sent_.tp += now.tp - before_.tp;
  interval_.bytes += static_cast<double>(
      now.pp + now.data + now.tp - before_.pp - before_.data - before_.tp);
  interval_.tokens += static_cast<double>(tokens);
  interval_.steps += 1;
  interval_.losses.Add(pipeline, result.losses);
  if (10 * step > 9 * all_steps_) {
    last_tenth_.Add(pipeline, result.losses);
  }
  if (steps_++ == 0) {
    begin_ = ReadClock();
  } else {
    tokens_ += static_cast<double>(tokens);
  }
}

absl::StatusOr<StepEvent> Meter::Interval(int64_t step) {
  StepEvent event;
  event.step = step;
  event.steps = all_steps_;
  COXSWAIN_ASSIGN_OR_RETURN(event.loss, MeanOf(interval_.losses));
  event.unit = "tokens";
  const absl::Time now = ReadClock();
  event.per_second =
      interval_.tokens /
      std::max(absl::ToDoubleSeconds(now - interval_.begin), 1e-9);
  event.bytes_sent_per_step =
      interval_.bytes /
      static_cast<double>(std::max<int64_t>(1, interval_.steps));
  interval_ = {};
  interval_.begin = now;
  return event;
}

absl::Status Meter::Fill(const torch::Pipeline& pipeline, Result* result) {
  result->wall_seconds = absl::ToDoubleSeconds(ReadClock() - begin_);
  result->tokens_per_second = tokens_ / std::max(result->wall_seconds, 1e-9);
  COXSWAIN_ASSIGN_OR_RETURN(result->train_loss, MeanOf(last_tenth_));
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::vector<double> sums,
      Reduce({static_cast<double>(sent_.pp), static_cast<double>(sent_.data),
              static_cast<double>(sent_.tp), passes_},
             ReduceOp::kSum));
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<double> most,
                            Reduce({span_}, ReduceOp::kMax));
  const double ranks = ranks_->size();
  const double steps = static_cast<double>(std::max<int64_t>(1, steps_));
  result->pp_bytes = sums[0] / ranks / steps;
  result->dp_bytes = sums[1] / ranks / steps;
  result->tp_bytes = sums[2] / ranks / steps;
  // All ranks of a pipeline begin at once; some come to their ends earlier.
  if (most[0] > 0) result->bubble = 1 - sums[3] / ranks / most[0];
  COXSWAIN_ASSIGN_OR_RETURN(
      const pipeline::Timing timing,
      pipeline::Time(pipeline.schedule(), pipeline::TimingOptions()));
  result->planned_bubble = timing.Bubble();
  return absl::OkStatus();
}

}  // namespace coxswain::examples::gpt
