// Ranks that keep slices of the averages, in buckets whose memory comes and
// goes, while an operator changes whether each micro-batch is exchanged: with a
// real coordinator, and `coxswain plan set`'s own code.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "cli/commands.h"
#include "client/accumulate/accumulator.h"
#include "client/reduce/bucket_slices.h"
#include "client/reduce/reducer.h"
#include "client/rpc/stub_factory.h"
#include "client/session/session.h"
#include "gtest/gtest.h"
#include "hooks/registry/registry.h"
#include "server/coordinator.h"
#include "tests/support/in_threads.h"
#include "tests/support/quick_coordinator.h"

namespace coxswain::sync_each_batch_test {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(20);
constexpr char kJob[] = "slices";
constexpr int kWindow = 4;
constexpr int64_t kCounts[] = {500, 33, 0, 700, 250, 900, 64, 300};
constexpr int kParameters = 8;

std::vector<ParameterSpec> Model() {
  std::vector<ParameterSpec> parameters;
  for (const int64_t count : kCounts) {
    ParameterSpec spec;
    spec.name = absl::StrCat("p", parameters.size());
    spec.shape = {count};
    parameters.push_back(spec);
  }
  return parameters;
}

// An element of the gradient of a micro-batch's mean loss.
double GradientOf(int rank, int64_t step, int micro, int parameter,
                  int64_t element) {
  return std::sin(static_cast<double>(element) + 10 * parameter + 100 * rank +
                  1000 * static_cast<double>(step) + 7000 * micro);
}

// What a window of one rank was like.
struct Window {
  bool each = false;  // as the plan has it
  int exchanges = 0;
  double error = 0;  // of the own slices' averages, the largest
  int64_t sums = 0;  // bytes of gradients kept for the window's end, at most
};

// One rank's training loop.
class Rank {
 public:
  explicit Rank(Session& session) : session_(session) {}

  // Runs so many windows, with this call before each.
  absl::Status Train(int64_t windows,
                     const std::function<void(int64_t window)>& before) {
    COXSWAIN_RETURN_IF_ERROR(Begin());
    for (int64_t window = 0; window < windows; ++window) {
      before(window);
      COXSWAIN_RETURN_IF_ERROR(RunWindow(window));
    }
    return absl::OkStatus();
  }

  const std::vector<Window>& windows() const { return windows_; }

 private:
  absl::Status Begin() {
    COXSWAIN_ASSIGN_OR_RETURN(world_, session_.World());
    const schedule::Plan plan = session_.schedule().plan();
    COXSWAIN_ASSIGN_OR_RETURN(hook_, MakeHook("allreduce"));
    ReducerOptions options;
    options.buckets = {1000, 2500};
    options.timeout = kTimeout;
    options.slices = options.release_buckets = true;
    COXSWAIN_ASSIGN_OR_RETURN(options.gate, session_.schedule().Gate());
    FollowPlan(plan, session_.world_size(), &options);
    COXSWAIN_ASSIGN_OR_RETURN(reducer_,
                              Reducer::Create(options, Model(), hook_.get(),
                                              &world_->communicator()));
    COXSWAIN_ASSIGN_OR_RETURN(
        Accumulator accumulator,
        Accumulator::Create({plan, session_.rank(), session_.world_size()}));
    accumulator_ = std::make_unique<Accumulator>(std::move(accumulator));
    return absl::OkStatus();
  }

  absl::Status RunWindow(int64_t window) {
    windows_.emplace_back();
    windows_.back().each = accumulator_->plan().terms.sync_each_batch;
    MicroBatch micro;
    do {
      COXSWAIN_ASSIGN_OR_RETURN(micro, accumulator_->BeginMicroBatch());
      if (micro.exchange) {
        COXSWAIN_RETURN_IF_ERROR(Exchange(micro));
      } else {
        Sum(micro);
      }
    } while (!micro.sync);
    Compare(window);
    if (!next_plan_) return absl::OkStatus();
    COXSWAIN_RETURN_IF_ERROR(accumulator_->ChangePlan(*next_plan_));
    COXSWAIN_RETURN_IF_ERROR(reducer_->ChangePlan(*next_plan_));
    next_plan_.reset();
    return absl::OkStatus();
  }

  // The micro-batch's gradient, with what was summed up before it.
  std::vector<float> Gradient(const MicroBatch& micro, int parameter) {
    std::vector<float> gradient(static_cast<size_t>(kCounts[parameter]));
    for (size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = static_cast<float>(micro.loss_scale *
                                       GradientOf(session_.rank(), micro.step,
                                                  micro.micro, parameter,
                                                  static_cast<int64_t>(i)));
      if (!sums_.empty()) {
        gradient[i] += sums_[static_cast<size_t>(parameter)][i];
      }
    }
    return gradient;
  }

  void Sum(const MicroBatch& micro) {
    std::vector<std::vector<float>> sums;
    int64_t bytes = 0;
    for (int i = 0; i < kParameters; ++i) {
      sums.push_back(Gradient(micro, i));
      bytes += static_cast<int64_t>(sums.back().size() * sizeof(float));
    }
    sums_ = std::move(sums);
    windows_.back().sums = std::max(windows_.back().sums, bytes);
  }

