// Hybrid sharding with real hooks: ranks are threads, and each group along the
// mesh has a network of its own.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/reduce/bucket_slices.h"
#include "client/reduce/hook_state.h"
#include "client/reduce/hybrid_hook.h"
#include "client/reduce/reducer.h"
#include "gmock/gmock.h"
#include "hooks/registry/registry.h"
#include "schedule/fake_step_gate.h"
#include "tests/integration/mesh_ranks.h"

namespace coxswain::hybrid_reducer_test {
namespace {

using testing::_;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

constexpr absl::Duration kLong = kMeshTimeout;
constexpr int64_t kMaxStateBytes = 64 << 20;

std::vector<ParameterSpec> Model(DType dtype) {
  std::vector<ParameterSpec> parameters;
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {24, 32}, {33}, {0}, {16, 4, 8}, {40, 20}, {7}, {}}) {
    ParameterSpec spec;
    spec.name = absl::StrCat("p", parameters.size());
    spec.shape = shape;
    spec.dtype = dtype;
    parameters.push_back(spec);
  }
  return parameters;
}

ReducerOptions OptionsOf(const MeshRank& me) {
  ReducerOptions options;
  options.buckets = {2000, 6000};
  options.timeout = kLong;
  options.slices = true;
  options.hybrid = me.groups();
  return options;
}

std::unique_ptr<Hook> HookOf(const std::string& spec) {
  auto hook = MakeHook(spec);
  EXPECT_OK(hook);
  return *std::move(hook);
}

double ValueOf(int rank, int64_t step, int parameter, int64_t element) {
  return std::sin(static_cast<double>(element) + 10.5 * parameter +
                  100.25 * rank + 1000.125 * static_cast<double>(step));
}

using Value = std::function<double(int rank, int parameter, int64_t element)>;

void Write(const Span& span, int64_t element, double value) {
  if (span.dtype == DType::kFloat64) {
    static_cast<double*>(span.data)[element] = value;
  } else {
    static_cast<float*>(span.data)[element] = static_cast<float>(value);
  }
}

double Read(const Span& span, int64_t element) {
  return span.dtype == DType::kFloat64
             ? static_cast<const double*>(span.data)[element]
             : static_cast<const float*>(span.data)[element];
}

absl::Status MarkAll(Reducer& reducer, int rank, const Value& value) {
  const int count = static_cast<int>(reducer.parameters().size());
  for (int parameter = 0; parameter < count; ++parameter) {
    Span gradient = reducer.GradientView(parameter);
    std::vector<double> memory(static_cast<size_t>(gradient.count));
    gradient.data = memory.data();
    for (int64_t i = 0; i < gradient.count; ++i) {
      Write(gradient, i, value(rank, parameter, i));
    }
    COXSWAIN_RETURN_IF_ERROR(reducer.MarkReady(parameter, gradient));
  }
  return absl::OkStatus();
}

absl::Status RunStep(Reducer& reducer, int rank, const Value& value,
                     double weight = 1) {
  COXSWAIN_RETURN_IF_ERROR(reducer.BeginStep(weight));
  if (weight > 0) COXSWAIN_RETURN_IF_ERROR(MarkAll(reducer, rank, value));
  return reducer.Finish();
}

Value OfStep(int64_t step) {
  return [step](int rank, int parameter, int64_t element) {
    return ValueOf(rank, step, parameter, element);
  };
}

// Calls with each element of this rank's slices: its average, and which it is.
void ForOwnElements(
    const Reducer& reducer,
    const std::function<void(double, int parameter, int64_t element)>& visit) {
  for (const Bucket& bucket : reducer.buckets()) {
    const Span own = reducer.OwnSlice(bucket);
    const auto first = (static_cast<const char*>(own.data) -
                        static_cast<const char*>(bucket.data.data)) /
                       static_cast<int64_t>(SizeOf(own.dtype));
    for (const GradientSlot& slot : bucket.gradients) {
      for (int64_t i = 0; i < slot.count; ++i) {
        const int64_t at = slot.offset + i - first;
        if (at < 0 || at >= own.count) continue;
        visit(Read(own, at), slot.parameter, i);
      }
    }
  }
}

// The average that one process computes of all ranks.
double MeanOf(const Value& value, const std::vector<double>& weights,
              int parameter, int64_t element) {
  double sum = 0;
  for (size_t rank = 0; rank < weights.size(); ++rank) {
    sum += weights[rank] * value(static_cast<int>(rank), parameter, element);
  }
  return sum / std::accumulate(weights.begin(), weights.end(), 0.0);
}

