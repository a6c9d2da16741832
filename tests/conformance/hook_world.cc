#include "tests/conformance/hook_world.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/float16.h"
#include "base/random.h"
#include "base/status_matchers.h"
#include "client/comm/device_queue.h"
#include "client/comm/in_process/loopback_communicator.h"
#include "gtest/gtest.h"
#include "hooks/registry/registry.h"
#include "tests/conformance/lockstep_world.h"
#include "tests/conformance/stream_communicator.h"

namespace coxswain {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(60);
// More calls of Advance than any exchange takes.
constexpr int kToTheEnd = 100;

void Write(double value, DType dtype, char* out) {
  const auto put = [out](auto typed) {
    std::memcpy(out, &typed, sizeof(typed));
  };
  if (dtype == DType::kFloat64) return put(value);
  const float narrow = static_cast<float>(value);
  if (dtype == DType::kFloat32) return put(narrow);
  put(dtype == DType::kFloat16 ? FloatToFloat16(narrow)
                               : FloatToBFloat16(narrow));
}

double Read(DType dtype, const char* in) {
  const auto get = [in](auto typed) {
    std::memcpy(&typed, in, sizeof(typed));
    return typed;
  };
  if (dtype == DType::kFloat64) return get(double{});
  if (dtype == DType::kFloat32) return double{get(float{})};
  const uint16_t bits = get(uint16_t{});
  return double{dtype == DType::kFloat16 ? Float16ToFloat(bits)
                                         : BFloat16ToFloat(bits)};
}

// Returns the sum of four uniforms of 16 bits, with mean 0 and variance 1.
// Tests draw millions of these.
double NearlyNormal(uint64_t bits) {
  double sum = 0;
  for (int part = 0; part < 4; ++part) {
    sum += static_cast<double>((bits >> (16 * part)) & 0xffff) + 0.5;
  }
  return (sum * 0x1p-16 - 2) * std::sqrt(3.0);
}

// One rank's bucket and its memory.
struct RankBucket {
  Bucket bucket;
  std::string memory;
};

RankBucket MakeBucket(const std::vector<ParameterSpec>& parameters,
                      const HookWorld::Buckets& buckets, size_t index,
                      const Gradients& values, int ranks) {
  RankBucket made;
  made.bucket.index = static_cast<int>(index);
  made.bucket.last = index + 1 == buckets.size();
  Span& data = made.bucket.data;
  data.dtype = parameters[static_cast<size_t>(buckets[index][0])].dtype;
  for (const int number : buckets[index]) {
    const int64_t count = parameters[static_cast<size_t>(number)].count();
    made.bucket.gradients.push_back({number, data.count, count});
    data.count += count;
  }
  // Slices have padding, which is NaN in all types.
  const Span padded = BucketSlices::Of(data, ranks).Padded(data);
  made.memory.resize(static_cast<size_t>(padded.bytes()) + 1, '\xff');
  data.data = made.memory.data();
  char* out = made.memory.data();
  for (const int number : buckets[index]) {
    for (const double value : values[static_cast<size_t>(number)]) {
      Write(value, data.dtype, out);
      out += SizeOf(data.dtype);
    }
  }
  return made;
}

void ReadBucket(const Bucket& bucket, Gradients& values) {
  for (const GradientSlot& slot : bucket.gradients) {
    const Span span = bucket.Gradient(slot);
    auto& out = values[static_cast<size_t>(slot.parameter)];
    for (int64_t i = 0; i < span.count; ++i) {
      out.push_back(
          Read(span.dtype, static_cast<const char*>(span.Slice(i, 1).data)));
    }
  }
}

}  // namespace

// A bucket of all ranks, from Prepare to the end of its exchanges.
struct HookWorld::Flight {
  // For what the last calls of Advance began.
  void Await() {
    for (const WorkPtr& work : works) EXPECT_OK(work->Wait(kDeadline));
    works.clear();
  }

  std::vector<RankBucket> made;
  std::vector<std::unique_ptr<coxswain::Exchange>> exchanges;
  std::vector<WorkPtr> works;
};

