#include "tests/property/reducer_life.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/device/tensor.h"

namespace coxswain {
namespace {

constexpr absl::Duration kWaitTimeout = absl::Seconds(60);

// The parameters are of one of two types.
void Write(const std::vector<double>& values, const Span& span) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (span.dtype == DType::kFloat64) {
      static_cast<double*>(span.data)[i] = values[i];
    } else {
      static_cast<float*>(span.data)[i] = static_cast<float>(values[i]);
    }
  }
}

std::vector<double> Read(const Span& span) {
  std::vector<double> values;
  for (int64_t i = 0; i < span.count; ++i) {
    values.push_back(span.dtype == DType::kFloat64
                         ? static_cast<const double*>(span.data)[i]
                         : static_cast<const float*>(span.data)[i]);
  }
  return values;
}

Sabotage OfRank(const GenerationPlan& plan, int rank) {
  return plan.sabotage[static_cast<size_t>(rank)];
}

}  // namespace

void Count::Add() {
  MutexLock lock(&mutex_);
  ++count_;
  changed_.NotifyAll();
}

bool Count::Await(int count) {
  MutexLock lock(&mutex_);
  return changed_.WaitFor(
      &mutex_, kWaitTimeout,
      [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return count_ >= count; });
}

ReducerLife::ReducerLife(const GenerationPlan& plan, int rank,
                         const std::vector<ParameterSpec>& parameters,
                         BrittleHook* hook,
                         std::unique_ptr<Communicator> communicator,
                         const HookState* restored, Count* lives_over)
    : plan_(plan),
      rank_(rank),
      parameters_(parameters),
      hook_(hook),
      communicator_(std::move(communicator)),
      restored_(restored),
      lives_over_(lives_over),
      sabotage_(OfRank(plan, rank)),
      outside_(parameters.size()) {}

LifeRecord ReducerLife::Run() {
  if (Start()) TrainOn();
  over_ = true;
  near_.Add();
  if (saboteur_.joinable()) saboteur_.join();
  if (reducer_ != nullptr) {
    record_.error = reducer_->status();
    if (!record_.error.ok()) CheckBroken();
  }
  if (reducer_ != nullptr && !plan_.sabotaged()) SaveState();
  reducer_.reset();
  if (hook_->in_step()) Complain("the hook is left in the middle of a step");
  lives_over_->Add();
  MutexLock lock(&mutex_);
  record_.complaints = complaints_;
  return std::move(record_);
}

bool ReducerLife::Start() {
  ReducerOptions options = plan_.options;
  if (sabotage_.trouble == Trouble::kTimeout) {
    options.timeout = absl::Microseconds(1);
  }
  if (plan_.on_average) {
    options.on_average = [this](const Bucket& bucket) {
      const bool fails =
          sabotage_.trouble == Trouble::kFailOnAverage &&
          static_cast<int>(record_.steps.size()) >= sabotage_.step &&
          (bucket.last || bucket.index == sabotage_.count);
      return fails ? absl::InternalError("sabotage: on_average fails")
                   : absl::OkStatus();
    };
  }
  SabotageHook();
  auto made = Reducer::Create(options, parameters_, hook_, &communicator_);
  if (!Ok("Create", made.status())) return false;
  reducer_ = *std::move(made);
  if (restored_ != nullptr &&
      !Ok("LoadState",
          hook_->LoadState(*restored_, rank_, communicator_.size()))) {
    return false;
  }
  const bool racing = sabotage_.moment == Moment::kInFinish ||
                      sabotage_.moment == Moment::kInCommit ||
                      sabotage_.moment == Moment::kInChange;
  const bool by_hand = sabotage_.trouble == Trouble::kAbort ||
                       sabotage_.trouble == Trouble::kAbortCommunicator;
  if (by_hand && sabotage_.moment == Moment::kInCollective) {
    communicator_.Release(sabotage_.count);
    saboteur_ = std::thread([this] { ActInCollective(); });
    return true;
  }
  if (sabotage_.trouble == Trouble::kFailCollective) {
    communicator_.Fail(sabotage_.count,
                       absl::UnavailableError("sabotage: the wire is cut"));
  }
  communicator_.Open();
  if (by_hand && racing) {
    saboteur_ = std::thread([this] {
      near_.Await(1);
      for (int i = 0; i < sabotage_.count; ++i) std::this_thread::yield();
      if (!over_) Act();
    });
  }
  return true;
}

void ReducerLife::SabotageHook() {
  hook_->NoTrouble();
  if (sabotage_.trouble == Trouble::kFailHook) {
    hook_->Trouble(sabotage_.count, [] {
      return absl::InternalError("sabotage: the hook fails");
    });
  }
  // The exchange thread is in the hook, and stays there, when time is up.
  if (sabotage_.trouble == Trouble::kTimeout) {
    hook_->Trouble(sabotage_.count, [this] {
      near_.Await(1);
      return absl::OkStatus();
    });
  }
}

