#ifndef COXSWAIN_SERVER_STATE_EARLIER_FORMS_H_
#define COXSWAIN_SERVER_STATE_EARLIER_FORMS_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "proto/state.pb.h"
#include "server/state/cluster_records.h"
#include "server/state/quarantine.h"
#include "server/state/record.h"
#include "server/state/state_store.h"

namespace coxswain::server {

// For tests: converts records of schema 3 to those of schema 1, byte for byte
// as its coordinators wrote them. earlier_records_test.cc compares them.

inline std::string EarlierNumber(uint64_t number) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) {
    bytes.push_back(static_cast<char>(number >> shift & 0xff));
  }
  return bytes;
}

inline std::string EarlierText(absl::string_view text) {
  return absl::StrCat(EarlierNumber(text.size()), text);
}

// Of bytes that are such a record.
template <typename Proto>
Proto ParsedRecord(const std::string& bytes) {
  Proto proto;
  COXSWAIN_CHECK(ParseRecord(bytes, &proto));
  return proto;
}

inline std::string EarlierAnswer(const std::string& record) {
  const auto answer = ParsedRecord<state::v1::StoreAnswer>(record);
  return absl::StrCat(
      EarlierNumber(answer.operation()), EarlierNumber(answer.incarnation()),
      EarlierNumber(answer.request_id()),
      EarlierNumber(static_cast<uint64_t>(answer.number())),
      EarlierNumber(answer.swapped() ? 1 : 0), EarlierText(answer.value()));
}

inline std::string EarlierBarrier(const std::string& record) {
  const auto barrier = ParsedRecord<state::v1::Barrier>(record);
  std::string bytes;
  for (int i = 0; i < barrier.incarnations_size(); ++i) {
    absl::StrAppend(&bytes, EarlierNumber(barrier.incarnations(i)),
                    EarlierNumber(barrier.request_ids(i)));
  }
  return bytes;
}

inline std::string EarlierRanks(const std::string& record) {
  const auto group = ParsedRecord<state::v1::GroupRanks>(record);
  std::string bytes;
  for (const int64_t rank : group.ranks()) {
    bytes += EarlierNumber(static_cast<uint64_t>(rank));
  }
  return bytes;
}

inline std::string EarlierMesh(const std::string& record) {
  const auto mesh = ParsedRecord<state::v1::Mesh>(record);
  std::string bytes;
  for (const auto& axis : mesh.axes()) {
    absl::StrAppend(&bytes, EarlierText(axis.name()),
                    EarlierNumber(static_cast<uint64_t>(axis.size())));
  }
  return bytes;
}

inline std::string EarlierPosition(const std::string& record) {
  const auto position = ParsedRecord<state::v1::Position>(record);
  std::string text = absl::StrCat("round ", position.round(), "\nstep ",
                                  position.step(), "\n");
  if (position.next_step_known()) {
    absl::StrAppend(&text, "next_step ", position.next_step(), "\n");
  }
  const bool commit = position.outcome() == state::v1::Position::COMMIT;
  absl::StrAppend(&text, "commit ", commit ? 1 : 0, "\nreason ",
                  absl::CEscape(position.reason()), "\nstop ",
                  absl::CEscape(position.stop()), "\nregroup ",
                  absl::CEscape(position.regroup()), "\n");
  if (!position.checkpoint().empty()) {
    absl::StrAppend(&text, "checkpoint ", absl::CEscape(position.checkpoint()),
                    "\n");
  }
  if (position.has_plan()) {
    absl::StrAppend(&text, "plan ",
                    absl::CEscape(SerializeRecord(position.plan())), "\n");
  }
  return text;
}

inline std::string EarlierNote(const std::string& record) {
  const auto note = ParsedRecord<state::v1::QuarantineNote>(record);
  return EarlierText(note.job()) + EarlierText(note.reason());
}

// Returns the record of a table as schema 1 had it, which may be the same.
inline StateStore::Record EarlierForm(absl::string_view table,
                                      const StateStore::Record& record) {
  const auto& [key, value] = record;
  const char letter = key.empty() ? '\0' : key[0];
  const std::string numbered =
      key.substr(0, 1) + EarlierNumber(NumberOfKey(key).value_or(0));
  if (absl::StartsWith(table, "store/") && letter == 'a') {
    return {numbered, EarlierAnswer(value)};
  }
  if (absl::StartsWith(table, "group/")) {
    if (letter == 'b') return {numbered, EarlierBarrier(value)};
    if (letter == 'g') return {key, EarlierRanks(value)};
    if (letter == 'm') return {key, EarlierMesh(value)};
  }
  if (absl::StartsWith(table, "schedule/"))
    return {key, EarlierPosition(value)};
  if (table == kQuarantineNotes) return {key, EarlierNote(value)};
  return record;
}

// Converts a state of schema 3 to schema 1.
inline absl::Status MakeEarlier(StateStore* store) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto tables, store->Tables(""));
  StateBatch batch;
  for (const std::string& table : tables) {
    COXSWAIN_ASSIGN_OR_RETURN(const auto records, store->List(table));
    for (const StateStore::Record& record : records) {
      StateStore::Record earlier = EarlierForm(table, record);
      StateBatch one;
      if (earlier.first != record.first) one.Delete(table, record.first);
      one.Put(table, earlier.first, std::move(earlier.second));
      COXSWAIN_RETURN_IF_ERROR(store->AddOrApply(one, &batch));
    }
  }
  StateBatch schema;
  PutSchema(1, &schema);
  COXSWAIN_RETURN_IF_ERROR(store->AddOrApply(schema, &batch));
  return store->Apply(batch);
}

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STATE_EARLIER_FORMS_H_
