#ifndef COXSWAIN_CLIENT_REDUCE_REDUCER_TEST_SUPPORT_H_
#define COXSWAIN_CLIENT_REDUCE_REDUCER_TEST_SUPPORT_H_

// What the reducer's tests share.

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "client/comm/held/held_communicator.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/comm/in_process/loopback_communicator.h"
#include "client/reduce/reducer.h"

namespace coxswain {

constexpr absl::Duration kSoon = absl::Seconds(20);

// What happened, in order, across threads.
class Log {
 public:
  void Add(std::string event) {
    MutexLock lock(&mutex_);
    events_.push_back(std::move(event));
    changed_.NotifyAll();
  }
  std::vector<std::string> events() const {
    MutexLock lock(&mutex_);
    return events_;
  }
  bool WaitForSize(size_t size) {
    MutexLock lock(&mutex_);
    return changed_.WaitFor(&mutex_, kSoon,
                            [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                              return events_.size() >= size;
                            });
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> events_ ABSL_GUARDED_BY(mutex_);
};

struct HookPlan {
  int phases = 1;        // collectives per bucket
  int fail_bucket = -1;  // whose Prepare fails
  bool fail_commit = false;
};

// Averages float32 and float64 buckets; phases after the first sum up nothing
// of interest.
class AverageHook : public Hook {
 public:
  explicit AverageHook(HookPlan plan = {}) : plan_(plan) {}

  std::string spec() const override { return "average"; }
  absl::Status Configure(const std::vector<ParameterSpec>&,
                         int world_size) override {
    world_size_ = world_size;
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override {
    if (bucket.index == plan_.fail_bucket) {
      return absl::InternalError("the hook broke");
    }
    return std::make_unique<Average>(this, bucket, &communicator);
  }
  absl::Status Commit() override {
    if (plan_.fail_commit) return absl::InternalError("the commit broke");
    ++step_;
    return absl::OkStatus();
  }
  void Rollback() override { ++rollbacks_; }
  int64_t step() const override { return step_; }
  absl::StatusOr<HookState> SaveState(Communicator&) override {
    return HookState();
  }
  absl::Status LoadState(const HookState&, int, int) override {
    return absl::OkStatus();
  }

  bool needs_frozen_layout() const override { return needs_frozen_layout_; }

  void set_needs_frozen_layout() { needs_frozen_layout_ = true; }
  int rollbacks() const { return rollbacks_; }
  Log& log() { return log_; }

 private:
  class Average : public Exchange {
   public:
    Average(AverageHook* hook, const Bucket& bucket, Communicator* communicator)
        : hook_(hook), bucket_(bucket), communicator_(communicator) {}
    absl::StatusOr<WorkPtr> Advance() override {
      hook_->log_.Add(absl::StrCat(bucket_.index, ".", phase_));
      if (phase_++ == 0) return communicator_->AllReduce(bucket_.data);
      if (phase_ <= hook_->plan_.phases) {
        Span span;
        span.data = &scratch_;
        span.count = 1;
        return communicator_->AllReduce(span);
      }
      if (bucket_.data.dtype == DType::kFloat64) {
        Divide<double>();
      } else {
        Divide<float>();
      }
      return WorkPtr();
    }

   private:
    template <typename T>
    void Divide() {
      T* data = static_cast<T*>(bucket_.data.data);
      for (int64_t i = 0; i < bucket_.data.count; ++i) {
        data[i] /= static_cast<T>(hook_->world_size_);
      }
    }

    AverageHook* const hook_;
    const Bucket bucket_;
    Communicator* const communicator_;
    float scratch_ = 0;
    int phase_ = 0;
  };

  const HookPlan plan_;
  int world_size_ = 0;
  int64_t step_ = 0;
  std::atomic<int> rollbacks_{0};
  bool needs_frozen_layout_ = false;
  Log log_;
};

// Returns a network on which nothing ends unless it is aborted.
inline std::unique_ptr<Communicator> Stuck() {
  return std::make_unique<HeldCommunicator>(
      std::make_unique<LoopbackCommunicator>());
}

// One rank whose memory is used up after so many buffers.
class ScarceCommunicator : public HeldCommunicator {
 public:
  explicit ScarceCommunicator(int buffers)
      : HeldCommunicator(std::make_unique<LoopbackCommunicator>()),
        left_(buffers) {
    Open();
  }
  absl::StatusOr<std::unique_ptr<BufferOwner>> AllocateBuffer(
      int64_t count, DType dtype) override {
    if (--left_ < 0) return absl::ResourceExhaustedError("it is used up");
    return HeldCommunicator::AllocateBuffer(count, dtype);
  }

 private:
  std::atomic<int> left_;
};

// Why a communicator was aborted.
inline std::string AbortReason(Communicator* communicator) {
  return std::string(communicator->Barrier()->Wait(kSoon).message());
}

// `count` parameters of 4 elements, each in a bucket of its own: parameter
// count - 1 in bucket 0.
inline std::vector<ParameterSpec> Parameters(int count) {
  std::vector<ParameterSpec> parameters;
  for (int i = 0; i < count; ++i) {
    ParameterSpec spec;
    spec.name = absl::StrCat("p", i);
    spec.shape = {2, 2};
    parameters.push_back(spec);
  }
  return parameters;
}

// Vectors of these sizes.
inline std::vector<ParameterSpec> ParametersOf(
    absl::Span<const int64_t> counts) {
  std::vector<ParameterSpec> parameters;
  for (const int64_t count : counts) {
    ParameterSpec spec;
    spec.name = absl::StrCat("p", parameters.size());
    spec.shape = {count};
    parameters.push_back(spec);
  }
  return parameters;
}

inline ReducerOptions OneBucketEach() {
  ReducerOptions options;
  options.buckets = {1, 1};
  options.timeout = kSoon;
  // Some of the networks below let nothing through.
  options.verify = false;
  return options;
}

inline Span SpanOf(std::vector<float>* values) {
  Span span;
  span.data = values->data();
  span.count = static_cast<int64_t>(values->size());
  return span;
}

inline std::vector<float> ValuesOf(const Span& span) {
  const float* data = static_cast<const float*>(span.data);
  return std::vector<float>(data, data + span.count);
}

inline std::vector<float> Gradient(const Reducer& reducer, int parameter) {
  return ValuesOf(reducer.GradientView(parameter));
}

inline void Fill(const Reducer& reducer, int parameter, float value) {
  const Span view = reducer.GradientView(parameter);
  std::fill_n(static_cast<float*>(view.data), view.count, value);
}

// Runs a function once per rank of an in-process world, each in a thread.
inline void OnRanks(int size,
                    const std::function<void(int, Communicator*)>& run) {
  const auto world = InProcessWorld::Create(size, kSoon);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&run, rank, communicator = world->MakeRank(rank)] {
      run(rank, communicator.get());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_REDUCER_TEST_SUPPORT_H_
