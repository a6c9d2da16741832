#include "server/state/earlier_records.h"

#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "proto/state.pb.h"
#include "proto/types.pb.h"
#include "server/state/cluster_records.h"
#include "server/state/quarantine.h"
#include "server/state/record.h"

namespace coxswain::server {
namespace {

using Record = StateStore::Record;

constexpr size_t kNumberBytes = 8;
constexpr char kAnswerLetter = 'a';
constexpr char kBarrierLetter = 'b';
constexpr char kRanksLetter = 'g';
constexpr char kMeshLetter = 'm';
constexpr char kPositionBegin[] = "round ";

// Reads the numbers and texts of schema 1, which follow each other: a number
// has 8 bytes, the highest first, and a text follows its length. Returns 0 or
// an empty text beyond the end, after which complete() is false.
class NumbersAndTexts {
 public:
  explicit NumbersAndTexts(absl::string_view bytes) : rest_(bytes) {}

  uint64_t Number() {
    uint64_t number = 0;
    for (const char byte : Take(kNumberBytes)) {
      number = number << 8 | static_cast<unsigned char>(byte);
    }
    return number;
  }
  std::string Text() {
    const uint64_t size = Number();
    return std::string(Take(size));
  }
  bool more() const { return !short_ && !rest_.empty(); }
  bool complete() const { return !short_ && rest_.empty(); }

