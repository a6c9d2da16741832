#ifndef COXSWAIN_TESTS_BENCH_BULK_BULK_PEERS_H_
#define COXSWAIN_TESTS_BENCH_BULK_BULK_PEERS_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace coxswain::bench {

// Memory that has not been written to before.
struct NewBytes {
  explicit NewBytes(size_t size_in) : data(new char[size_in]), size(size_in) {}

  absl::string_view view() const { return {data.get(), size}; }

  std::unique_ptr<char[]> data;
  size_t size;
};

// Bytes that go to another process and come back, on one connection over
// loopback. Each peer is a process of its own, which ends with this one and
// may run on every processor; made before this program has any thread.
class BulkPeer {
 public:
  virtual ~BulkPeer() = default;
  // Returns once the other side has all of it.
  virtual absl::Status Put(absl::string_view bytes) = 0;
  // Reads back what was put last, which is as long as `bytes`.
  virtual absl::Status Get(NewBytes* bytes) = 0;
};

// write and read of 1 MiB over a socket. With a file, the peer writes what
// comes to it, and sends what it has; without one, it looks at nothing.
absl::StatusOr<std::unique_ptr<BulkPeer>> StartTcp(const std::string& file);

// gRPC with default settings, with messages of 1 MiB in a `bytes` field, a
// CRC-32C of each checked by its receiver, and a file as above.
absl::StatusOr<std::unique_ptr<BulkPeer>> StartPlainBytes(
    const std::string& file);

}  // namespace coxswain::bench

#endif  // COXSWAIN_TESTS_BENCH_BULK_BULK_PEERS_H_