  absl::Status Exchange(const MicroBatch& micro) {
    const WindowSum sum = accumulator_->Sum();
    COXSWAIN_RETURN_IF_ERROR(reducer_->BeginStep(TicketOf(sum), sum.divisor));
    for (int i = kParameters; i-- > 0;) {
      std::vector<float> gradient = Gradient(micro, i);
      Span span;
      span.data = gradient.data();
      span.count = kCounts[i];
      COXSWAIN_RETURN_IF_ERROR(reducer_->MarkReady(i, span));
    }
    sums_.clear();
    COXSWAIN_RETURN_IF_ERROR(reducer_->Finish());
    COXSWAIN_ASSIGN_OR_RETURN(const schedule::Decision decision,
                              reducer_->Decide());
    if (decision.plan) next_plan_ = decision.plan;
    ++windows_.back().exchanges;
    return reducer_->Commit();
  }

  // Compares the own slices with the mean over the window's micro-batches of
  // all ranks.
  void Compare(int64_t window) {
    const int ranks = session_.world_size();
    for (const Bucket& bucket : reducer_->buckets()) {
      const Span own = reducer_->OwnSlice(bucket);
      const int64_t begin = BucketSlices::Of(bucket.data, ranks)
                                .begin(bucket.data.count, session_.rank());
      for (int64_t i = 0; i < own.count; ++i) {
        const double average = static_cast<const float*>(own.data)[i];
        const double expected = Expected(bucket, begin + i, window);
        double& error = windows_.back().error;
        error = std::max(error, std::abs(average - expected));
      }
    }
  }

  double Expected(const Bucket& bucket, int64_t element, int64_t window) const {
    for (const GradientSlot& slot : bucket.gradients) {
      const int64_t place = element - slot.offset;
      if (place < 0 || place >= slot.count) continue;
      double sum = 0;
      for (int rank = 0; rank < session_.world_size(); ++rank) {
        for (int micro = 0; micro < kWindow; ++micro) {
          sum += GradientOf(rank, window, micro, slot.parameter, place);
        }
      }
      return sum / (kWindow * session_.world_size());
    }
    return NAN;
  }

  Session& session_;
  std::shared_ptr<ProcessGroup> world_;
  std::unique_ptr<Hook> hook_;
  std::unique_ptr<Reducer> reducer_;
  std::unique_ptr<Accumulator> accumulator_;
  std::optional<schedule::Plan> next_plan_;
  std::vector<std::vector<float>> sums_;  // by parameter; empty: none
  std::vector<Window> windows_;
};

class SyncEachBatchTest : public testing::Test {
 protected:
  void SetUp() override {
    server::CoordinatorOptions options = QuickCoordinator();
    options.listen = "127.0.0.1:0";
    auto started = server::Coordinator::Start(options);
    ASSERT_OK(started);
    coordinator_ = *std::move(started);
    address_ = absl::StrCat("127.0.0.1:", coordinator_->port());
  }

  std::unique_ptr<Session> Join(int slot, int world_size) {
    SessionOptions options;
    options.coordinator = address_;
    options.job = kJob;
    options.identity = {"host-a", slot};
    options.host = "host-a";
    options.local_rank = slot;
    options.world_size = world_size;
    options.join_timeout = kTimeout;
    options.collective_timeout = kTimeout;
    JobManifest manifest;
    manifest.accumulation_steps = kWindow;
    manifest.parameters = Model();
    auto session = Session::Join(options, manifest);
    EXPECT_OK(session);
    return session.ok() ? *std::move(session) : nullptr;
  }

  // `coxswain plan set`.
  void SetPlan(const std::string& change) {
    PlanSetOptions options;
    options.job = kJob;
    options.changes = {change};
    options.timeout = kTimeout;
    EXPECT_OK(coxswain::SetPlan(options, *ConnectCoordinator(address_, {}),
                                RandomSource::System()));
  }

  std::unique_ptr<server::Coordinator> coordinator_;
  std::string address_;
};

TEST_F(SyncEachBatchTest, ItIsChangedOnOneStepOfAllRanks) {
  constexpr int kRanks = 3;
  constexpr int64_t kWindows = 30;
  std::vector<std::vector<Window>> windows(kRanks);
  InThreads(kRanks, [&](int slot) {
    const auto session = Join(slot, kRanks);
    ASSERT_NE(session, nullptr);
    Rank rank(*session);
    EXPECT_OK(rank.Train(kWindows, [&](int64_t window) {
      if (session->rank() != 0) return;
      if (window == 10) SetPlan("sync_each_batch=true");
      if (window == 20) SetPlan("sync_each_batch=false");
    }));
    windows[static_cast<size_t>(session->rank())] = rank.windows();
    EXPECT_OK(session->Leave("done"));
  });
  int64_t whole = 0;
  for (const int64_t count : kCounts) whole += count * 4;
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto& run = windows[static_cast<size_t>(rank)];
    ASSERT_EQ(run.size(), static_cast<size_t>(kWindows));
    int changes = 0;
    for (size_t i = 0; i < run.size(); ++i) {
      SCOPED_TRACE(absl::StrCat("rank ", rank, ", window ", i));
      EXPECT_EQ(run[i].each, windows[0][i].each);
      if (i > 0 && run[i].each != run[i - 1].each) ++changes;
      EXPECT_EQ(run[i].exchanges, run[i].each ? kWindow : 1);
      // What the slices are added up in is there anyway.
      EXPECT_EQ(run[i].sums, run[i].each ? 0 : whole);
      // Of values below 1, in float32, whose order of adding differs.
      EXPECT_LE(run[i].error, 1e-6);
    }
    EXPECT_EQ(changes, 2);
    EXPECT_FALSE(run[10].each);
    EXPECT_TRUE(run[15].each);
    EXPECT_FALSE(run[29].each);
  }
}

}  // namespace
}  // namespace coxswain::sync_each_batch_test
