#ifndef COXSWAIN_CLIENT_ELASTIC_ELASTIC_RECORD_H_
#define COXSWAIN_CLIENT_ELASTIC_ELASTIC_RECORD_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/accumulate/accumulator.h"

namespace coxswain {

// What all ranks have in common besides tensors and the optimizer.
struct ElasticRecord {
  // The name of the blob that a checkpoint holds it in.
  static constexpr char kBlob[] = "elastic";

  int64_t progress = 0;                     // exchanges that were decided
  std::map<std::string, int64_t> position;  // Accumulator::Position
  std::map<std::string, int64_t> counters;  // the program's
  std::map<std::string, std::string> blobs;

  // Returns how many windows of the stream "train" have ended.
  int64_t step() const;
  // Notes how many windows of each stream have ended. Returns false in the
  // middle of one of the stream "train", which has no position.
  bool NotePosition(const Accumulator& accumulator);

  // Returns the record without zeros and empty blobs, which equal missing ones.
  std::string Serialize() const;
  // Fails with DATA_LOSS if these bytes are not a record.
  static absl::StatusOr<ElasticRecord> Parse(absl::string_view bytes);

  // Returns the bytes of ElasticState::Save: this record, and `rest` after it.
  std::string SerializeBefore(absl::string_view rest) const;
  // Returns the record that such bytes begin with; leaves the rest. Fails with
  // DATA_LOSS if they do not.
  static absl::StatusOr<ElasticRecord> TakeFrom(absl::string_view* bytes);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_ELASTIC_ELASTIC_RECORD_H_
