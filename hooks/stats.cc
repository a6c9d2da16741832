#include "hooks/stats.h"

#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "hooks/device/device_exchange.h"
#include "hooks/device/device_scratch.h"
#include "hooks/kernels/cuda/elementwise.h"
#include "hooks/non_finite.h"
#include "hooks/wrapper_hook.h"

namespace coxswain {
namespace {

// What one step adds.
struct StepCount {
  bool begun = false;
  bool non_finite = false;
  int rank = 0;
  int64_t payload_bytes = 0;
  int64_t collectives = 0;
  int64_t gradient_bytes = 0;
};

// Adds what a communicator counts between construction and destruction. All
// collectives are started by the thread that holds this, so they are h's.
class Metered {
 public:
  Metered(const Communicator& communicator, StepCount& step)
      : communicator_(communicator),
        step_(step),
        payload_bytes_(communicator.payload_bytes()),
        collectives_(communicator.sequence()) {}
  ~Metered() {
    step_.payload_bytes += communicator_.payload_bytes() - payload_bytes_;
    step_.collectives += communicator_.sequence() - collectives_;
  }
  Metered(const Metered&) = delete;
  Metered& operator=(const Metered&) = delete;

 private:
  const Communicator& communicator_;
  StepCount& step_;
  const int64_t payload_bytes_;
  const int64_t collectives_;
};

// Looks through a span on a GPU.
class DeviceLook {
 public:
  explicit DeviceLook(DeviceScratch& scratch) : scratch_(scratch) {}

  absl::StatusOr<WorkPtr> Start(const Span& data, DeviceQueue& queue) {
    const int64_t partials = CountNonFinitePartials(1);
    COXSWAIN_ASSIGN_OR_RETURN(
        const std::shared_ptr<void> memory,
        scratch_.Take(queue,
                      static_cast<int64_t>(sizeof(Question)) + 8 * partials));
    COXSWAIN_ASSIGN_OR_RETURN(host_,
                              scratch_.TakeHost(queue, sizeof(Question)));
    *static_cast<Question*>(host_->data) = Question{{0, data.count}, 0};
    auto* const question = static_cast<Question*>(memory.get());
    DeviceRuntime& runtime = queue.runtime();
    host_->copying = true;
    COXSWAIN_RETURN_IF_ERROR(
        runtime.Copy(question, host_->data, sizeof(Question), queue.stream()));
    LaunchTarget target = runtime.Target(queue.stream());
    EnqueueCountNonFinite(&target, data.dtype, data.data, &question->range, 1,
                          reinterpret_cast<int64_t*>(question + 1),
                          &question->found);
    COXSWAIN_RETURN_IF_ERROR(runtime.StatusOf(target));
    COXSWAIN_RETURN_IF_ERROR(
        runtime.Copy(host_->data, question, sizeof(Question), queue.stream()));
    COXSWAIN_RETURN_IF_ERROR(scratch_.Seal(queue));
    return queue.Mark();
  }

  bool started() const { return host_ != nullptr; }

  // Once that Work has ended.
  bool Found() {
    host_->copying = false;
    return static_cast<const Question*>(host_->data)->found > 0;
  }

 private:
  struct Question {
    ElementRange range;
    int64_t found = 0;
  };

  DeviceScratch& scratch_;
  std::shared_ptr<DeviceScratch::HostBlock> host_;
};

class StatsExchange : public Exchange {
 public:
  // `averages`: what of the bucket has averages in the end.
  StatsExchange(std::unique_ptr<Exchange> inner, const Bucket& bucket,
                const Span& averages, Communicator& communicator,
                StepCount& step, DeviceScratch& scratch)
      : inner_(std::move(inner)),
        bucket_(bucket),
        averages_(averages),
        communicator_(communicator),
        step_(step),
        look_(scratch) {}

  absl::StatusOr<WorkPtr> Advance() override {
    if (look_.started()) {
      step_.non_finite |= look_.Found();
      return WorkPtr();
    }
    absl::StatusOr<WorkPtr> work;
    {
      Metered metered(communicator_, step_);
      work = inner_->Advance();
    }
    if (!work.ok() || *work != nullptr) return work;
    DeviceQueue* const queue = communicator_.device_queue();
    const Span& data = averages_;
    if (data.device.kind != Device::Kind::kCpu && queue != nullptr &&
        SizeOf(data.dtype) > 1 && data.dtype != DType::kInt32 &&
        data.dtype != DType::kInt64) {
      // The inner exchange need not have waited for them.
      COXSWAIN_RETURN_IF_ERROR(AwaitGradients(bucket_, *queue));
      return look_.Start(data, *queue);
    }
    step_.non_finite |= AnyNonFinite(data);
    return work;
  }

 private:
  const std::unique_ptr<Exchange> inner_;
  const Bucket bucket_;
  const Span averages_;
  Communicator& communicator_;
  StepCount& step_;
  DeviceLook look_;
};

class StatsHook : public WrapperHook {
 public:
  StatsHook(std::string spec, int64_t every, std::unique_ptr<Hook> inner)
      : WrapperHook(std::move(spec), std::move(inner)), every_(every) {}

