// What is read from a module and its optimizer, and put back: their device,
// their bytes, and the state that recovery copies.

#include <c10/core/impl/FakeGuardImpl.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "client/torch/elastic_module_state.h"
#include "client/torch/module_tensors.h"
#include "client/torch/state_bytes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::torch {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::HasSubstr;

// ---- device ----

TEST(DeviceStreamTest, AModuleIsWhereItsParametersAre) {
  EXPECT_EQ(DeviceOf(*::torch::nn::Linear(2, 3)), Device());
  EXPECT_EQ(DeviceOf(*::torch::nn::ReLU()), Device());
}

// Debian's libtorch has no CUDA; with one that has, there is nothing to see.
TEST(DeviceStreamTest, WithoutCudaThereIsNoStream) {
  if (c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) GTEST_SKIP();
  EXPECT_THAT(CurrentStream(Device{Device::Kind::kCuda, 0}),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("built without CUDA")));
}

// Its streams are 0 until another one is made current.
TEST(DeviceStreamTest, TheStreamIsTheOneThatIsCurrent) {
  if (c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) GTEST_SKIP();
  using Fake = c10::impl::FakeGuardImpl<c10::DeviceType::CUDA>;
  static const Fake fake;
  c10::impl::device_guard_impl_registry[static_cast<size_t>(
      c10::DeviceType::CUDA)] = &fake;
  const Device device = {Device::Kind::kCuda, 1};
  ASSERT_OK_AND_ASSIGN(const DeviceStream stream, CurrentStream(device));
  EXPECT_EQ(stream, nullptr);
  fake.exchangeStream(
      c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, 1), 5));
  EXPECT_THAT(CurrentStream(device),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("set ReducerOptions::caller_stream")));
  Fake::resetStreams();
  c10::impl::device_guard_impl_registry[static_cast<size_t>(
      c10::DeviceType::CUDA)] = nullptr;
}

// ---- bytes ----

struct Sized : ::torch::nn::Module {
  explicit Sized(int64_t width) {
    fc = register_module("fc", ::torch::nn::Linear(3, width));
    norm = register_module("norm", ::torch::nn::BatchNorm1d(width));
  }
  ::torch::nn::Linear fc{nullptr};
  ::torch::nn::BatchNorm1d norm{nullptr};
};

TEST(GuardedTest, WhateverIsThrownBecomesAnError) {
  EXPECT_THAT(Guarded("a stage", [] { throw 7; }),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("a stage: an exception was thrown")));
  EXPECT_THAT(Guarded("a stage", [] { throw std::runtime_error("why"); }),
              StatusIs(absl::StatusCode::kInternal, "a stage: why"));
}

TEST(ModuleBytesTest, ParametersAndBuffersComeBack) {
  Sized saved(4);
  saved.norm->running_mean.fill_(0.5);
  std::string bytes;
  ASSERT_OK(SaveModule(saved, &bytes));
  const char* const memory = bytes.data();
  saved.norm->running_mean.fill_(0.75);
  ASSERT_OK(SaveModule(saved, &bytes));
  EXPECT_EQ(bytes.data(), memory) << "it is used again";
  Sized loaded(4);
  ASSERT_OK(LoadModule(bytes, &loaded));
  EXPECT_TRUE(loaded.fc->weight.equal(saved.fc->weight));
  EXPECT_TRUE(loaded.norm->running_mean.equal(saved.norm->running_mean));
  EXPECT_TRUE(
      loaded.norm->num_batches_tracked.equal(saved.norm->num_batches_tracked));
}

TEST(ModuleBytesTest, AnotherModelIsRefusedAndStaysAsItWas) {
  std::string bytes;
  ASSERT_OK(SaveModule(Sized(4), &bytes));
  Sized other(5);
  const auto before = other.norm->weight.detach().clone();
  EXPECT_THAT(LoadModule(bytes, &other),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("fc.weight: saved Float [4, 3], here "
                                       "Float [5, 3]"),
                             HasSubstr("norm.running_mean"))));
  EXPECT_TRUE(other.norm->weight.equal(before));
}

TEST(ModuleBytesTest, WhatIsCutOffOrLongerIsRefused) {
  std::string bytes;
  ASSERT_OK(SaveModule(Sized(2), &bytes));
  Sized net(2);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THAT(LoadModule(bytes.substr(0, size), &net),
                StatusIs(absl::StatusCode::kDataLoss, _))
        << size;
  }
  EXPECT_THAT(LoadModule(bytes + "x", &net),
              StatusIs(absl::StatusCode::kDataLoss, _));
  std::string endless(8, '\xff');
  EXPECT_THAT(LoadModule(endless, &net),
              StatusIs(absl::StatusCode::kDataLoss, _));
}

// ---- the state of elastic training ----

struct Net : ::torch::nn::Module {
  Net() {
    fc = register_module("fc", ::torch::nn::Linear(4, 3));
    norm = register_module("norm", ::torch::nn::BatchNorm1d(3));
  }
  ::torch::Tensor forward(const ::torch::Tensor& x) {
    return norm(fc(x)).square().mean();
  }
  ::torch::nn::Linear fc{nullptr};
  ::torch::nn::BatchNorm1d norm{nullptr};
};

