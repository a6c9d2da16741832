// What peers declare costs no more memory than they are charged for it: the
// memory is measured, as this program's operator new hands it out.
#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/fake_clock.h"
#include "base/status_matchers.h"
#include "server/parameter/parameter_store.h"

namespace {

std::atomic<int64_t> allocated{0};  // bytes

void* Allocate(size_t size) {
  void* const memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) std::abort();
  allocated += static_cast<int64_t>(malloc_usable_size(memory));
  return memory;
}

void Free(void* memory) {
  if (memory == nullptr) return;
  allocated -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(size_t size) { return Allocate(size); }
void* operator new[](size_t size) { return Allocate(size); }
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete[](void* memory) noexcept { Free(memory); }
void operator delete(void* memory, size_t) noexcept { Free(memory); }
void operator delete[](void* memory, size_t) noexcept { Free(memory); }

namespace coxswain::server {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

Fence MakeFence(const std::string& job = "job") {
  Fence fence;
  fence.job = job;
  fence.generation = Generation(job == "job" ? 7 : 8);
  return fence;
}

CollectiveOperation Sum(uint64_t id, int64_t bytes) {
  CollectiveOperation operation;
  operation.id = id;
  operation.name = "t";
  operation.version = static_cast<int64_t>(id);
  operation.reduction = Reduction::kSum;
  operation.dtype = "float32";
  operation.bytes = bytes;
  operation.what = "all-reduce";
  operation.range = {0, bytes, 0, 1};
  operation.timeout = absl::Minutes(1);
  return operation;
}

// A peer and all that it has at a store.
class Peer {
 public:
  explicit Peer(ParameterStore* parameters, const std::string& job = "job")
      : parameters_(parameters), fence_(MakeFence(job)) {
    // The peer's own memory is not measured.
    participants_.reserve(1 << 13);
  }

  absl::Status JoinGroup(const std::string& group, int rank, int size) {
    outbox_ = std::make_shared<Outbox>([] {});
    auto participant =
        parameters_->JoinGroup(fence_, group, rank, size, outbox_);
    if (!participant.ok()) return participant.status();
    participants_.push_back(*std::move(participant));
    return absl::OkStatus();
  }
  absl::Status Begin(const CollectiveOperation& operation) {
    return participants_.back()->Begin(operation);
  }
  absl::Status Give(uint64_t operation, const std::string& bytes) {
    return participants_.back()->Append(operation, 0, bytes, Crc32c(bytes));
  }
  // The first error of an operation.
  absl::Status Refusal() {
    while (auto delivery =
               outbox_ == nullptr ? std::nullopt : outbox_->Take()) {
      if (!delivery->status.ok()) return delivery->status;
    }
    return absl::OkStatus();
  }
  void End() {
    parameters_->OnGenerationEnded(fence_.job, fence_.generation,
                                   absl::AbortedError("over"));
    participants_.clear();
  }

 private:
  ParameterStore* const parameters_;
  const Fence fence_;
  std::shared_ptr<Outbox> outbox_;  // of the last participant
  std::vector<std::unique_ptr<ParameterStore::Participant>> participants_;
};

// What a peer sends, `count` times.
struct Declaration {
  std::string name;
  int count = 0;
  std::function<void(Peer*)> prepare;
  std::function<absl::Status(Peer*, int)> send;
};

std::vector<Declaration> Declarations() {
  const auto in_group = [](int size) {
    return [size](Peer* peer) { EXPECT_OK(peer->JoinGroup("g", 0, size)); };
  };
  const auto nothing = [](Peer*) {};
  return {
      // 570 KB on the wire, of 81 bytes each, which named 7 TiB.
      {"OperationsOfLargeTensors", 7'000, nothing,
       [](Peer* peer, int i) {
         if (i % 3'500 == 0) {
           EXPECT_OK(peer->JoinGroup("g", i / 3'500, 2));
         }
         return peer->Begin(
             Sum(static_cast<uint64_t>(i) + 1, int64_t{1} << 30));
       }},
      {"OperationsInALargeGroup", 200, in_group(1 << 14),
       [](Peer* peer, int i) {
         return peer->Begin(Sum(static_cast<uint64_t>(i) + 1, 4));
       }},
      {"OperationsWithLongNames", 1'000, in_group(2),
       [](Peer* peer, int i) {
         CollectiveOperation operation = Sum(static_cast<uint64_t>(i) + 1, 4);
         operation.name = std::string(1024, 'n');
         operation.what = std::string(1024, 'w');
         return peer->Begin(operation);
       }},
      {"SmallChunks", 1'000, in_group(2),
       [](Peer* peer, int i) {
         const auto id = static_cast<uint64_t>(i) + 1;
         const absl::Status begun = peer->Begin(Sum(id, 4));
         return begun.ok() ? peer->Give(id, "abcd") : begun;
       }},
      {"ErrorsThatAreNotRead", 1'000, in_group(2),
       [](Peer* peer, int i) {
         return peer->Begin(Sum(static_cast<uint64_t>(i) + 1, 3));
       }},
      {"Groups", 4'000, nothing,
       [](Peer* peer, int i) {
         return peer->JoinGroup(absl::StrCat(std::string(1000, 'g'), i), 0, 2);
       }},
  };
}

class DeclaredMemoryTest : public testing::TestWithParam<Declaration> {
 protected:
  FakeClock clock_;
};

TEST_P(DeclaredMemoryTest, IsChargedBeforeItIsTaken) {
  const Declaration& tested = GetParam();
  ParameterStore parameters({}, &clock_);
  auto peer = std::make_unique<Peer>(&parameters);
  const int64_t before = allocated;
  tested.prepare(peer.get());
  for (int i = 0; i < tested.count; ++i) {
    ASSERT_OK(tested.send(peer.get(), i));
  }
  const int64_t cost = allocated - before;
  EXPECT_GT(cost, 0);
  EXPECT_LE(cost, parameters.bytes());
  EXPECT_LE(parameters.bytes(), ParameterLimits().max_declared_bytes);
  // Neither is it charged for much more than it costs.
  EXPECT_LE(parameters.bytes(), 8 * cost);
  peer->End();
  EXPECT_EQ(parameters.bytes(), 0);
}

INSTANTIATE_TEST_SUITE_P(Declarations, DeclaredMemoryTest,
                         testing::ValuesIn(Declarations()),
                         [](const auto& tested) { return tested.param.name; });

// Those whose refusal is an answer; a reader that does not read is sent none.
std::vector<Declaration> RefusedDeclarations() {
  std::vector<Declaration> refused;
  for (const Declaration& one : Declarations()) {
    if (one.name != "ErrorsThatAreNotRead") refused.push_back(one);
  }
  return refused;
}

class DeclaredLimitTest : public testing::TestWithParam<Declaration> {
 protected:
  FakeClock clock_;
};

TEST_P(DeclaredLimitTest, IsNamedAndHarmsNoOtherJob) {
  const Declaration& tested = GetParam();
  ParameterLimits limits;
  limits.max_declared_bytes = 50'000;
  ParameterStore parameters(limits, &clock_);
  auto peer = std::make_unique<Peer>(&parameters);
  tested.prepare(peer.get());
  absl::Status status;
  int sent = 0;
  for (; status.ok() && sent < tested.count; ++sent) {
    status = tested.send(peer.get(), sent);
    if (status.ok()) status = peer->Refusal();
  }
  EXPECT_LT(sent, tested.count);
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("max_declared_bytes of 50000"),
                             ContainsRegex("[0-9]+ more do not fit beside "
                                           "[0-9]+ in use"))));
  EXPECT_LE(parameters.bytes(),
            limits.max_declared_bytes + int64_t{sent} * (4 + 512 + 64));
  auto other = std::make_unique<Peer>(&parameters, "other");
  EXPECT_OK(other->JoinGroup("g", 0, 2));
  EXPECT_OK(other->Begin(Sum(1, 4)));
  EXPECT_OK(other->Refusal());
  // What a job gives back can be used again.
  peer->End();
  other->End();
  EXPECT_EQ(parameters.bytes(), 0);
}

TEST(JobMemoryTest, JobsWhoseGenerationsHaveEndedCostNothing) {
  FakeClock clock;
  ParameterStore parameters({}, &clock);
  Fence fence;
  const auto play = [&](int jobs) {
    for (int i = 0; i < jobs; ++i) {
      fence.generation = Generation(fence.generation.value() + 1);
      fence.job = absl::StrCat(std::string(100, 'j'), fence.generation.value());
      ASSERT_OK(parameters.JoinGroup(fence, "g", 0, 1,
                                     std::make_shared<Outbox>([] {})));
      parameters.OnGenerationEnded(fence.job, fence.generation,
                                   absl::AbortedError("over"));
    }
  };
  constexpr int kJobs = 1000;
  // The ends of so many generations are remembered.
  play(static_cast<int>(GenerationGuard::kRemembered) + 1);
  const int64_t before = allocated;
  play(kJobs);
  EXPECT_LT(allocated - before, int64_t{kJobs} * 100);
}

INSTANTIATE_TEST_SUITE_P(Declarations, DeclaredLimitTest,
                         testing::ValuesIn(RefusedDeclarations()),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace coxswain::server
