#include "server/token/token_table.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/certificates.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "server/generation/job_name.h"
#include "server/token/web_token.h"

namespace coxswain::server {
namespace {

constexpr absl::string_view kSubject = "subject:";

absl::StatusOr<Identity> ParseName(absl::string_view name) {
  Identity identity;
  identity.proof = "by its token";
  if (name == "operator") {
    identity.is_operator = true;
    return identity;
  }
  if (!absl::ConsumePrefix(&name, "job/") || !ValidateJobName(name).ok()) {
    // Does not show what it begins with: that may be the token.
    return absl::InvalidArgumentError(
        "a line begins with operator or job/NAME");
  }
  identity.job = std::string(name);
  return identity;
}

}  // namespace

absl::Status TokenTable::Entries::AddSubject(absl::string_view subject,
                                             Identity identity) {
  if (!IsSubject(subject)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "after ", kSubject, " comes a name of 1 to ", kMostSubjectBytes,
        " visible characters of ASCII, such as "
        "system:serviceaccount:NAMESPACE:NAME"));
  }
  identity.proof = absl::StrCat("by a token of ", subject);
  if (subjects.emplace(subject, std::move(identity)).second) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "this subject is listed already: it has one name");
}

absl::Status TokenTable::Entries::Add(absl::string_view word,
                                      Identity identity) {
  if (size() >= kMostTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("more than ", kMostTokens, " tokens"));
  }
  if (absl::ConsumePrefix(&word, kSubject)) {
    return AddSubject(word, std::move(identity));
  }
  if (word.size() < kLeastTokenBytes || word.size() > kMostTokenBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a token has ", kLeastTokenBytes, " to ", kMostTokenBytes,
                     " characters: `openssl rand -hex 32` makes one"));
  }
  std::string digest = Sha256(word);
  for (const Entry& other : tokens) {
    if (other.digest == digest) {
      return absl::InvalidArgumentError("this token is listed already");
    }
  }
  tokens.push_back({std::move(digest), std::move(identity)});
  return absl::OkStatus();
}

absl::StatusOr<TokenTable::Entries> TokenTable::Parse(absl::string_view text) {
  Entries entries;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    const auto wrong = [&](absl::string_view what) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": ", what));
    };
    // Nothing of such a line is shown: the token may be any of its words.
    if (words.size() != 2) {
      return wrong("a line is operator or job/NAME, a space, and a token");
    }
    auto identity = ParseName(words[0]);
    if (!identity.ok()) return wrong(identity.status().message());
    const absl::Status added = entries.Add(words[1], *std::move(identity));
    if (!added.ok()) return wrong(added.message());
  }
  return entries;
}

absl::Status TokenTable::ReadLocked() {
  COXSWAIN_ASSIGN_OR_RETURN(const std::string text, file_.Read());
  auto entries = Parse(text);
  if (!entries.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": ", entries.status().message()));
  }
  entries_ = *std::move(entries);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TokenTable>> TokenTable::Open(
    const std::string& path) {
  std::unique_ptr<TokenTable> table(new TokenTable(path));
  MutexLock lock(&table->mutex_);
  const absl::Status read = table->ReadLocked();
  if (!read.ok()) return absl::InvalidArgumentError(read.message());
  return table;
}

void TokenTable::ReadAgainLocked() {
  if (!file_.Changed()) return;
  const absl::Status read = ReadLocked();
  if (read.ok()) {
    LogInfo("tokens_read", {{"file", path_}, {"tokens", entries_.size()}});
  } else {
    LogError("tokens_not_read", {{"error", read.message()},
                                 {"next", "the earlier ones stay valid"}});
  }
}

std::optional<Identity> TokenTable::Find(absl::string_view token) {
  const std::string digest = Sha256(token);
  MutexLock lock(&mutex_);
  ReadAgainLocked();
  const Entry* found = nullptr;
  for (const Entry& entry : entries_.tokens) {
    if (SameInConstantTime(entry.digest, digest)) found = &entry;
  }
  if (found == nullptr) return std::nullopt;
  return found->identity;
}

std::optional<Identity> TokenTable::FindSubject(const std::string& subject) {
  MutexLock lock(&mutex_);
  ReadAgainLocked();
  const auto found = entries_.subjects.find(subject);
  if (found == entries_.subjects.end()) return std::nullopt;
  return found->second;
}

bool TokenTable::NamesSubjects() const {
  MutexLock lock(&mutex_);
  return !entries_.subjects.empty();
}

}  // namespace coxswain::server
