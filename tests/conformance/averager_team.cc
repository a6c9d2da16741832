#include "tests/conformance/averager_team.h"

#include <cstring>
#include <thread>
#include <utility>

#include "base/float16.h"
#include "base/status_matchers.h"
#include "hooks/registry/registry.h"

namespace coxswain {
namespace {

constexpr uint64_t kStream = 23;
constexpr double kScale = 0.1;

double Get(const Span& span, size_t i) {
  switch (span.dtype) {
    case DType::kFloat64:
      return static_cast<const double*>(span.data)[i];
    case DType::kFloat16:
      return Float16ToFloat(static_cast<const uint16_t*>(span.data)[i]);
    case DType::kBFloat16:
      return BFloat16ToFloat(static_cast<const uint16_t*>(span.data)[i]);
    default:
      return static_cast<const float*>(span.data)[i];
  }
}

void Put(const Span& span, size_t i, double value) {
  const auto narrow = static_cast<float>(value);
  switch (span.dtype) {
    case DType::kFloat64:
      static_cast<double*>(span.data)[i] = value;
      return;
    case DType::kFloat16:
      static_cast<uint16_t*>(span.data)[i] = FloatToFloat16(narrow);
      return;
    case DType::kBFloat16:
      static_cast<uint16_t*>(span.data)[i] = FloatToBFloat16(narrow);
      return;
    default:
      static_cast<float*>(span.data)[i] = narrow;
  }
}

}  // namespace

double RoundTo(DType dtype, double value) {
  char memory[sizeof(double)];
  Span span;
  span.data = memory;
  span.count = 1;
  span.dtype = dtype;
  Put(span, 0, value);
  return Get(span, 0);
}

Values LocalUpdate(const std::vector<ParameterSpec>& parameters, int rank,
                   int64_t step, int64_t start_step) {
  Values update;
  AddTo(
      update,
      NormalGradients(parameters, kStream, step < start_step ? 0 : rank, step),
      kScale);
  return update;
}

void ApplyUpdate(const std::vector<ParameterSpec>& parameters,
                 const Values& update, Values& values) {
  for (size_t p = 0; p < values.size(); ++p) {
    for (size_t i = 0; i < values[p].size(); ++i) {
      values[p][i] = RoundTo(parameters[p].dtype, values[p][i] + update[p][i]);
    }
  }
}

AveragerTeam::AveragerTeam(const std::string& spec,
                           std::vector<ParameterSpec> parameters, Group group,
                           const Values& initial)
    : parameters_(std::move(parameters)),
      group_(std::move(group)),
      ranks_(group_.size()) {
  OnAll([&](int number) {
    Rank& rank = ranks_[Index(number)];
    auto averager = MakeAverager(spec);
    ASSERT_OK(averager);
    ASSERT_NE(*averager, nullptr);
    rank.averager = *std::move(averager);
    for (const ParameterSpec& parameter : parameters_) {
      Span span;
      span.count = parameter.count();
      span.dtype = parameter.dtype;
      rank.memory.emplace_back(static_cast<size_t>(span.bytes()), '\0');
      rank.values.push_back(span);
    }
    for (size_t p = 0; p < parameters_.size(); ++p) {
      rank.values[p].data = rank.memory[p].data();
    }
    Set(number, initial);
    ASSERT_OK(rank.averager->Configure(parameters_, rank.values,
                                       *group_[Index(number)]));
  });
}

void AveragerTeam::OnAll(const std::function<void(int rank)>& function) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size(); ++rank) {
    threads.emplace_back([&function, rank] { function(rank); });
  }
  for (auto& thread : threads) thread.join();
}

Values AveragerTeam::Get(int rank) const {
  Values values;
  for (const Span& span : ranks_[Index(rank)].values) {
    values.emplace_back();
    for (size_t i = 0; i < static_cast<size_t>(span.count); ++i) {
      values.back().push_back(coxswain::Get(span, i));
    }
  }
  return values;
}

void AveragerTeam::Set(int rank, const Values& values) {
  for (size_t p = 0; p < values.size(); ++p) {
    for (size_t i = 0; i < values[p].size(); ++i) {
      Put(ranks_[Index(rank)].values[p], i, values[p][i]);
    }
  }
}

void AveragerTeam::Step(int rank, int64_t start_step) {
  Averager& averager = *ranks_[Index(rank)].averager;
  const Communicator& communicator = *group_[Index(rank)];
  Values values = Get(rank);
  ApplyUpdate(parameters_,
              LocalUpdate(parameters_, rank, averager.step(), start_step),
              values);
  Set(rank, values);
  const bool averages = averager.averages_next();
  const int64_t step = averager.step();
  const int64_t payload = communicator.payload_bytes();
  ASSERT_OK(averager.AfterOptimizerStep(ranks_[Index(rank)].values));
  EXPECT_EQ(averager.step(), step + 1);
  const bool exchanged = communicator.payload_bytes() > payload;
  // The last rank may be alone in its group.
  if (size() > 1 && rank == 0) {
    EXPECT_EQ(exchanged, averages);
  }
  EXPECT_LE(exchanged, averages);
}

std::vector<std::vector<Values>> AveragerTeam::RunTo(int64_t to,
                                                     int64_t start_step) {
  const int64_t from = averager(0).step();
  std::vector<std::vector<Values>> trace(static_cast<size_t>(to - from),
                                         std::vector<Values>(group_.size()));
  OnAll([&](int rank) {
    for (auto& step : trace) {
      Step(rank, start_step);
      step[Index(rank)] = Get(rank);
      if (testing::Test::HasFatalFailure()) return;
    }
  });
  return trace;
}

std::vector<Values> AveragerTeam::AverageNow() {
  std::vector<Values> values(group_.size());
  OnAll([&](int rank) {
    EXPECT_OK(averager(rank).AverageNow(ranks_[Index(rank)].values));
    EXPECT_FALSE(averager(rank).diverged());
    values[Index(rank)] = Get(rank);
  });
  return values;
}

HookState AveragerTeam::Save() {
  std::vector<HookState> shards(group_.size());
  OnAll([&](int rank) {
    auto shard = averager(rank).SaveState(*group_[Index(rank)]);
    ASSERT_OK(shard);
    auto parsed = ParseHookState(SerializeHookState(*shard));
    ASSERT_OK(parsed);
    shards[Index(rank)] = *std::move(parsed);
  });
  auto merged = MergeHookStates(std::move(shards));
  EXPECT_OK(merged);
  return merged.ok() ? *std::move(merged) : HookState();
}

absl::Status AveragerTeam::Load(const HookState& state) {
  absl::Status result;
  for (int rank = 0; rank < size(); ++rank) {
    const absl::Status status = averager(rank).LoadState(state, rank, size());
    if (result.ok()) result = status;
  }
  return result;
}

}  // namespace coxswain
