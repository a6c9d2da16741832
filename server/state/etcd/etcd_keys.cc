#include "server/state/etcd/etcd_keys.h"

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace coxswain::server {
namespace {

constexpr char kEndOfTable = '\0';

// The first key after all that begin so. There is one: the prefix of a cluster
// ends with a slash.
std::string After(std::string prefix) {
  while (!prefix.empty() && prefix.back() == '\xff') prefix.pop_back();
  if (!prefix.empty()) ++prefix.back();
  return prefix;
}

}  // namespace

std::string EtcdKeys::Record(absl::string_view table,
                             absl::string_view key) const {
  std::string record = absl::StrCat(State(), table);
  record += kEndOfTable;
  return record.append(key.data(), key.size());
}

EtcdKeys::Range EtcdKeys::Table(absl::string_view table) const {
  const std::string begin = Record(table, "");
  return {begin, After(begin)};
}

EtcdKeys::Range EtcdKeys::Tables(absl::string_view prefix) const {
  const std::string begin = absl::StrCat(State(), prefix);
  return {begin, After(begin)};
}

absl::StatusOr<std::pair<std::string, std::string>> EtcdKeys::Parse(
    absl::string_view record) const {
  absl::string_view rest = record;
  const bool ours = absl::ConsumePrefix(&rest, State());
  const size_t end = rest.find(kEndOfTable);
  if (!ours || end == absl::string_view::npos) {
    return absl::DataLossError(absl::StrCat(
        "etcd has a key that is no record: ", absl::CHexEscape(record)));
  }
  return std::make_pair(std::string(rest.substr(0, end)),
                        std::string(rest.substr(end + 1)));
}

}  // namespace coxswain::server