std::vector<ParameterSpec> OddParameters(DType dtype) {
  const std::vector<std::vector<int64_t>> shapes = {
      {6, 3, 3, 3}, {6},    {},     {10, 24}, {24, 10},
      {0, 5},       {7, 1}, {1, 9}, {12, 8},  {2, 2, 2}};
  std::vector<ParameterSpec> parameters;
  for (const auto& shape : shapes) {
    ParameterSpec parameter;
    parameter.name = absl::StrCat("p", parameters.size(), ".weight");
    parameter.shape = shape;
    parameter.dtype = dtype;
    parameters.push_back(parameter);
  }
  return parameters;
}

Gradients NormalGradients(const std::vector<ParameterSpec>& parameters,
                          uint64_t stream, int rank, int64_t step) {
  Gradients gradients;
  for (const ParameterSpec& parameter : parameters) {
    const CounterRandom random(
        stream, Mix64(StableHash(parameter.name) +
                      Mix64(static_cast<uint64_t>(step * 1000 + rank))));
    std::vector<double> values;
    for (int64_t i = 0; i < parameter.count(); ++i) {
      values.push_back(NearlyNormal(random.Bits(static_cast<uint64_t>(i))));
    }
    gradients.push_back(std::move(values));
  }
  return gradients;
}

void AddTo(Gradients& sum, const Gradients& a, double scale) {
  sum.resize(a.size());
  for (size_t p = 0; p < a.size(); ++p) {
    sum[p].resize(a[p].size());
    for (size_t i = 0; i < a[p].size(); ++i) sum[p][i] += scale * a[p][i];
  }
}

double RelativeDifference(const Gradients& a, const Gradients& b) {
  double difference = 0;
  double norm = 0;
  EXPECT_EQ(a.size(), b.size());
  for (size_t p = 0; p < b.size(); ++p) {
    EXPECT_EQ(a[p].size(), b[p].size());
    for (size_t i = 0; i < b[p].size(); ++i) {
      difference += (a[p][i] - b[p][i]) * (a[p][i] - b[p][i]);
      norm += b[p][i] * b[p][i];
    }
  }
  return std::sqrt(norm > 0 ? difference / norm : difference);
}

HookWorld::Buckets HookWorld::DefaultBuckets(
    const std::vector<ParameterSpec>& parameters) {
  Buckets buckets;
  for (size_t i = parameters.size(); i-- > 0;) {
    if (buckets.empty() || buckets.back().size() == 2) buckets.emplace_back();
    buckets.back().push_back(static_cast<int>(i));
  }
  return buckets;
}

Gradients MeanOver(const std::vector<Gradients>& local) {
  Gradients mean;
  for (const Gradients& one : local) {
    AddTo(mean, one, 1.0 / static_cast<double>(local.size()));
  }
  return mean;
}

std::vector<double> ValuesOf(const StateTensor& tensor) {
  std::vector<double> values;
  const size_t width = SizeOf(tensor.dtype);
  for (size_t at = 0; at < tensor.data.size(); at += width) {
    values.push_back(Read(tensor.dtype, tensor.data.data() + at));
  }
  return values;
}

Gradients MeanError(const HookState& state,
                    const std::vector<ParameterSpec>& parameters, int size) {
  Gradients mean;
  for (const ParameterSpec& parameter : parameters) {
    std::vector<double> values(static_cast<size_t>(parameter.count()), 0.0);
    for (const StateTensor& tensor : state.tensors) {
      // "error" is a mean already, "error/3" is that of rank 3.
      const bool own = tensor.kind.rfind("error/", 0) == 0;
      if (tensor.parameter != parameter.name) continue;
      if (tensor.kind != "error" && !own) continue;
      const std::vector<double> add = ValuesOf(tensor);
      EXPECT_EQ(add.size(), values.size()) << tensor.kind;
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] += own ? add[i] / size : add[i];
      }
    }
    mean.push_back(std::move(values));
  }
  return mean;
}

HookWorld::HookWorld(const std::string& spec,
                     std::vector<ParameterSpec> parameters, int size,
                     Buckets buckets)
    : HookWorld(
          [&spec] {
            auto hook = MakeHook(spec);
            EXPECT_OK(hook);
            return *std::move(hook);
          },
          std::move(parameters), size, std::move(buckets)) {}