std::unique_ptr<Reducer> Make(const ReducerOptions& options,
                              std::vector<ParameterSpec> parameters, Hook* hook,
                              MeshRank& me) {
  auto reducer =
      Reducer::Create(options, std::move(parameters), hook, me.data.get());
  EXPECT_OK(reducer);
  return *std::move(reducer);
}

TEST(HybridReducerTest, AllReduceIsThePlainMean) {
  for (const auto& [replicas, shards] : std::vector<std::pair<int, int>>{
           {2, 2}, {2, 3}, {3, 2}, {1, 3}, {2, 1}}) {
    OnMesh(replicas, shards, [](MeshRank& me) {
      const auto hook = HookOf("allreduce");
      const auto reducer =
          Make(OptionsOf(me), Model(DType::kFloat64), hook.get(), me);
      const std::vector<double> equal(static_cast<size_t>(me.size), 1.0);
      for (int64_t step = 0; step < 3; ++step) {
        const Value value = OfStep(step);
        ASSERT_OK(RunStep(*reducer, me.rank, value));
        ForOwnElements(*reducer, [&](double average, int parameter, int64_t i) {
          EXPECT_NEAR(average, MeanOf(value, equal, parameter, i), 1e-12);
        });
        ASSERT_OK(reducer->Commit());
      }
    });
  }
}

TEST(HybridReducerTest, ReleasedBucketsChangeNoBit) {
  for (const char* spec : {"allreduce", "powersgd(rank=2,start_step=2)"}) {
    OnMesh(2, 2, [spec](MeshRank& me) {
      std::vector<std::vector<double>> averages[2];
      for (const bool release : {false, true}) {
        const auto hook = HookOf(spec);
        ReducerOptions options = OptionsOf(me);
        options.release_buckets = release;
        const auto reducer =
            Make(options, Model(DType::kFloat64), hook.get(), me);
        for (int64_t step = 0; step < 4; ++step) {
          ASSERT_OK(RunStep(*reducer, me.rank, OfStep(step)));
          for (const Bucket& bucket : reducer->buckets()) {
            const Span own = reducer->OwnSlice(bucket);
            const auto* data = static_cast<const double*>(own.data);
            averages[release].emplace_back(data, data + own.count);
          }
          ASSERT_OK(reducer->Commit());
        }
      }
      EXPECT_EQ(averages[0], averages[1]) << spec;
    });
  }
}

// Numbers of which no sum is rounded.
TEST(HybridReducerTest, AMeanThatIsExactHasThePlainOnesBits) {
  OnMesh(2, 2, [](MeshRank& me) {
    const auto hook = HookOf("allreduce");
    const auto reducer =
        Make(OptionsOf(me), Model(DType::kFloat32), hook.get(), me);
    const Value value = [](int rank, int parameter, int64_t element) {
      return static_cast<double>((element * 7 + parameter + 3 * rank) % 64);
    };
    ASSERT_OK(RunStep(*reducer, me.rank, value));
    ForOwnElements(*reducer, [&](double average, int parameter, int64_t i) {
      EXPECT_EQ(average, MeanOf(value, {1, 1, 1, 1}, parameter, i));
    });
    ASSERT_OK(reducer->Commit());
  });
}

TEST(HybridReducerTest, WeightsAreThoseOfAllRanks) {
  const std::vector<double> weights = {3, 0, 1, 2, 5, 0.5};
  OnMesh(2, 3, [&](MeshRank& me) {
    const auto hook = HookOf("allreduce");
    ReducerOptions options = OptionsOf(me);
    options.uneven_inputs = true;
    const auto reducer = Make(options, Model(DType::kFloat64), hook.get(), me);
    const Value value = OfStep(4);
    ASSERT_OK(RunStep(*reducer, me.rank, value,
                      weights[static_cast<size_t>(me.rank)]));
    EXPECT_EQ(reducer->report().total_weight, 11.5);
    EXPECT_EQ(reducer->report().live_ranks, 5);
    ForOwnElements(*reducer, [&](double average, int parameter, int64_t i) {
      EXPECT_NEAR(average, MeanOf(value, weights, parameter, i), 1e-12);
    });
    ASSERT_OK(reducer->Commit());
  });
}

// The first two steps are averaged plainly.
constexpr char kPowerSgd[] = "powersgd(rank=2,start_step=2)";