  absl::Status Configure(const std::vector<ParameterSpec>& parameters,
                         int world_size) override {
    scratch_.Clear();
    return WrapperHook::Configure(parameters, world_size);
  }

  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override {
    Begin(bucket, communicator);
    Metered metered(communicator, step_);
    COXSWAIN_ASSIGN_OR_RETURN(std::unique_ptr<Exchange> exchange,
                              inner().Prepare(bucket, communicator));
    return std::make_unique<StatsExchange>(std::move(exchange), bucket,
                                           bucket.data, communicator, step_,
                                           scratch_);
  }

  absl::StatusOr<std::unique_ptr<Exchange>> PrepareSlice(
      const Bucket& bucket, const BucketSlices& slices,
      Communicator& communicator) override {
    Begin(bucket, communicator);
    Metered metered(communicator, step_);
    COXSWAIN_ASSIGN_OR_RETURN(
        std::unique_ptr<Exchange> exchange,
        inner().PrepareSlice(bucket, slices, communicator));
    return std::make_unique<StatsExchange>(
        std::move(exchange), bucket,
        slices.Slice(bucket.data, communicator.rank()), communicator, step_,
        scratch_);
  }

  absl::Status Commit() override {
    COXSWAIN_RETURN_IF_ERROR(WrapperHook::Commit());
    const StepCount step = EndStep();
    MutexLock lock(&mutex_);
    ++total_.steps;
    total_.payload_bytes += step.payload_bytes;
    total_.collectives += step.collectives;
    total_.gradient_bytes += step.gradient_bytes;
    if (total_.steps % every_ == 0) {
      if (step.rank == 0) Log();
      logged_ = total_;
    }
    return absl::OkStatus();
  }

  void Rollback() override {
    WrapperHook::Rollback();
    const StepCount step = EndStep();
    MutexLock lock(&mutex_);
    if (step.begun) ++total_.rolled_back;
  }

  HookStats stats() const {
    MutexLock lock(&mutex_);
    return total_;
  }

 private:
  void Begin(const Bucket& bucket, const Communicator& communicator) {
    step_.begun = true;
    step_.rank = communicator.rank();
    step_.gradient_bytes += bucket.data.bytes();
  }

  // What the step in progress came to; the next one begins.
  StepCount EndStep() {
    const StepCount step = std::exchange(step_, StepCount());
    MutexLock lock(&mutex_);
    if (step.non_finite || (step.begun && !non_finite().empty())) {
      ++total_.non_finite;
    }
    return step;
  }

  // What was added since the last line.
  void Log() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    HookStats window = total_;
    window.payload_bytes -= logged_.payload_bytes;
    window.gradient_bytes -= logged_.gradient_bytes;
    window.collectives -= logged_.collectives;
    const auto per_step = [&](int64_t value) {
      return absl::StrFormat(
          "%.1f", static_cast<double>(value) / static_cast<double>(every_));
    };
    LogInfo("hook_stats",
            {{"hook", inner().spec()},
             {"step", step()},
             {"payload_bytes_per_step", per_step(window.payload_bytes)},
             {"collectives_per_step", per_step(window.collectives)},
             {"ratio", absl::StrFormat("%.2f", window.ratio())},
             {"non_finite_steps", total_.non_finite - logged_.non_finite},
             {"rolled_back_steps", total_.rolled_back - logged_.rolled_back}});
  }

  const int64_t every_;
  DeviceScratch scratch_;
  StepCount step_;  // in progress; the exchanges add to it
  mutable Mutex mutex_;
  HookStats total_ ABSL_GUARDED_BY(mutex_);
  HookStats logged_ ABSL_GUARDED_BY(mutex_);  // at the last line
};

}  // namespace

double HookStats::ratio() const {
  if (payload_bytes == 0) return std::numeric_limits<double>::infinity();
  return static_cast<double>(gradient_bytes) /
         static_cast<double>(payload_bytes);
}

std::unique_ptr<Hook> MakeStatsHook(std::string spec, int64_t every,
                                    std::unique_ptr<Hook> inner) {
  return std::make_unique<StatsHook>(std::move(spec), every, std::move(inner));
}

HookRow StatsRow() {
  HookRow row;
  row.description.name = "stats";
  row.description.help = "stats(h): hook h, and what it sends in the log";
  row.description.takes_inner = true;
  row.description.needs_inner = true;
  row.description.options = {
      IntOption("every", 100, 1, 1000000000,
                "committed steps between two lines in the log of rank 0"),
  };
  row.description.card = {
      "those of h",
      "those of h",
      "that of h, and a few counters",
      "those of h; the state is h's own and loads with or without stats",
      "runs that one more pass over the averaged gradients would slow down: "
      "they are looked through for infinities and NaNs",
  };
  row.on_device = true;
  row.make = [](std::string spec, OptionValues options,
                std::unique_ptr<Hook> inner) {
    return MakeStatsHook(std::move(spec), options.Int("every"),
                         std::move(inner));
  };
  return row;
}

std::optional<HookStats> StatsOf(const Hook& hook) {
  const auto* stats = dynamic_cast<const StatsHook*>(&hook);
  if (stats == nullptr) return std::nullopt;
  return stats->stats();
}

}  // namespace coxswain