// A worker: a model, its optimizer, and what is kept of them.
template <typename Optimizer>
struct Worker {
  explicit Worker(Optimizer&& made_optimizer, std::shared_ptr<Net> made_net)
      : net(std::move(made_net)), optimizer(std::move(made_optimizer)) {
    auto created = ElasticModuleState::Create(net, &optimizer);
    EXPECT_OK(created);
    state = std::move(created).value();
  }
  void Train(int steps) {
    ::torch::manual_seed(11);
    for (int i = 0; i < steps; ++i) {
      optimizer.zero_grad();
      net->forward(::torch::randn({8, 4})).backward();
      optimizer.step();
    }
  }
  // As Recover does it.
  void CopyFrom(Worker& other) {
    const auto copy = [](const std::vector<Span>& to,
                         const std::vector<Span>& from) {
      ASSERT_EQ(to.size(), from.size());
      for (size_t i = 0; i < to.size(); ++i) {
        std::memcpy(to[i].data, from[i].data,
                    static_cast<size_t>(from[i].bytes()));
      }
    };
    copy(state->Tensors(), other.state->Tensors());
    ASSERT_OK(state->TakeTensors());
    copy(state->LooseTensors(), other.state->LooseTensors());
    ASSERT_OK(state->TakeTensors());
    ASSERT_OK_AND_ASSIGN(const std::string bytes, other.state->Save());
    ASSERT_OK(state->Load(bytes, other.state->step()));
  }
  std::string Bits() {
    std::string bits;
    for (const Span& span : state->Tensors()) {
      bits.append(static_cast<const char*>(span.data),
                  static_cast<size_t>(span.bytes()));
    }
    return bits;
  }

  std::shared_ptr<Net> net;
  Optimizer optimizer;
  std::unique_ptr<ElasticModuleState> state;
};

using ::torch::optim::Adam;
using ::torch::optim::SGD;

Worker<Adam> AdamWorker() {
  auto net = std::make_shared<Net>();
  return Worker<Adam>(Adam(net->parameters(), 0.01), net);
}

Worker<SGD> SgdWorker(double lr = 0.1) {
  auto net = std::make_shared<Net>();
  return Worker<SGD>(
      SGD(net->parameters(), ::torch::optim::SGDOptions(lr).momentum(0.9)),
      net);
}

template <typename W>
uint64_t DigestOf(W& worker) {
  const absl::StatusOr<uint64_t> digest = worker.state->Digest();
  EXPECT_OK(digest);
  return digest.value_or(0);
}

template <typename W>
void ACopyTrainsOnBitForBit(W source, W copy) {
  source.Train(5);
  EXPECT_NE(DigestOf(source), DigestOf(copy));
  source.state->record().counters["samples"] = 40;
  source.state->record().position["train"] = 5;
  source.state->record().blobs["note"] = std::string("a\0b", 3);
  copy.CopyFrom(source);
  EXPECT_EQ(DigestOf(source), DigestOf(copy));
  EXPECT_EQ(copy.state->step(), 5);
  EXPECT_EQ(copy.state->record().counters["samples"], 40);
  EXPECT_EQ(copy.state->record().blobs["note"], std::string("a\0b", 3));
  source.Train(3);
  copy.Train(3);
  EXPECT_EQ(source.Bits(), copy.Bits());
  EXPECT_EQ(DigestOf(source), DigestOf(copy));
}

TEST(ElasticModuleStateTest, ACopyWithAdamTrainsOnBitForBit) {
  ACopyTrainsOnBitForBit(AdamWorker(), AdamWorker());
}

TEST(ElasticModuleStateTest, ACopyWithMomentumTrainsOnBitForBit) {
  ACopyTrainsOnBitForBit(SgdWorker(), SgdWorker());
}

TEST(ElasticModuleStateTest, TheLearningRateGoesAlong) {
  Worker<SGD> source = SgdWorker(0.025);
  Worker<SGD> copy = SgdWorker(0.1);
  copy.CopyFrom(source);
  EXPECT_EQ(copy.optimizer.param_groups()[0].options().get_lr(), 0.025);
}

TEST(ElasticModuleStateTest, ADifferentMomentumIsSeen) {
  Worker<SGD> a = SgdWorker();
  a.Train(2);
  Worker<SGD> b = SgdWorker();
  b.CopyFrom(a);
  ASSERT_EQ(DigestOf(a), DigestOf(b));
  ::torch::NoGradGuard no_grad;
  auto& state = static_cast<::torch::optim::SGDParamState&>(
      *b.optimizer.state().begin()->second);
  state.momentum_buffer().view(-1)[0].add_(1e-3);
  EXPECT_NE(DigestOf(a), DigestOf(b));
}