HookWorld::HookWorld(const Maker& make, std::vector<ParameterSpec> parameters,
                     int size, Buckets buckets)
    : parameters_(std::move(parameters)) {
  const auto world = LockstepWorld::Create(size);
  for (int rank = 0; rank < size; ++rank) {
    communicators_.push_back(world->MakeRank(rank));
    hooks_.push_back(make());
    if (!on_device()) continue;
    RankDevice& device = devices_.emplace_back();
    device.runtime =
        std::make_unique<EmulatedRuntime>(parameters_[0].device.index);
    device.stream = *device.runtime->CreateStream();
    device.ready = *device.runtime->CreateEvent();
    communicators_.back() = std::make_unique<StreamCommunicator>(
        std::move(communicators_.back()), *device.runtime);
  }
  Rebucket(buckets.empty() ? DefaultBuckets(parameters_) : std::move(buckets));
}

HookWorld::~HookWorld() {
  hooks_.clear();
  communicators_.clear();
  for (const RankDevice& device : devices_) {
    device.runtime->DestroyEvent(device.ready);
    device.runtime->DestroyStream(device.stream);
    EXPECT_EQ(device.runtime->leaked(), 0);
  }
}

void HookWorld::BeforeEachRank(std::function<void(int rank)> call) {
  before_each_rank_ = std::move(call);
}

void HookWorld::Rebucket(Buckets buckets) {
  buckets_ = std::move(buckets);
  for (auto& hook : hooks_) EXPECT_OK(hook->Configure(parameters_, size()));
}

void HookWorld::Reconfigure(std::vector<ParameterSpec> parameters) {
  parameters_ = std::move(parameters);
  Rebucket(DefaultBuckets(parameters_));
}

bool HookWorld::on_device() const {
  return !parameters_.empty() &&
         parameters_[0].device.kind == Device::Kind::kCuda;
}

void HookWorld::MoveToDevice(int rank, Bucket& bucket) {
  RankDevice& device = devices_[static_cast<size_t>(rank)];
  const auto index = static_cast<size_t>(bucket.index);
  const auto bytes = static_cast<size_t>(
      BucketSlices::Of(bucket.data, size()).Padded(bucket.data).bytes());
  // Some buckets start off the multiples of 16 bytes.
  const size_t offset = index % 4 * SizeOf(bucket.data.dtype);
  if (device.memory.size() <= index) device.memory.resize(index + 1);
  if (device.memory[index].size() < bytes + offset + 16) {
    device.memory[index].resize(bytes + offset + 16);
  }
  char* const data = device.memory[index].data() + offset;
  EXPECT_OK(device.runtime->Copy(data, bucket.data.data, bucket.data.bytes(),
                                 device.stream));
  EXPECT_OK(device.runtime->Record(device.ready, device.stream));
  bucket.data.data = data;
  bucket.data.device = device.runtime->device();
  bucket.ready = device.ready;
}

void HookWorld::AwaitDevices() {
  if (!on_device()) return;
  std::vector<WorkPtr> works;
  for (size_t rank = 0; rank < communicators_.size(); ++rank) {
    DeviceQueue& queue = *communicators_[rank]->device_queue();
    // A hook that enqueues nothing has not waited for it.
    EXPECT_OK(queue.runtime().StreamWait(queue.stream(), devices_[rank].ready));
    works.push_back(queue.Mark());
  }
  for (const WorkPtr& work : works) EXPECT_OK(work->Wait(kDeadline));
}

int64_t HookWorld::payload_bytes() const {
  for (const auto& communicator : communicators_) {
    EXPECT_EQ(communicator->payload_bytes(),
              communicators_[0]->payload_bytes());
  }
  return communicators_[0]->payload_bytes();
}

int64_t HookWorld::collectives() const {
  for (const auto& communicator : communicators_) {
    EXPECT_EQ(communicator->sequence(), communicators_[0]->sequence());
  }
  return communicators_[0]->sequence();
}

bool HookWorld::Begin(size_t index, const std::vector<Gradients>& local,
                      Flight& flight) {
  for (const Gradients& own : local) {
    flight.made.push_back(
        MakeBucket(parameters_, buckets_, index, own, size()));
  }
  for (size_t rank = 0; rank < hooks_.size(); ++rank) {
    RankBucket& made = flight.made[rank];
    made.bucket.data.data = made.memory.data();
    if (on_device()) MoveToDevice(static_cast<int>(rank), made.bucket);
    before_each_rank_(static_cast<int>(rank));
    Communicator& communicator = *communicators_[rank];
    const BucketSlices slices = BucketSlices::Of(made.bucket.data, size());
    auto exchange =
        slices_ ? hooks_[rank]->PrepareSlice(made.bucket, slices, communicator)
                : hooks_[rank]->Prepare(made.bucket, communicator);
    EXPECT_OK(exchange);
    if (!exchange.ok()) {
      AwaitDevices();
      return false;
    }
    flight.exchanges.push_back(*std::move(exchange));
  }
  return true;
}