void ReducerLife::TrainOn() {
  for (int step = 0; step < plan_.steps; ++step) {
    if (!Change(step) || !Step(step)) return;
  }
}

bool ReducerLife::Change(int step) {
  const StepPlan plan =
      PlanStep(plan_, static_cast<int>(parameters_.size()), rank_, step);
  if (plan.change_buckets || plan.broadcast_root >= 0) {
    Near(Moment::kInChange, step);
  }
  if (plan.change_buckets &&
      !Ok("ChangeBuckets", reducer_->ChangeBuckets(plan.buckets))) {
    return false;
  }
  if (plan.broadcast_root < 0) return true;
  std::vector<double> values(100, rank_);
  Span span;
  span.data = values.data();
  span.count = static_cast<int64_t>(values.size());
  span.dtype = DType::kFloat64;
  const absl::Status status =
      reducer_->BroadcastFromRoot({span}, plan.broadcast_root);
  if (!Ok("BroadcastFromRoot", status)) return false;
  if (values != std::vector<double>(100, plan.broadcast_root)) {
    Complain("the broadcast yields something else");
  }
  return true;
}

bool ReducerLife::Step(int step) {
  if (!At(Moment::kBeforeBegin, step)) return false;
  const double weight =
      PlanStep(plan_, static_cast<int>(parameters_.size()), rank_, step).weight;
  if (!Ok("BeginStep", reducer_->BeginStep(weight))) return false;
  if (!At(Moment::kAfterBegin, step)) return false;
  const Gradients values = StressGradients(parameters_, plan_, rank_, step);
  if (!MarkAll(step, values)) return false;
  if (!At(Moment::kAfterMark, step)) return false;
  if (!At(Moment::kBeforeFinish, step)) return false;
  Near(Moment::kInFinish, step);
  if (!Ok("Finish", reducer_->Finish())) return false;
  Record(step, values);
  if (!At(Moment::kAfterFinish, step)) return false;
  Near(Moment::kInCommit, step);
  const int64_t before = hook_->step();
  const absl::Status status = reducer_->Commit();
  // An abort may come between the hook's commit and the end of Commit.
  record_.steps.back().committed = hook_->step() == before + 1;
  return Ok("Commit", status);
}

