// Tensors that pass through the coordinator: ranks of two groups that begin,
// give, read and leave as they like, deadlines, and the ends of generations
// between any of it. Afterwards nothing is held, and nothing was charged that
// is not given back.

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/fake_clock.h"
#include "server/parameter/parameter_store.h"
#include "tests/fuzz/decoders.h"
#include "tests/fuzz/fuzz_bytes.h"

namespace coxswain {
namespace {

constexpr int kRanks = 3;
constexpr int kGroups = 2;

constexpr server::Reduction kReductions[] = {
    server::Reduction::kSum, server::Reduction::kConcat,
    server::Reduction::kSet, server::Reduction::kMax, server::Reduction::kMin};

// So that limits are met.
server::ParameterLimits SmallLimits() {
  server::ParameterLimits limits;
  limits.max_tensor_bytes = 1 << 20;
  limits.max_job_bytes = 1 << 20;
  limits.max_declared_bytes = 100'000;
  limits.max_total_bytes = 2 << 20;
  limits.max_tensors = 8;
  limits.max_operations = 8;
  limits.max_outbox_bytes = 10'000;
  return limits;
}

class ParameterFuzz {
 public:
  explicit ParameterFuzz(FuzzBytes* bytes) : bytes_(bytes) {
    fence_.job = "job";
    fence_.generation = Generation(1);
  }

  void Act() {
    const auto group = static_cast<int>(bytes_->Below(kGroups));
    const auto rank = static_cast<int>(bytes_->Below(kRanks));
    Stream& stream = streams_[{group, rank}];
    switch (bytes_->Below(8)) {
      case 0:
        return Leave(&stream);
      case 1:
        return Read(&stream);
      case 2:
        clock_.Advance(absl::Seconds(bytes_->Byte()));
        return parameters_.Tick(clock_.Now());
      case 3:
        return End();
      case 4:
      case 5:
        return Begin(group, rank, &stream);
      default:
        return Give(&stream);
    }
  }

  void Finish() {
    End();
    for (auto& [place, stream] : streams_) Leave(&stream);
    COXSWAIN_CHECK(parameters_.bytes() == 0);
  }

 private:
  // A rank as its stream has it: past an error nothing more comes.
  struct Stream {
    std::shared_ptr<server::Outbox> outbox;
    std::unique_ptr<server::ParameterStore::Participant> participant;
    uint64_t operation = 0;
    std::map<uint64_t, int64_t> given;  // bytes, by operation
  };

  void Note(const absl::Status& status, Stream* stream) {
    if (!status.ok() || stream->outbox->ended().has_value()) Leave(stream);
  }
  void Leave(Stream* stream) { *stream = Stream(); }

  void Read(Stream* stream) {
    if (stream->outbox == nullptr) return;
    const bool ended = stream->outbox->ended().has_value();
    while (auto delivery = stream->outbox->Take()) {
      COXSWAIN_CHECK(!ended);
      COXSWAIN_CHECK(delivery->status.ok() || delivery->bytes().empty());
      COXSWAIN_CHECK(delivery->operation <= stream->operation);
    }
  }

  // The stream's next operation; of the ranks' streams, most do the same.
  void Begin(int group, int rank, Stream* stream) {
    if (stream->participant == nullptr) {
      const auto outbox = std::make_shared<server::Outbox>(
          [] {}, SmallLimits().max_outbox_bytes);
      auto participant = parameters_.JoinGroup(
          fence_, absl::StrCat("group-", group), rank, kRanks, outbox);
      if (!participant.ok()) return;
      *stream = {outbox, *std::move(participant), 0, {}};
    }
    server::CollectiveOperation operation;
    operation.id = ++stream->operation;
    operation.name = "t";
    operation.version = static_cast<int64_t>(operation.id);
    operation.dtype = "uint8";
    operation.what = "any";
    operation.timeout = absl::Seconds(60);
    operation.bytes = 8;
    const uint8_t kind = bytes_->Byte();
    operation.reduction = kReductions[kind % 5];
    if (operation.reduction == server::Reduction::kSet) {
      operation.root = kind / 5 % kRanks;
      operation.peer = kind / 15 % 2 == 0 ? -1 : kind / 30 % kRanks;
    }
    operation.range = {0, 8, 0, 1};
    switch (bytes_->Below(6)) {
      case 1:
        operation.range = {};
        break;
      case 2:
        operation.bytes = 0;
        operation.range = {};
        break;
      case 3:
        operation.bytes = static_cast<int64_t>(bytes_->Number());
        operation.range.bytes = static_cast<int64_t>(bytes_->Number());
        break;
      case 4:
        operation.range = {static_cast<int64_t>(bytes_->Number()),
                           static_cast<int64_t>(bytes_->Number()),
                           static_cast<int64_t>(bytes_->Number()),
                           static_cast<int64_t>(bytes_->Number())};
        break;
      default:
        break;
    }
    Note(stream->participant->Begin(operation), stream);
  }

  void Give(Stream* stream) {
    if (stream->participant == nullptr) return;
    const uint8_t how = bytes_->Byte();
    const uint64_t operation =
        stream->operation - (how % 4 == 3 ? how / 4 % 4 : 0);
    const std::string data(how % 8 == 7 ? size_t{how} : 8,
                           static_cast<char>(how));
    int64_t& given = stream->given[operation];
    const absl::Status status = stream->participant->Append(
        operation, given, data, Crc32c(data) + (how % 64 == 63 ? 1 : 0));
    given += static_cast<int64_t>(data.size());
    Note(status, stream);
  }

  void End() {
    parameters_.OnGenerationEnded(fence_.job, fence_.generation,
                                  absl::AbortedError("over"));
    fence_.generation = Generation(fence_.generation.value() + 1);
  }

  FuzzBytes* const bytes_;
  FakeClock clock_;
  server::Fence fence_;
  server::ParameterStore parameters_{SmallLimits(), &clock_};
  std::map<std::pair<int, int>, Stream> streams_;  // by group and rank
};

}  // namespace

void FuzzExchange(absl::string_view input) {
  FuzzBytes bytes(input);
  ParameterFuzz parameters(&bytes);
  while (!bytes.empty()) parameters.Act();
  parameters.Finish();
}

}  // namespace coxswain