TEST(ElasticModuleStateTest, RollbackUndoesWhatAStepHasChanged) {
  Worker<SGD> worker = SgdWorker();
  worker.Train(2);
  worker.state->record().counters["samples"] = 16;
  worker.state->Keep();
  const auto mean = worker.net->norm->running_mean.clone();

  worker.state->Begin();
  worker.net->forward(::torch::randn({8, 4})).backward();
  worker.state->record().counters["samples"] += 8;
  EXPECT_FALSE(::torch::equal(worker.net->norm->running_mean, mean));
  worker.state->Rollback();
  EXPECT_TRUE(::torch::equal(worker.net->norm->running_mean, mean));
  EXPECT_EQ(worker.state->record().counters["samples"], 16);
  EXPECT_EQ(worker.net->fc->weight.grad().abs().sum().item<float>(), 0);

  // Between steps there is nothing to undo.
  worker.state->record().counters["samples"] += 8;
  worker.state->Rollback();
  EXPECT_EQ(worker.state->record().counters["samples"], 24);
}

TEST(ElasticModuleStateTest, ToLookAtACounterChangesNothing) {
  ElasticRecord record;
  record.counters["samples"] = 3;
  const std::string before = record.Serialize();
  record.counters["looked at"];
  record.blobs["looked at"];
  record.position["train"];
  EXPECT_EQ(record.Serialize(), before);
  ASSERT_OK_AND_ASSIGN(ElasticRecord parsed, ElasticRecord::Parse(before));
  EXPECT_EQ(parsed.counters.size(), 1);
}

TEST(ElasticModuleStateTest, AnUndeclaredWindowKeepsWhatWasNotedBefore) {
  Worker<SGD> worker = SgdWorker();
  worker.state->Keep();
  const auto mean = worker.net->norm->running_mean.clone();
  worker.state->record().counters["samples"] = 8;
  worker.net->forward(::torch::randn({8, 4}));
  worker.state->BeginUndeclared();
  worker.state->record().counters["samples"] = 16;
  worker.state->BeginUndeclared();
  worker.state->Rollback();
  EXPECT_EQ(worker.state->record().counters["samples"], 8);
  EXPECT_TRUE(::torch::equal(worker.net->norm->running_mean, mean));
}

TEST(ElasticModuleStateTest, NonsenseIsRefused) {
  Worker<SGD> worker = SgdWorker();
  worker.Train(1);
  ASSERT_OK_AND_ASSIGN(const std::string bytes, worker.state->Save());
  for (const size_t size :
       {size_t{0}, size_t{5}, size_t{20}, size_t{60}, bytes.size() / 2}) {
    EXPECT_THAT(worker.state->Load(bytes.substr(0, size), 1),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("")))
        << size;
  }
}

TEST(ElasticModuleStateTest, ElementsThatShareMemoryAreRefused) {
  for (const ::torch::Tensor& shared :
       {::torch::zeros({1}).expand({4}),
        ::torch::zeros({4}).as_strided({3, 2}, {1, 1})}) {
    auto net = std::make_shared<::torch::nn::Module>();
    net->register_buffer("shared", shared);
    net->register_parameter("w", ::torch::zeros({2}));
    SGD optimizer(net->parameters(), 0.1);
    EXPECT_THAT(ElasticModuleState::Create(net, &optimizer),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("\"shared\" cannot be copied")));
  }
}

// Of one shape, in memory of different orders, and with gaps.
std::vector<::torch::Tensor> SameShapes() {
  return {
      ::torch::rand({2, 3, 4, 4}),
      ::torch::rand({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast),
      ::torch::rand({4, 4, 3, 2}).permute({3, 2, 1, 0}),
      ::torch::rand({2, 3, 4, 8}).slice(3, 0, 8, 2)};
}

Worker<SGD> WorkerOfLayout(size_t layout) {
  auto net = std::make_shared<Net>();
  net->register_parameter("w", SameShapes()[layout]);
  net->register_buffer("b", SameShapes()[layout]);
  return Worker<SGD>(SGD(net->parameters(), 0.1), net);
}

TEST(ElasticModuleStateTest, ACopyIsTheSameWhateverTheStrides) {
  const size_t layouts = SameShapes().size();
  for (size_t from = 0; from < layouts; ++from) {
    for (size_t to = 0; to < layouts; ++to) {
      Worker<SGD> source = WorkerOfLayout(from);
      Worker<SGD> copy = WorkerOfLayout(to);
      const ::torch::Tensor w = *copy.net->named_parameters().find("w");
      const ::torch::Tensor b = *copy.net->named_buffers().find("b");
      const std::vector<int64_t> strides = w.strides().vec();
      copy.CopyFrom(source);
      EXPECT_TRUE(::torch::equal(w, *source.net->named_parameters().find("w")))
          << from << " to " << to;
      EXPECT_TRUE(::torch::equal(b, *source.net->named_buffers().find("b")))
          << from << " to " << to;
      EXPECT_EQ(w.strides().vec(), strides) << "they stay the rank's own";
      EXPECT_EQ(copy.Bits(), source.Bits());
    }
  }
}

}  // namespace
}  // namespace coxswain::torch