 private:
  absl::string_view Take(uint64_t size) {
    if (short_ || size > rest_.size()) {
      short_ = true;
      return "";
    }
    const absl::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  absl::string_view rest_;
  bool short_ = false;
};

enum class Form {
  kLater,       // not one of schema 1
  kConverted,   // was one of schema 1
  kUnreadable,  // is one of schema 1, and cannot be read
};

// Below 2^56 the first byte of a number is 0, with which no message begins.
bool BeginsWithNumber(absl::string_view value) {
  return !value.empty() && value.front() == '\0';
}

// A key that is numbered now has 16 digits in the place of these bytes.
bool HasNumberedKey(const Record& record, char letter) {
  return record.first.size() == 1 + kNumberBytes && record.first[0] == letter;
}

std::string WithDigits(const std::string& key) {
  return NumberedKey(key[0], NumbersAndTexts(key.substr(1)).Number());
}

Form ConvertStore(Record* record) {
  if (!HasNumberedKey(*record, kAnswerLetter)) return Form::kLater;
  NumbersAndTexts reader(record->second);
  state::v1::StoreAnswer answer;
  const uint64_t operation = reader.Number();
  answer.set_operation(static_cast<unsigned char>(operation));
  answer.set_incarnation(reader.Number());
  answer.set_request_id(reader.Number());
  answer.set_number(static_cast<int64_t>(reader.Number()));
  answer.set_swapped(reader.Number() != 0);
  answer.set_value(reader.Text());
  if (!reader.complete() || answer.operation() != operation || operation == 0) {
    return Form::kUnreadable;
  }
  *record = {WithDigits(record->first), SerializeRecord(answer)};
  return Form::kConverted;
}

Form ConvertBarrier(Record* record) {
  NumbersAndTexts reader(record->second);
  state::v1::Barrier barrier;
  while (reader.more()) {
    barrier.add_incarnations(reader.Number());
    barrier.add_request_ids(reader.Number());
  }
  if (!reader.complete()) return Form::kUnreadable;
  *record = {WithDigits(record->first), SerializeRecord(barrier)};
  return Form::kConverted;
}

Form ConvertRanks(Record* record) {
  NumbersAndTexts reader(record->second);
  state::v1::GroupRanks group;
  while (reader.more()) {
    group.add_ranks(static_cast<int64_t>(reader.Number()));
  }
  if (!reader.complete()) return Form::kUnreadable;
  record->second = SerializeRecord(group);
  return Form::kConverted;
}

Form ConvertMesh(Record* record) {
  NumbersAndTexts reader(record->second);
  state::v1::Mesh mesh;
  while (reader.more()) {
    auto* const axis = mesh.add_axes();
    axis->set_name(reader.Text());
    axis->set_size(static_cast<int64_t>(reader.Number()));
  }
  if (!reader.complete()) return Form::kUnreadable;
  record->second = SerializeRecord(mesh);
  return Form::kConverted;
}

Form ConvertGroup(Record* record) {
  if (HasNumberedKey(*record, kBarrierLetter)) return ConvertBarrier(record);
  // No ranks at all were no bytes, and are no bytes.
  if (record->first.empty() || !BeginsWithNumber(record->second)) {
    return Form::kLater;
  }
  if (record->first[0] == kRanksLetter) return ConvertRanks(record);
  if (record->first[0] == kMeshLetter) return ConvertMesh(record);
  return Form::kLater;
}

using Lines = std::map<std::string, std::string>;

// Reads lines of a name, a space and a value. Returns false if one has no end.
bool SplitLines(absl::string_view text, Lines* lines) {
  while (!text.empty()) {
    const size_t space = text.find(' ');
    const size_t end = text.find('\n');
    if (space == text.npos || end == text.npos || space > end) return false;
    (*lines)[std::string(text.substr(0, space))] =
        std::string(text.substr(space + 1, end - space - 1));
    text.remove_prefix(end + 1);
  }
  return true;
}

bool ReadNumber(const Lines& lines, const char* name, int64_t* number) {
  const auto found = lines.find(name);
  return found != lines.end() && absl::SimpleAtoi(found->second, number);
}

bool ReadText(const Lines& lines, const char* name, std::string* text) {
  const auto found = lines.find(name);
  return found != lines.end() && absl::CUnescape(found->second, text);
}

bool ReadPosition(const Lines& lines, state::v1::Position* position) {
  using Proto = state::v1::Position;
  int64_t number = 0;
  if (!ReadNumber(lines, "round", &number)) return false;
  position->set_round(number);
  if (!ReadNumber(lines, "step", &number)) return false;
  position->set_step(number);
  if (lines.count("next_step") != 0) {
    if (!ReadNumber(lines, "next_step", &number)) return false;
    position->set_next_step_known(true);
    position->set_next_step(number);
  }
  if (!ReadNumber(lines, "commit", &number)) return false;
  position->set_outcome(number != 0 ? Proto::COMMIT : Proto::SKIP);
  if (!ReadText(lines, "reason", position->mutable_reason()) ||
      !ReadText(lines, "stop", position->mutable_stop()) ||
      !ReadText(lines, "regroup", position->mutable_regroup())) {
    return false;
  }
  if (lines.count("checkpoint") != 0 &&
      !ReadText(lines, "checkpoint", position->mutable_checkpoint())) {
    return false;
  }
  if (lines.count("plan") == 0) return true;
  std::string plan;
  return ReadText(lines, "plan", &plan) &&
         ParseRecord(plan, position->mutable_plan());
}

Form ConvertPosition(Record* record) {
  if (!absl::StartsWith(record->second, kPositionBegin)) return Form::kLater;
  Lines lines;
  state::v1::Position position;
  if (!SplitLines(record->second, &lines) || !ReadPosition(lines, &position)) {
    return Form::kUnreadable;
  }
  record->second = SerializeRecord(position);
  return Form::kConverted;
}

// A note that cannot be read is as good as none, and is left.
Form ConvertNote(Record* record) {
  if (!BeginsWithNumber(record->second)) return Form::kLater;
  NumbersAndTexts reader(record->second);
  state::v1::QuarantineNote note;
  note.set_job(reader.Text());
  note.set_reason(reader.Text());
  if (!reader.complete()) return Form::kLater;
  record->second = SerializeRecord(note);
  return Form::kConverted;
}

struct TableForm {
  const char* tables;  // how their names begin
  Form (*convert)(Record* record);
};
constexpr TableForm kTableForms[] = {{"store/", ConvertStore},
                                     {"group/", ConvertGroup},
                                     {"schedule/", ConvertPosition},
                                     {kQuarantineNotes, ConvertNote}};

// Returns the job of each generation's tables, as far as records of jobs can be
// read.
absl::StatusOr<std::map<int64_t, std::string>> JobsByGeneration(
    const StateStore& store) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto records, store.List(kJobTable));
  std::map<int64_t, std::string> jobs;
  for (const auto& [name, value] : records) {
    state::v1::Job job;
    if (ParseRecord(value, &job)) jobs[job.generation()] = name;
  }
  return jobs;
}

std::string JobOf(const std::map<int64_t, std::string>& jobs,
                  absl::string_view table) {
  int64_t generation = 0;
  if (!absl::SimpleAtoi(table.substr(table.find('/') + 1), &generation)) {
    return "";
  }
  const auto found = jobs.find(generation);
  return found == jobs.end() ? "" : found->second;
}

// Returns how many there were.
absl::StatusOr<int> ConvertAll(StateStore* store) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto jobs, JobsByGeneration(*store));
  std::vector<UnreadableRecord> unreadable;
  StateBatch batch;
  int converted = 0;
  for (const TableForm& form : kTableForms) {
    COXSWAIN_ASSIGN_OR_RETURN(const auto tables, store->Tables(form.tables));
    for (const std::string& table : tables) {
      COXSWAIN_ASSIGN_OR_RETURN(auto records, store->List(table));
      for (Record& record : records) {
        const std::string key = record.first;
        switch (form.convert(&record)) {
          case Form::kLater:
            continue;
          case Form::kUnreadable:
            unreadable.push_back(
                {table, key, std::move(record.second), JobOf(jobs, table),
                 "it cannot be read as what an earlier coordinator wrote"});
            continue;
          case Form::kConverted:
            break;
        }
        ++converted;
        StateBatch one;
        if (key != record.first) one.Delete(table, key);
        one.Put(table, record.first, std::move(record.second));
        COXSWAIN_RETURN_IF_ERROR(store->AddOrApply(one, &batch));
      }
    }
  }
  if (!batch.empty()) COXSWAIN_RETURN_IF_ERROR(store->Apply(batch));
  COXSWAIN_RETURN_IF_ERROR(QuarantineRecords(unreadable, store));
  return converted;
}

}  // namespace

absl::Status TakeOverRecords(const std::vector<std::string>& together,
                             StateStore* store) {
  // The tables of damaged records cannot be listed.
  COXSWAIN_RETURN_IF_ERROR(QuarantineDamaged(together, store));
  COXSWAIN_ASSIGN_OR_RETURN(ClusterRecords cluster, ReadClusterRecords(*store));
  if (cluster.schema == kStateSchema) return absl::OkStatus();
  const int64_t schema = cluster.schema;
  if (!cluster.next_plan_version.has_value()) {
    COXSWAIN_ASSIGN_OR_RETURN(cluster.next_plan_version,
                              PlanVersionAboveAll(*store));
  }
  StateBatch begin;
  PutClusterRecords(cluster, &begin);
  COXSWAIN_RETURN_IF_ERROR(store->Apply(begin));
  COXSWAIN_ASSIGN_OR_RETURN(const int converted, ConvertAll(store));
  StateBatch end;
  PutSchema(kStateSchema, &end);
  COXSWAIN_RETURN_IF_ERROR(store->Apply(end));
  LogInfo("state_converted", {{"from_schema", schema},
                              {"to_schema", kStateSchema},
                              {"records", converted}});
  return absl::OkStatus();
}

}  // namespace coxswain::server