// Over many steps with the same gradients what is sent is what was computed:
// errors are fed back. The replicas have the same bits.
TEST(HybridReducerTest, CompressedAveragesComeToTheMean) {
  struct Case {
    std::string spec;
    double tolerance;
  };
  for (const Case& it :
       {Case{"fp16", 1e-3}, Case{"bf16", 1e-2},
        Case{"int8(start_step=0)", 1e-2}, Case{kPowerSgd, 0.2}}) {
    for (const int shards : {2, 3}) {
      Mutex mutex;
      std::map<int, std::vector<double>> by_place;
      OnMesh(2, shards, [&](MeshRank& me) {
        const auto hook = HookOf(it.spec);
        const auto reducer =
            Make(OptionsOf(me), Model(DType::kFloat32), hook.get(), me);
        const std::vector<double> equal(static_cast<size_t>(me.size), 1.0);
        constexpr int kSteps = 30;
        const Value value = OfStep(0);
        std::vector<double> sums;
        for (int step = 0; step < kSteps; ++step) {
          ASSERT_OK(RunStep(*reducer, me.rank, value));
          size_t at = 0;
          ForOwnElements(*reducer, [&](double average, int, int64_t) {
            if (at == sums.size()) sums.push_back(0);
            sums[at++] += average;
          });
          ASSERT_OK(reducer->Commit());
        }
        size_t at = 0;
        ForOwnElements(*reducer, [&](double, int parameter, int64_t i) {
          EXPECT_NEAR(sums[at++] / kSteps, MeanOf(value, equal, parameter, i),
                      it.tolerance)
              << it.spec;
        });
        MutexLock lock(&mutex);
        const auto [found, first] = by_place.emplace(me.shard->rank(), sums);
        if (!first) {
          EXPECT_EQ(found->second, sums) << it.spec;
        }
      });
    }
  }
}

// The elements of errors that a rank keeps.
int64_t ErrorElements(const HookState& state) {
  int64_t elements = 0;
  for (const StateTensor& tensor : state.tensors) {
    if (tensor.kind != "own_error") continue;
    elements += static_cast<int64_t>(tensor.data.size() / SizeOf(tensor.dtype));
  }
  return elements;
}

TEST(HybridReducerTest, ErrorsAreThoseOfTheSlices) {
  for (const int shards : {2, 4}) {
    OnMesh(2, shards, [shards](MeshRank& me) {
      const auto hook = HookOf("int8(start_step=0)");
      const auto reducer =
          Make(OptionsOf(me), Model(DType::kFloat32), hook.get(), me);
      ASSERT_OK(RunStep(*reducer, me.rank, OfStep(0)));
      ASSERT_OK(reducer->Commit());
      int64_t all = 0;
      int64_t own = 0;
      for (const Bucket& bucket : reducer->buckets()) {
        all += bucket.data.count;
        own += reducer->OwnSlice(bucket).count;
      }
      ASSERT_OK_AND_ASSIGN(const HookState state, reducer->hook().SaveOwn());
      EXPECT_EQ(ErrorElements(state), own);
      // But for what rounds up to cache lines.
      const auto most = 16 * static_cast<int64_t>(reducer->buckets().size());
      EXPECT_LE(own, all / shards + most);
      EXPECT_GT(reducer->hook().ErrorNorm(), 0);
    });
  }
}

// A slice is half of the rows of a 64 x 32 matrix: between replicas travels
// what travels for a matrix of 32 x 32, r (n + m) elements of each.
TEST(HybridReducerTest, BetweenReplicasTravelFactorsOfShards) {
  ParameterSpec matrix;
  matrix.name = "w";
  matrix.shape = {64, 32};
  OnMesh(2, 2, TwoHosts(), [&](MeshRank& me) {
    const auto hook = HookOf(kPowerSgd);
    const auto reducer = Make(OptionsOf(me), {matrix}, hook.get(), me);
    for (int64_t step = 0; step < 2; ++step) {
      ASSERT_OK(RunStep(*reducer, me.rank, OfStep(step)));
      ASSERT_OK(reducer->Commit());
    }
    for (int64_t step = 2; step < 5; ++step) {
      const int64_t payload = me.replicas->payload_bytes();
      const int64_t wire = me.replicas->wire_bytes();
      const int64_t within = me.shard->payload_bytes();
      ASSERT_OK(RunStep(*reducer, me.rank, OfStep(step)));
      constexpr int64_t kFactors = 2 * (32 + 32) * 4;
      EXPECT_EQ(me.replicas->payload_bytes() - payload, kFactors);
      EXPECT_LE(me.replicas->wire_bytes() - wire, kFactors + 512);
      EXPECT_EQ(me.shard->payload_bytes() - within, 64 * 32 * 4);
      EXPECT_EQ(reducer->report().buckets[0].payload_bytes,
                64 * 32 * 4 + kFactors);
      ASSERT_OK(reducer->Commit());
    }
    const int64_t before = me.replicas->payload_bytes();
    ASSERT_OK_AND_ASSIGN(const auto memory,
                         me.shard->AllocateBuffer(64 * 32, DType::kFloat32));
    const Span whole = memory->span();
    for (int64_t i = 0; i < whole.count; ++i) {
      Write(whole, i, i / 1024 == me.shard->rank() ? me.rank + 1.0 : -1.0);
    }
    ASSERT_OK(reducer->GatherSlices({whole}));
    for (int64_t i = 0; i < whole.count; ++i) {
      const auto owner =
          static_cast<double>(me.replicas->rank() * 2 + i / 1024);
      ASSERT_EQ(Read(whole, i), owner + 1) << i;
    }
    EXPECT_EQ(me.replicas->payload_bytes(), before);
  });
}