bool HookWorld::Advance(Flight& flight) {
  flight.Await();
  for (size_t rank = 0; rank < flight.exchanges.size(); ++rank) {
    before_each_rank_(static_cast<int>(rank));
    auto work = flight.exchanges[rank]->Advance();
    EXPECT_OK(work);
    if (!work.ok()) return false;
    if (*work != nullptr) flight.works.push_back(*std::move(work));
  }
  // All ranks end in the same call.
  if (flight.works.empty()) {
    flight.exchanges.clear();
  } else {
    EXPECT_EQ(flight.works.size(), flight.exchanges.size());
  }
  return !flight.works.empty();
}

bool HookWorld::End(const Flight& flight, std::vector<Gradients>& results) {
  AwaitDevices();
  if (slices_) {
    EndSlices(flight, results);
    return true;
  }
  bool same = true;
  for (size_t rank = 0; rank < hooks_.size(); ++rank) {
    const Span& data = flight.made[rank].bucket.data;
    same = same && (data.count == 0 ||
                    std::memcmp(data.data, flight.made[0].bucket.data.data,
                                static_cast<size_t>(data.bytes())) == 0);
    ReadBucket(flight.made[rank].bucket, results[rank]);
  }
  return same;
}

void HookWorld::EndSlices(const Flight& flight,
                          std::vector<Gradients>& results) {
  Bucket whole = flight.made[0].bucket;
  std::string memory(static_cast<size_t>(whole.data.bytes()), '\0');
  const Span first = whole.data;
  whole.data.data = memory.data();
  const BucketSlices slices = BucketSlices::Of(first, size());
  for (int rank = 0; rank < size(); ++rank) {
    const Span own =
        slices.Slice(flight.made[static_cast<size_t>(rank)].bucket.data, rank);
    if (own.count == 0) continue;
    std::memcpy(slices.Slice(whole.data, rank).data, own.data,
                static_cast<size_t>(own.bytes()));
  }
  for (Gradients& of_rank : results) ReadBucket(whole, of_rank);
}

std::vector<BucketSlices> HookWorld::Slices() const {
  std::vector<BucketSlices> slices;
  for (const std::vector<int>& bucket : buckets_) {
    Span data;
    for (const int number : bucket) {
      const ParameterSpec& parameter = parameters_[static_cast<size_t>(number)];
      data.dtype = parameter.dtype;
      data.count += parameter.count();
    }
    slices.push_back(BucketSlices::Of(data, size()));
  }
  return slices;
}

Gradients HookWorld::OwnSlices(const std::vector<Gradients>& by_rank) const {
  Gradients own = by_rank[0];
  const std::vector<BucketSlices> slices = Slices();
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    int64_t element = 0;
    for (const int number : buckets_[bucket]) {
      const auto parameter = static_cast<size_t>(number);
      for (size_t i = 0; i < own[parameter].size(); ++i, ++element) {
        const auto owner =
            static_cast<size_t>(element / slices[bucket].each) % by_rank.size();
        own[parameter][i] = by_rank[owner][parameter][i];
      }
    }
  }
  return own;
}

bool HookWorld::ExchangeBucket(size_t index,
                               const std::vector<Gradients>& local,
                               int advances, std::vector<Gradients>& results) {
  Flight flight;
  if (!Begin(index, local, flight)) return true;
  for (int i = 0; i < advances; ++i) {
    if (!Advance(flight)) break;
  }
  flight.Await();
  return End(flight, results);
}

