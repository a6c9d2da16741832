// The frames of HTTP/2 that come to a server, as the guard follows them.

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/frame_guard/frame_scanner.h"
#include "tests/fuzz/decoders.h"
#include "tests/fuzz/fuzz_bytes.h"

namespace coxswain {
namespace {

using Outcome = std::pair<absl::StatusCode, int64_t>;

Outcome ScanInPieces(absl::string_view bytes, size_t piece) {
  FrameScanner scanner;
  while (!bytes.empty()) {
    const absl::Status status = scanner.Scan(bytes.substr(0, piece));
    if (!status.ok()) return {status.code(), scanner.calls()};
    bytes.remove_prefix(std::min(piece, bytes.size()));
  }
  return {absl::StatusCode::kOk, scanner.calls()};
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
