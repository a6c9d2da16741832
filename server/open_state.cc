#include "server/open_state.h"

#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "server/state/etcd/etcd_state_store.h"
#include "server/state/sqlite_state_store.h"
#include "server/storage/file_system.h"

namespace coxswain::server {
namespace {

constexpr char kDefaultPrefix[] = "coxswain";
constexpr int kMaxPort = 65535;
// etcd grants no less; more would be a long time without a coordinator.
constexpr absl::Duration kLeastLease = absl::Seconds(1);
constexpr absl::Duration kMostLease = absl::Hours(1);

absl::Status Malformed(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("the state '", text, "' ", why, "; write sqlite:DIR, or ",
                   "etcd://HOST:PORT[,HOST:PORT...][/PREFIX], for example ",
                   "etcd://10.0.0.1:2379,10.0.0.2:2379"));
}

bool IsEndpoint(absl::string_view text) {
  const size_t colon = text.rfind(':');
  int port = 0;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(text.substr(colon + 1), &port)) {
    return false;
  }
  for (const char c : text) {
    if (!absl::ascii_isgraph(c) || c == '@') return false;
  }
  const absl::string_view host = text.substr(0, colon);
  const bool brackets =
      absl::StartsWith(host, "[") && absl::EndsWith(host, "]");
  return port > 0 && port <= kMaxPort &&
         (brackets || !absl::StrContains(host, ':'));
}

absl::StatusOr<StateLocation> ParseEtcd(absl::string_view text,
                                        absl::string_view rest) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(rest, absl::MaxSplits('/', 1));
  StateLocation location;
  for (const absl::string_view endpoint : absl::StrSplit(parts.first, ',')) {
    if (!IsEndpoint(endpoint)) {
      return Malformed(text, absl::StrCat("names an etcd '", endpoint,
                                          "' that is no HOST:PORT"));
    }
    location.etcd_endpoints.emplace_back(endpoint);
  }
  absl::string_view prefix = parts.second;
  while (absl::ConsumeSuffix(&prefix, "/")) {
  }
  if (prefix.empty()) prefix = kDefaultPrefix;
  for (const char c : prefix) {
    if (!absl::ascii_isgraph(c)) {
      return Malformed(text, "has a prefix of other than visible characters");
    }
  }
  location.etcd_prefix = absl::StrCat(prefix, "/");
  return location;
}

// A file that the system's locks keep for this process.
class SoleState : public OwnedState {
 public:
  explicit SoleState(std::unique_ptr<StateStore> store)
      : store_(std::move(store)) {}
  StateStore& store() override { return *store_; }
  bool can_be_lost() const override { return false; }
  bool Held() override { return true; }
  CancelSignal& lost() override { return never_; }

 private:
  const std::unique_ptr<StateStore> store_;
  CancelSignal never_;
};

absl::StatusOr<std::unique_ptr<OwnedState>> OpenFile(
    const std::string& folder) {
  COXSWAIN_RETURN_IF_ERROR(MakeStateFolder(folder));
  COXSWAIN_ASSIGN_OR_RETURN(auto store, SqliteStateStore::Open(absl::StrCat(
                                            folder, "/state.sqlite")));
  return std::make_unique<SoleState>(std::move(store));
}

}  // namespace

absl::Status MakeStateFolder(const std::string& folder) {
  const absl::Status made = MakeFolders(PosixFileSystem(), folder);
  if (made.ok()) return made;
  return absl::UnavailableError(absl::StrCat("cannot create the state folder '",
                                             folder, "': ", made.message()));
}

absl::StatusOr<StateLocation> ParseStateLocation(absl::string_view text) {
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "etcd://")) return ParseEtcd(text, rest);
  if (!absl::ConsumePrefix(&rest, "sqlite:")) {
    return Malformed(text, "is of no known kind");
  }
  if (rest.empty()) return Malformed(text, "names no folder");
  StateLocation location;
  location.folder = std::string(rest);
  return location;
}

absl::Status AcquireOptions::Validate() const {
  if (leader_lease >= kLeastLease && leader_lease <= kMostLease) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "leader_lease must be from ", absl::FormatDuration(kLeastLease), " to ",
      absl::FormatDuration(kMostLease), ", not ",
      absl::FormatDuration(leader_lease)));
}

absl::StatusOr<std::unique_ptr<OwnedState>> AcquireState(
    const StateLocation& location, const AcquireOptions& options) {
  COXSWAIN_RETURN_IF_ERROR(options.Validate());
  if (!location.is_etcd()) return OpenFile(location.folder);
  EtcdOptions etcd;
  etcd.endpoints = location.etcd_endpoints;
  etcd.prefix = location.etcd_prefix;
  etcd.name = options.name;
  etcd.lease = options.leader_lease;
  etcd.clock = options.clock;
  COXSWAIN_ASSIGN_OR_RETURN(
      auto store, EtcdStateStore::Open(etcd, options.cancel, options.on_wait));
  return store;
}

}  // namespace coxswain::server