std::vector<Gradients> HookWorld::ExchangeInFlight(
    const std::vector<Gradients>& local) {
  std::vector<Gradients> results(hooks_.size(), Gradients(parameters_.size()));
  std::vector<std::unique_ptr<Flight>> flights;
  for (bool any = true; any;) {
    size_t earlier = flights.size();
    any = earlier < buckets_.size();
    if (any) {
      flights.push_back(std::make_unique<Flight>());
      if (!Begin(earlier, local, *flights.back())) return results;
      Advance(*flights.back());
    }
    while (earlier-- > 0) any = Advance(*flights[earlier]) || any;
  }
  for (const auto& flight : flights) End(*flight, results);
  return results;
}

std::pair<std::vector<Gradients>, bool> HookWorld::ExchangeAll(
    const std::vector<Gradients>& local) {
  EXPECT_EQ(local.size(), hooks_.size());
  std::vector<Gradients> results(hooks_.size(), Gradients(parameters_.size()));
  bool same = true;
  for (size_t index = 0; index < buckets_.size(); ++index) {
    same = ExchangeBucket(index, local, kToTheEnd, results) && same;
  }
  return {std::move(results), same};
}

Gradients HookWorld::Exchange(const std::vector<Gradients>& local) {
  auto [results, same] = ExchangeAll(local);
  EXPECT_TRUE(same) << "bits differ between ranks";
  return std::move(results[0]);
}

std::vector<Gradients> HookWorld::ExchangeApart(
    const std::vector<Gradients>& local) {
  return ExchangeAll(local).first;
}

std::vector<NonFiniteGradient> HookWorld::NonFinite() {
  std::vector<std::string> seen;
  for (auto& hook : hooks_) {
    std::string& text = seen.emplace_back();
    for (const NonFiniteGradient& one : hook->non_finite()) {
      absl::StrAppend(&text, one.rank, " ", one.parameter, "; ");
    }
    EXPECT_EQ(text, seen[0]);
  }
  return hooks_[0]->non_finite();
}

void HookWorld::GiveUp(const std::vector<Gradients>& local, int advances) {
  std::vector<Gradients> results(hooks_.size(), Gradients(parameters_.size()));
  ExchangeBucket(0, local, kToTheEnd, results);
  ExchangeBucket(1, local, advances, results);
}

void HookWorld::Commit() {
  for (auto& hook : hooks_) EXPECT_OK(hook->Commit());
}

void HookWorld::Rollback() {
  for (auto& hook : hooks_) hook->Rollback();
}

Gradients HookWorld::Step(const std::vector<Gradients>& local) {
  Gradients result = Exchange(local);
  Commit();
  return result;
}

HookState HookWorld::Save() {
  std::vector<absl::StatusOr<HookState>> saved(
      hooks_.size(), absl::UnknownError("did not save"));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < hooks_.size(); ++rank) {
    threads.emplace_back([this, rank, &saved] {
      saved[rank] = hooks_[rank]->SaveState(*communicators_[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<HookState> shards;
  for (const auto& shard : saved) {
    EXPECT_OK(shard);
    if (!shard.ok()) return HookState();
    auto parsed = ParseHookState(SerializeHookState(*shard));
    EXPECT_OK(parsed);
    shards.push_back(*std::move(parsed));
  }
  auto merged = MergeHookStates(std::move(shards));
  EXPECT_OK(merged);
  return merged.ok() ? *std::move(merged) : HookState();
}

HookState HookWorld::SaveAlone(int rank) {
  LoopbackCommunicator alone;
  auto state = hook(rank).SaveState(alone);
  EXPECT_OK(state);
  return state.ok() ? *std::move(state) : HookState();
}

HookState HookWorld::SaveOwn(int rank, bool errors) {
  auto state = hook(rank).SaveOwn();
  EXPECT_OK(state);
  if (!state.ok()) return HookState();
  auto parsed = ParseHookState(SerializeHookState(*state));
  EXPECT_OK(parsed);
  std::vector<StateTensor>& tensors = parsed->tensors;
  const auto own = [](const StateTensor& tensor) {
    return tensor.kind.rfind("own_", 0) == 0;
  };
  if (!errors) {
    tensors.erase(std::remove_if(tensors.begin(), tensors.end(), own),
                  tensors.end());
  }
  return *std::move(parsed);
}

absl::Status HookWorld::Load(const HookState& state) {
  absl::Status first;
  for (int rank = 0; rank < size(); ++rank) {
    first.Update(hook(rank).LoadState(state, rank, size()));
  }
  return first;
}

}  // namespace coxswain