// ---- state ----

std::vector<double> Averages(const Reducer& reducer) {
  std::vector<double> values;
  ForOwnElements(reducer, [&](double average, int, int64_t) {
    values.push_back(average);
  });
  return values;
}

// Trains from a state, if there is one, to a step; returns the state there.
struct Trained {
  HookState state;                            // of all ranks
  std::vector<std::vector<double>> averages;  // of the last step, by rank
  double errors = 0;  // the squares of all ranks' error norms, as loaded
};
Trained Train(const std::string& spec, int replicas, int shards, int64_t from,
              int64_t to, const HookState* state) {
  Trained trained;
  Mutex mutex;
  trained.averages.resize(static_cast<size_t>(replicas * shards));
  OnMesh(replicas, shards, [&](MeshRank& me) {
    const auto hook = HookOf(spec);
    const auto reducer =
        Make(OptionsOf(me), Model(DType::kFloat32), hook.get(), me);
    if (state != nullptr) {
      ASSERT_OK(reducer->hook().LoadState(*state, me.rank, me.size));
      ASSERT_EQ(reducer->hook().step(), from);
    }
    const double norm = reducer->hook().ErrorNorm();
    for (int64_t step = from; step < to; ++step) {
      ASSERT_OK(RunStep(*reducer, me.rank, OfStep(step)));
      if (step + 1 == to) {
        MutexLock lock(&mutex);
        trained.averages[static_cast<size_t>(me.rank)] = Averages(*reducer);
      }
      ASSERT_OK(reducer->Commit());
    }
    ASSERT_OK_AND_ASSIGN(
        HookState saved,
        GatherHookState(reducer->hook(), *me.data, kMaxStateBytes, kLong));
    MutexLock lock(&mutex);
    trained.errors += norm * norm;
    if (me.rank == 0) trained.state = std::move(saved);
  });
  return trained;
}

TEST(HybridReducerTest, AStateGoesOnWithTheSameBits) {
  const std::string spec = "int8(start_step=0)";
  const Trained before = Train(spec, 2, 2, 0, 3, nullptr);
  const Trained whole = Train(spec, 2, 2, 0, 5, nullptr);
  const Trained resumed = Train(spec, 2, 2, 3, 5, &before.state);
  EXPECT_EQ(resumed.averages, whole.averages);
}

TEST(HybridReducerTest, AStateIsTakenOverByAnotherNumberOfReplicas) {
  for (const std::string& spec :
       {std::string("int8(start_step=0)"), std::string(kPowerSgd)}) {
    const Trained before = Train(spec, 2, 2, 0, 3, nullptr);
    for (const int replicas : {1, 2, 3}) {
      const Trained after = Train(spec, replicas, 2, 3, 5, &before.state);
      EXPECT_GT(after.errors, 0) << spec;
      EXPECT_EQ(after.state.step, 5);
    }
  }
}

TEST(HybridReducerTest, OtherSlicesBeginWithoutErrors) {
  for (const std::string& spec :
       {std::string("int8(start_step=0)"), std::string(kPowerSgd)}) {
    const Trained before = Train(spec, 2, 2, 0, 3, nullptr);
    const Trained after = Train(spec, 2, 3, 3, 5, &before.state);
    EXPECT_EQ(after.errors, 0) << spec;
    EXPECT_EQ(after.state.step, 5);
  }
}

