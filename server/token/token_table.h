#ifndef COXSWAIN_SERVER_TOKEN_TOKEN_TABLE_H_
#define COXSWAIN_SERVER_TOKEN_TOKEN_TABLE_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "base/tls_files.h"

namespace coxswain::server {

// The identity of a caller, as a certificate or a token has proved it. A value.
struct Identity {
  bool is_operator = false;
  std::string job;    // of one that is no operator
  std::string proof;  // for messages: which certificate, or whose token

  std::string ToString() const {
    return absl::StrCat(is_operator ? "an operator" : absl::StrCat("job ", job),
                        " (", proof, ")");
  }
};

// The bearer tokens of a coordinator: a file with a line for each,
//
//   # comment
//   operator  TOKEN
//   job/NAME  TOKEN
//   job/NAME  subject:SUBJECT
//
// where the last one stands for whatever tokens an issuer signs for SUBJECT
// (server/token). A name may have several, so that one can be replaced while
// both count; a token or a subject has one name. The file is read again when it
// has changed; one that cannot be understood then is logged, and the tokens
// stay as they were. Only digests are kept of tokens. Thread-safe.
class TokenTable {
 public:
  static constexpr size_t kLeastTokenBytes = 16;
  static constexpr size_t kMostTokenBytes = 4096;
  static constexpr size_t kMostTokens = 4096;

  // Fails with INVALID_ARGUMENT, naming the line that is wrong, but no token.
  static absl::StatusOr<std::unique_ptr<TokenTable>> Open(
      const std::string& path);

  // Returns the owner of the token. Takes the same time for each unknown token.
  std::optional<Identity> Find(absl::string_view token);
  // Returns the identity of a subject, whose token the caller has verified.
  std::optional<Identity> FindSubject(const std::string& subject);

  bool NamesSubjects() const;
  const std::string& path() const { return path_; }

 private:
  struct Entry {
    std::string digest;
    Identity identity;
  };
  struct Entries {
    std::vector<Entry> tokens;
    std::map<std::string, Identity> subjects;

    // Adds the second word of a line. Returns what is wrong with it, without
    // showing any of it.
    absl::Status Add(absl::string_view word, Identity identity);
    absl::Status AddSubject(absl::string_view subject, Identity identity);
    size_t size() const { return tokens.size() + subjects.size(); }
  };
  explicit TokenTable(const std::string& path) : path_(path), file_(path) {}

  static absl::StatusOr<Entries> Parse(absl::string_view text);
  absl::Status ReadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadAgainLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  mutable Mutex mutex_;
  WatchedFile file_ ABSL_GUARDED_BY(mutex_);
  Entries entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_TOKEN_TOKEN_TABLE_H_
