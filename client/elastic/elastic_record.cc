#include "client/elastic/elastic_record.h"

#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "schedule/ticket.h"

namespace coxswain {
namespace {

void PutNumber(int64_t number, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void PutText(absl::string_view text, std::string* bytes) {
  PutNumber(static_cast<int64_t>(text.size()), bytes);
  bytes->append(text.data(), text.size());
}

// Takes fields off the front; once one does not fit, all that follow are empty.
class FieldReader {
 public:
  explicit FieldReader(absl::string_view bytes) : rest_(bytes) {}
  int64_t Number() {
    int64_t number = 0;
    const absl::string_view bytes = Take(sizeof(number));
    if (good_) std::memcpy(&number, bytes.data(), sizeof(number));
    return number;
  }
  std::string Text() { return std::string(Take(Number())); }
  bool done() const { return good_ && rest_.empty(); }
  bool good() const { return good_; }

 private:
  absl::string_view Take(int64_t size) {
    good_ = good_ && size >= 0 && static_cast<size_t>(size) <= rest_.size();
    if (!good_) return "";
    const absl::string_view taken = rest_.substr(0, static_cast<size_t>(size));
    rest_.remove_prefix(taken.size());
    return taken;
  }
  absl::string_view rest_;
  bool good_ = true;
};

// A zero stands for a number that is not there: to look at one makes it.
void PutNumbers(const std::map<std::string, int64_t>& numbers,
                std::string* bytes) {
  int64_t count = 0;
  for (const auto& [name, number] : numbers) count += number != 0 ? 1 : 0;
  PutNumber(count, bytes);
  for (const auto& [name, number] : numbers) {
    if (number == 0) continue;
    PutText(name, bytes);
    PutNumber(number, bytes);
  }
}

std::map<std::string, int64_t> ReadNumbers(FieldReader* reader) {
  std::map<std::string, int64_t> numbers;
  for (int64_t left = reader->Number(); left > 0 && reader->good(); --left) {
    const std::string name = reader->Text();
    numbers[name] = reader->Number();
  }
  return numbers;
}

}  // namespace

int64_t ElasticRecord::step() const {
  const auto train = position.find(schedule::kTrainStream);
  return train == position.end() ? 0 : train->second;
}

bool ElasticRecord::NotePosition(const Accumulator& accumulator) {
  auto now = accumulator.Position();
  if (now.ok()) position = *std::move(now);
  return now.ok();
}

std::string ElasticRecord::Serialize() const {
  std::string bytes;
  PutNumber(progress, &bytes);
  PutNumbers(position, &bytes);
  PutNumbers(counters, &bytes);
  int64_t count = 0;
  for (const auto& [name, blob] : blobs) count += blob.empty() ? 0 : 1;
  PutNumber(count, &bytes);
  for (const auto& [name, blob] : blobs) {
    if (blob.empty()) continue;
    PutText(name, &bytes);
    PutText(blob, &bytes);
  }
  return bytes;
}

absl::StatusOr<ElasticRecord> ElasticRecord::Parse(absl::string_view bytes) {
  FieldReader reader(bytes);
  ElasticRecord record;
  record.progress = reader.Number();
  record.position = ReadNumbers(&reader);
  record.counters = ReadNumbers(&reader);
  for (int64_t left = reader.Number(); left > 0 && reader.good(); --left) {
    const std::string name = reader.Text();
    record.blobs[name] = reader.Text();
  }
  if (reader.done()) return record;
  return absl::DataLossError(
      "the counters and positions of a peer cannot be read; do all workers run "
      "the same version?");
}

std::string ElasticRecord::SerializeBefore(absl::string_view rest) const {
  std::string bytes;
  PutText(Serialize(), &bytes);
  bytes.append(rest.data(), rest.size());
  return bytes;
}

absl::StatusOr<ElasticRecord> ElasticRecord::TakeFrom(
    absl::string_view* bytes) {
  int64_t size = -1;
  if (bytes->size() >= sizeof(size)) {
    std::memcpy(&size, bytes->data(), sizeof(size));
    bytes->remove_prefix(sizeof(size));
  }
  if (size < 0 || static_cast<size_t>(size) > bytes->size()) {
    return absl::DataLossError("a peer's state was cut short");
  }
  const absl::string_view own = bytes->substr(0, static_cast<size_t>(size));
  bytes->remove_prefix(own.size());
  return Parse(own);
}

}  // namespace coxswain