TEST(HybridReducerTest, ARanksOwnStateFitsItsPlaceOnly) {
  Mutex mutex;
  std::map<int, HookState> states;
  OnMesh(2, 2, [&](MeshRank& me) {
    const auto hook = HookOf("int8(start_step=0)");
    const auto reducer =
        Make(OptionsOf(me), Model(DType::kFloat32), hook.get(), me);
    ASSERT_OK(RunStep(*reducer, me.rank, OfStep(0)));
    ASSERT_OK(reducer->Commit());
    ASSERT_OK_AND_ASSIGN(HookState own, reducer->hook().SaveOwn());
    {
      MutexLock lock(&mutex);
      states[me.rank] = own;
    }
    const double norm = reducer->hook().ErrorNorm();
    ASSERT_OK(reducer->hook().LoadOwn(own, 1));
    EXPECT_EQ(reducer->hook().ErrorNorm(), norm);
    ASSERT_OK(me.data->Barrier()->Wait(kLong));
    mutex.Lock();
    const HookState other = states[me.rank ^ 1];
    const HookState replica = states[me.rank ^ 2];
    mutex.Unlock();
    EXPECT_THAT(reducer->hook().LoadOwn(other, 1),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("a rank with other slices")));
    EXPECT_OK(reducer->hook().LoadOwn(replica, 0));
  });
}

// As a checkpoint does, beside training.
TEST(HybridReducerTest, ACopyOfTheHookSavesTheSameState) {
  for (const std::string& spec :
       {std::string("int8(start_step=0)"), std::string(kPowerSgd)}) {
    OnMesh(2, 3, [&](MeshRank& me) {
      const auto hook = HookOf(spec);
      const auto reducer =
          Make(OptionsOf(me), Model(DType::kFloat32), hook.get(), me);
      for (int64_t step = 0; step < 3; ++step) {
        ASSERT_OK(RunStep(*reducer, me.rank, OfStep(step)));
        ASSERT_OK(reducer->Commit());
      }
      const auto copy = reducer->HookCopier()(HookOf(spec));
      ASSERT_OK(copy->Configure(reducer->parameters(), me.size));
      ASSERT_OK_AND_ASSIGN(const HookState own, reducer->hook().SaveOwn());
      ASSERT_OK(copy->LoadOwn(own, 1));
      EXPECT_EQ(copy->ErrorNorm(), reducer->hook().ErrorNorm());
      const int64_t replicas = me.replicas->sequence();
      ASSERT_OK_AND_ASSIGN(
          const HookState copied,
          GatherHookState(*copy, *me.data, kMaxStateBytes, kLong));
      EXPECT_EQ(me.replicas->sequence(), replicas) << "training's";
      ASSERT_OK_AND_ASSIGN(
          const HookState saved,
          GatherHookState(reducer->hook(), *me.data, kMaxStateBytes, kLong));
      EXPECT_EQ(SerializeHookState(copied), SerializeHookState(saved)) << spec;
      const Bucket& bucket = reducer->buckets()[0];
      EXPECT_THAT(copy->PrepareSlice(bucket, BucketSlices::Of(bucket.data, 3),
                                     *me.shard),
                  StatusIs(absl::StatusCode::kInternal, _));
    });
  }
}

TEST(HybridReducerTest, HooksChangeBetweenSteps) {
  OnMesh(2, 2, [](MeshRank& me) {
    const auto before = HookOf("allreduce");
    const auto after = HookOf("int8(start_step=0)");
    const auto reducer =
        Make(OptionsOf(me), Model(DType::kFloat32), before.get(), me);
    ASSERT_OK(RunStep(*reducer, me.rank, OfStep(0)));
    ASSERT_OK(reducer->Commit());
    ASSERT_OK(reducer->ChangeHook(after.get(), /*carry_state=*/false));
    const int64_t payload = me.replicas->payload_bytes();
    ASSERT_OK(RunStep(*reducer, me.rank, OfStep(1)));
    ASSERT_OK(reducer->Commit());
    int64_t whole = 0;
    for (const Bucket& bucket : reducer->buckets()) {
      whole += reducer->OwnSlice(bucket).bytes();
    }
    EXPECT_LT(me.replicas->payload_bytes() - payload, whole);
  });
}

// ---- errors ----

TEST(HybridReducerTest, RanksOfAllGroupsAreCompared) {
  OnMesh(2, 2, [](MeshRank& me) {
    const auto hook = HookOf(me.rank == 3 ? "fp16" : "allreduce");
    const auto reducer =
        Make(OptionsOf(me), Model(DType::kFloat32), hook.get(), me);
    EXPECT_THAT(RunStep(*reducer, me.rank, OfStep(0)),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("rank 3 differs from rank 0")));
  });
}

