// Over shared memory, where sums have one order, a rank's slice has the bits
// that it has in the whole bucket's averages: under reducers, with buckets of a
// few elements and of more than a slot holds. So has it where buckets have
// memory only while gradients are in them.

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/random.h"
#include "base/status_matchers.h"
#include "client/comm/shm/shm_communicator.h"
#include "client/reduce/bucket_slices.h"
#include "client/reduce/reducer.h"
#include "gtest/gtest.h"
#include "hooks/registry/registry.h"
#include "tests/conformance/connected_group.h"
#include "tests/hooks/every_hook.h"

namespace coxswain::slice_bits_test {
namespace {

constexpr absl::Duration kSoon = absl::Seconds(60);
constexpr int64_t kSteps = 4;

struct SliceCase {
  std::string name;
  std::string spec;
  DType dtype = DType::kFloat32;
};

std::ostream& operator<<(std::ostream& out, const SliceCase& of) {
  return out << of.spec;
}

std::vector<ParameterSpec> Model(DType dtype) {
  return {NamedParameter("a", {7, 5}, dtype),
          NamedParameter("b", {13}, dtype),
          NamedParameter("c", {301, 203}, dtype),
          NamedParameter("d", {}, dtype),
          NamedParameter("e", {150, 64, 3}, dtype),
          NamedParameter("f", {90000}, dtype),
          NamedParameter("g", {16, 16}, dtype)};
}

class SliceBitsTest : public testing::TestWithParam<SliceCase> {};

// A reducer with its hook.
struct Ranked {
  std::unique_ptr<Hook> hook;
  std::unique_ptr<Reducer> reducer;
};

enum class Buckets { kWhole, kSlices, kReleased };

Ranked MakeRanked(const SliceCase& of, Buckets buckets,
                  Communicator* communicator) {
  Ranked made;
  auto hook = MakeHook(of.spec);
  EXPECT_OK(hook);
  made.hook = *std::move(hook);
  ReducerOptions options;
  options.buckets = {2000, 200000};
  options.timeout = kSoon;
  options.rebuild = false;
  options.slices = buckets != Buckets::kWhole;
  options.release_buckets = buckets == Buckets::kReleased;
  auto reducer =
      Reducer::Create(options, Model(of.dtype), made.hook.get(), communicator);
  EXPECT_OK(reducer);
  made.reducer = *std::move(reducer);
  return made;
}

void Fill(const Span& view, uint64_t stream) {
  const CounterRandom random(17, stream);
  for (int64_t i = 0; i < view.count; ++i) {
    const double value = 2 * random.Uniform(static_cast<uint64_t>(i)) - 1;
    if (view.dtype == DType::kFloat64) {
      static_cast<double*>(view.data)[i] = value;
    } else {
      static_cast<float*>(view.data)[i] = static_cast<float>(value);
    }
  }
}

void Exchange(Reducer& reducer, int rank, int64_t step) {
  ASSERT_OK(reducer.BeginStep());
  const int count = static_cast<int>(reducer.parameters().size());
  for (int parameter = 0; parameter < count; ++parameter) {
    // In memory that is gone once it is marked.
    Span gradient = reducer.GradientView(parameter);
    std::vector<double> memory(static_cast<size_t>(gradient.count));
    gradient.data = memory.data();
    Fill(gradient,
         static_cast<uint64_t>(parameter + 100 * rank + 10000 * step));
    ASSERT_OK(reducer.MarkReady(parameter, gradient));
  }
  ASSERT_OK(reducer.Finish());
}

std::string BytesOf(const Span& span) {
  return std::string(static_cast<const char*>(span.data),
                     static_cast<size_t>(span.bytes()));
}

void CompareOn(const SliceCase& of, Communicator& communicator) {
  const int rank = communicator.rank();
  const Ranked whole = MakeRanked(of, Buckets::kWhole, &communicator);
  const Ranked sliced = MakeRanked(of, Buckets::kSlices, &communicator);
  const Ranked released = MakeRanked(of, Buckets::kReleased, &communicator);
  for (int64_t step = 0; step < kSteps; ++step) {
    Exchange(*whole.reducer, rank, step);
    for (const Ranked* some : {&sliced, &released}) {
      Exchange(*some->reducer, rank, step);
      for (const Bucket& bucket : whole.reducer->buckets()) {
        const Bucket& other =
            some->reducer->buckets()[static_cast<size_t>(bucket.index)];
        const Span own = BucketSlices::Of(bucket.data, communicator.size())
                             .Slice(bucket.data, rank);
        EXPECT_TRUE(BytesOf(some->reducer->OwnSlice(other)) == BytesOf(own))
            << of.spec << ": bucket " << bucket.index << " of rank " << rank
            << ", step " << step << (some == &released ? ", released" : "");
      }
      ASSERT_OK(some->reducer->Commit());
    }
    ASSERT_OK(whole.reducer->Commit());
  }
}

TEST_P(SliceBitsTest, SlicesHaveTheBitsOfWholeAverages) {
  for (const int size : {2, 3, 4}) {
    const auto group = ConnectGroup(size, kSoon, ConnectShm);
    std::vector<std::thread> ranks;
    for (const auto& communicator : group) {
      ASSERT_NE(communicator, nullptr);
      ranks.emplace_back([&] { CompareOn(GetParam(), *communicator); });
    }
    for (std::thread& rank : ranks) rank.join();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Hooks, SliceBitsTest,
    testing::Values(
        SliceCase{"AllReduce", "allreduce"},
        SliceCase{"AllReduceFloat64", "allreduce", DType::kFloat64},
        SliceCase{"Fp16", "fp16"}, SliceCase{"Bf16", "bf16"},
        SliceCase{"Fp16OfAllReduce", "fp16(allreduce)"},
        SliceCase{"PowerSgd", "powersgd(rank=2,start_step=2)"},
        SliceCase{"PowerSgdFloat64", "powersgd(rank=3,start_step=2)",
                  DType::kFloat64},
        SliceCase{"PowerSgdPyTorch",
                  "powersgd(rank=2,start_step=2,mode=pytorch)"},
        SliceCase{"Fp16OfPowerSgd", "fp16(powersgd(rank=2,start_step=2))"},
        SliceCase{"AcpSgd", "acp_sgd(rank=2,start_step=2)"},
        SliceCase{"BatchedPowerSgd", "batched_powersgd(rank=2,start_step=2)"}),
    [](const testing::TestParamInfo<SliceCase>& info) {
      return info.param.name;
    });

}  // namespace
}  // namespace coxswain::slice_bits_test