bool ReducerLife::MarkAll(int step, const Gradients& values) {
  const std::vector<MarkPlan> marks =
      PlanStep(plan_, static_cast<int>(parameters_.size()), rank_, step).marks;
  const bool due = Due(Moment::kAfterMark, step);
  const bool stops = due && sabotage_.trouble == Trouble::kDestroy;
  marked_ = 0;
  std::atomic<size_t> next{0};
  const auto mark_some = [&] {
    while (true) {
      const size_t turn = next++;
      if (turn >= marks.size()) return;
      if (stops && turn >= static_cast<size_t>(sabotage_.count)) return;
      const MarkPlan& mark = marks[turn];
      if (!Mark(mark, values[static_cast<size_t>(mark.parameter)])) return;
      if (!due || stops || ++marked_ != sabotage_.count) continue;
      if (sabotage_.trouble == Trouble::kMarkTwice) {
        (void)reducer_->MarkReady(mark.parameter);
      } else {
        Act();
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < plan_.marking_threads; ++i) {
    threads.emplace_back(mark_some);
  }
  mark_some();
  for (std::thread& thread : threads) thread.join();
  return true;
}

bool ReducerLife::Mark(const MarkPlan& mark,
                       const std::vector<double>& values) {
  const auto index = static_cast<size_t>(mark.parameter);
  Span span = reducer_->GradientView(mark.parameter);
  Reducer::MarkOptions options;
  options.used = mark.used;
  if (mark.how == MarkPlan::How::kInView) {
    Write(values, span);
    return Ok("MarkReady", reducer_->MarkReady(mark.parameter, options));
  }
  outside_[index].resize(static_cast<size_t>(span.bytes()));
  span.data = outside_[index].data();
  Write(values, span);
  options.copy_back = mark.how == MarkPlan::How::kOutsideWithCopyBack;
  return Ok("MarkReady", reducer_->MarkReady(mark.parameter, span, options));
}

void ReducerLife::Record(int step, const Gradients& given) {
  StepRecord& record = record_.steps.emplace_back();
  record.report = reducer_->report();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const int parameter = static_cast<int>(i);
    record.averages.push_back(Read(reducer_->GradientView(parameter)));
    record.unused.push_back(reducer_->unused_everywhere(parameter));
  }
  const StepPlan plan =
      PlanStep(plan_, static_cast<int>(parameters_.size()), rank_, step);
  for (const MarkPlan& mark : plan.marks) ReadOutside(mark, given);
}

void ReducerLife::ReadOutside(const MarkPlan& mark, const Gradients& given) {
  if (mark.how == MarkPlan::How::kInView) return;
  const auto index = static_cast<size_t>(mark.parameter);
  Span span = reducer_->GradientView(mark.parameter);
  span.data = outside_[index].data();
  std::vector<double> values = Read(span);
  StepRecord& record = record_.steps.back();
  if (mark.how == MarkPlan::How::kOutsideWithCopyBack &&
      !record.unused[index]) {
    record.averages[index] = std::move(values);
  } else if (values != given[index]) {
    Complain(absl::StrCat("the memory of parameter ", mark.parameter,
                          " was written to"));
  }
}

void ReducerLife::SaveState() {
  record_.state = hook_->SaveState(communicator_);
  if (!record_.state.ok()) {
    Complain(absl::StrCat("SaveState: ", record_.state.status().ToString()));
  }
  // Ranks that leave first break the connections of the others.
  if (auto status = communicator_.Barrier()->Wait(kWaitTimeout); !status.ok()) {
    Complain(absl::StrCat("the last barrier: ", status.ToString()));
  }
}

void ReducerLife::CheckBroken() {
  const int64_t before = hook_->step();
  double value = 0;
  Span span;
  span.data = &value;
  span.count = 1;
  span.dtype = DType::kFloat64;
  std::vector<std::pair<const char*, absl::Status>> results = {
      {"MarkReady", reducer_->MarkReady(0)},
      {"Finish", reducer_->Finish()},
      {"Commit", reducer_->Commit()},
      {"BeginStep", reducer_->BeginStep()},
      {"ChangeBuckets", reducer_->ChangeBuckets({})},
      {"BroadcastFromRoot", reducer_->BroadcastFromRoot({span})},
      {"status", reducer_->status()},
  };
  {
    MutexLock lock(&mutex_);
    for (const absl::Status& status : returned_) {
      results.emplace_back("an earlier call", status);
    }
  }
  for (const auto& [what, status] : results) {
    if (status == record_.error) continue;
    Complain(absl::StrCat("broken by ", record_.error.ToString(), ", yet ",
                          what, " returned ", status.ToString()));
  }
  if (hook_->step() != before) Complain("a broken reducer committed a step");
}

bool ReducerLife::Due(Moment moment, int step) const {
  if (sabotage_.moment != moment || step < sabotage_.step) return false;
  return sabotage_.trouble == Trouble::kAbort ||
         sabotage_.trouble == Trouble::kAbortCommunicator ||
         sabotage_.trouble == Trouble::kDestroy ||
         sabotage_.trouble == Trouble::kMarkTwice;
}

bool ReducerLife::At(Moment moment, int step) {
  if (sabotage_.trouble == Trouble::kAbsent) {
    // Leaves once all others have, except those that wait like it.
    int others = 0;
    for (const Sabotage& one : plan_.sabotage) {
      others += one.trouble == Trouble::kAbsent ? 0 : 1;
    }
    if (!lives_over_->Await(others)) Complain("the others wait forever");
    reducer_.reset();
    return false;
  }
  if (!Due(moment, step)) return true;
  if (sabotage_.trouble == Trouble::kDestroy) {
    reducer_.reset();
    return false;
  }
  if (moment != Moment::kAfterMark) Act();
  return true;
}

void ReducerLife::Near(Moment moment, int step) {
  if (Due(moment, step)) near_.Add();
}

void ReducerLife::Act() {
  if (sabotage_.trouble == Trouble::kAbort) {
    reducer_->Abort(absl::CancelledError("sabotage: abort"));
  } else {
    communicator_.Abort("sabotage: abort of the communicator");
  }
  // What others may read at any time.
  (void)reducer_->status();
  (void)reducer_->step();
  (void)reducer_->report();
  (void)reducer_->totals();
  (void)reducer_->Unmarked();
}

void ReducerLife::ActInCollective() {
  const auto launches = static_cast<size_t>(sabotage_.count) + 1;
  while (!communicator_.AwaitLaunches(launches, absl::Milliseconds(5))) {
    if (over_) return;
  }
  Act();
}

bool ReducerLife::Ok(const char* what, const absl::Status& status) {
  if (status.ok()) return true;
  {
    MutexLock lock(&mutex_);
    returned_.push_back(status);
  }
  if (reducer_ == nullptr || reducer_->status().ok()) {
    Complain(absl::StrCat(
        what, " fails without breaking the reducer: ", status.ToString()));
  } else if (!plan_.sabotaged()) {
    Complain(absl::StrCat(what, ": ", status.ToString()));
  }
  return false;
}

void ReducerLife::Complain(const std::string& text) {
  MutexLock lock(&mutex_);
  complaints_.push_back(absl::StrCat("rank ", rank_, ": ", text));
}

}  // namespace coxswain