// Rank 0 has no group with rank 3 but that of all.
TEST(HybridReducerTest, ALossEndsTheWaitsOfAllGroups) {
  for (const bool over_networks : {false, true}) {
    const ConnectMesh connect = over_networks ? TwoHosts() : InProcessMesh();
    OnMesh(2, 2, connect, [](MeshRank& me) {
      const auto hook = HookOf(kPowerSgd);
      const auto reducer =
          Make(OptionsOf(me), Model(DType::kFloat32), hook.get(), me);
      ASSERT_OK(RunStep(*reducer, me.rank, OfStep(0)));
      ASSERT_OK(reducer->Commit());
      if (me.rank == 3) return;  // with its reducer and communicators
      const absl::Time begun = Clock::Real()->Now();
      EXPECT_THAT(RunStep(*reducer, me.rank, OfStep(1)),
                  AnyOf(StatusIs(absl::StatusCode::kUnavailable, _),
                        StatusIs(absl::StatusCode::kAborted, _)));
      EXPECT_LT(Clock::Real()->Now() - begun, kLong / 2);
      EXPECT_THAT(reducer->BeginStep(), Not(IsOk()));
    });
  }
}

TEST(HybridReducerTest, AnAbortIsOfAllGroups) {
  OnMesh(2, 2, [](MeshRank& me) {
    const auto hook = HookOf("allreduce");
    const auto reducer =
        Make(OptionsOf(me), Model(DType::kFloat32), hook.get(), me);
    reducer->Abort(absl::AbortedError("the test ends it"));
    for (Communicator* group :
         {me.data.get(), me.shard.get(), me.replicas.get()}) {
      EXPECT_THAT(
          group->Barrier()->Wait(kLong),
          StatusIs(absl::StatusCode::kAborted, HasSubstr("the test ends it")));
    }
  });
}

// ---- clipping ----

// Of what two replicas have each element counts once.
TEST(HybridReducerTest, TheNormIsThatOfOneProcess) {
  for (const bool by_vote : {false, true}) {
    schedule::Plan plan;
    plan.terms.commit_vote = true;
    schedule::FakeSchedule schedule(6, plan);
    OnMesh(2, 3, [&](MeshRank& me) {
      const auto hook = HookOf("allreduce");
      ReducerOptions options = OptionsOf(me);
      options.max_norm = 0.5;
      options.gate = schedule.gate(me.rank);
      options.norm_by_vote = by_vote;
      const auto reducer =
          Make(options, Model(DType::kFloat64), hook.get(), me);
      const std::vector<double> equal(6, 1.0);
      for (int64_t step = 0; step < 3; ++step) {
        const Value value = OfStep(step);
        double squares = 0;
        for (int i = 0; i < static_cast<int>(reducer->parameters().size());
             ++i) {
          const int64_t count =
              reducer->parameters()[static_cast<size_t>(i)].count();
          for (int64_t j = 0; j < count; ++j) {
            squares += std::pow(MeanOf(value, equal, i, j), 2);
          }
        }
        const double norm = std::sqrt(squares);
        const int64_t all = me.data->sequence();
        const int64_t shard = me.shard->sequence();
        const int64_t replicas = me.replicas->sequence();
        ASSERT_OK(RunStep(*reducer, me.rank, value));
        ASSERT_OK(reducer->Decide());
        EXPECT_NEAR(reducer->report().gradient_norm, norm, 1e-12 * norm);
        const double scale = 0.5 / (norm + 1e-6);
        EXPECT_NEAR(reducer->report().clip_scale, scale, 1e-12 * scale);
        ForOwnElements(*reducer, [&](double average, int parameter, int64_t i) {
          EXPECT_NEAR(average, scale * MeanOf(value, equal, parameter, i),
                      1e-12);
        });
        ASSERT_OK(reducer->Commit());
        if (step == 0) continue;  // which also compares the ranks
        const auto buckets = static_cast<int64_t>(reducer->buckets().size());
        EXPECT_EQ(me.data->sequence() - all, 0);
        EXPECT_EQ(me.shard->sequence() - shard, buckets + (by_vote ? 0 : 1));
        EXPECT_EQ(me.replicas->sequence() - replicas, buckets);
      }
    });
  }
}

}  // namespace
}  // namespace coxswain::hybrid_reducer_test
