// The frames of HTTP/2 that come to a server, as the guard follows them.

#include <algorithm>
#include <string>
#include <tuple>

#include "base/check.h"
#include "base/frame_guard/frame_scanner.h"
#include "tests/fuzz/decoders.h"
#include "tests/fuzz/fuzz_bytes.h"

namespace coxswain {
namespace {

// The code, and what is counted: calls, resets, open calls, bytes held.
using Outcome =
    std::tuple<absl::StatusCode, int64_t, int64_t, int64_t, int64_t>;

Outcome OutcomeOf(const FrameScanner& scanner, const absl::Status& status) {
  return {status.code(), scanner.calls(), scanner.resets(),
          scanner.open_calls(), scanner.held_bytes()};
}

Outcome ScanInPieces(absl::string_view bytes, size_t piece) {
  FrameScanner scanner;
  const auto most = static_cast<int64_t>(bytes.size());
  while (!bytes.empty()) {
    const absl::Status status = scanner.Scan(bytes.substr(0, piece));
    if (!status.ok()) return OutcomeOf(scanner, status);
    bytes.remove_prefix(std::min(piece, bytes.size()));
    // No more is held than has come, nor for calls that are not there.
    COXSWAIN_CHECK(scanner.held_bytes() >= 0 && scanner.held_bytes() <= most);
    COXSWAIN_CHECK(scanner.open_calls() > 0 || scanner.held_bytes() == 0);
    COXSWAIN_CHECK(scanner.open_calls() + scanner.resets() <= scanner.calls());
  }
  return OutcomeOf(scanner, absl::OkStatus());
}

}  // namespace

void FuzzFrames(absl::string_view input) {
  FuzzBytes bytes(input);
  const size_t piece = 1 + bytes.Byte();
  // The preface is not looked at, and an input need not begin with it.
  const std::string all = std::string(24, 'p') + std::string(bytes.Rest());
  // However the network cuts what comes, it means the same.
  COXSWAIN_CHECK(ScanInPieces(all, all.size()) == ScanInPieces(all, piece));
}

}  // namespace coxswain
