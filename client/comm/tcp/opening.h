#ifndef COXSWAIN_CLIENT_COMM_TCP_OPENING_H_
#define COXSWAIN_CLIENT_COMM_TCP_OPENING_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/host_memory.h"
#include "client/comm/collective_header.h"
#include "client/comm/tcp/data_paths.h"
#include "client/comm/tcp/transfer.h"

namespace coxswain {

// How every collective begins: each rank sends a frame to each other one, with
// the header of what it begins, and with what that peer needs of its data where
// that is little, which is then all that travels. Once a rank has the frames of
// all others it knows whether all begin the same. Nothing has moved to its
// place by then, and a rank that begins something else has sent no other bytes
// than its frame: so the ranks are in step again afterwards.
//
// A frame: "CXCO", the bytes of data (4, little endian), the header (32), the
// data. The bytes are checked against a limit that this rank has space for
// before any is read.
//
// Threading: as DataPaths.
class Opening {
 public:
  // `name` is of the communicator, for errors. `max_bytes` bounds the data of a
  // frame. Where there is no memory for that, each opening ends with
  // RESOURCE_EXHAUSTED.
  Opening(DataPaths* paths, int rank, std::string name, int64_t max_bytes);

  // Sends what the system takes at once. `own` has its sequence number; `data`
  // is what goes to each rank, and stays until the opening has ended;
  // `expected` is how many bytes come from each rank that begins the same.
  void Begin(const CollectiveHeader& own, std::vector<Piece> data,
             std::vector<int64_t> expected);

  // Returns how the opening that was begun has ended: OK, INVALID_ARGUMENT
  // where the ranks differ, and otherwise as FlowTransfer. nullopt: it has not
  // until then.
  std::optional<absl::Status> TryFinish(absl::Time until, absl::Time deadline);

  // Returns the data of a rank's frame, aligned to a cache line; until the next
  // opening.
  char* data(int peer) { return PeerOf(peer).buffer() + kDataAt; }

 private:
  static constexpr size_t kFixed = 40;
  static constexpr size_t kDataAt = 64;

  struct Peer {
    HostMemory memory;
    int64_t to_send = 0;
    int64_t sent = 0;
    int64_t to_read = 0;  // as far as it is known
    int64_t read = 0;
    bool decoded = false;
    CollectiveHeader header;
    int64_t bytes = 0;  // of data

    char* buffer() const { return static_cast<char*>(memory.get()); }
    char* frame() const { return buffer() + (kDataAt - kFixed); }
    bool done() const { return sent == to_send && read == to_read; }
  };

  Peer& PeerOf(int rank) { return peers_[static_cast<size_t>(rank)]; }
  // Move what can be moved at once.
  absl::Status Write(int rank);
  absl::Status Read(int rank);
  absl::Status Advance();
  // Looks at the first bytes of a frame, once they are there.
  absl::Status Decode(int rank);
  absl::Status Compare() const;
  bool done() const;

  DataPaths& paths_;
  const int rank_;
  const std::string name_;
  const int64_t max_bytes_;
  CollectiveHeader own_;
  // By rank, as the bytes of data are of each frame.
  std::vector<std::array<char, kFixed>> frames_;
  std::vector<Piece> data_;
  std::vector<int64_t> expected_;
  std::vector<Peer> peers_;
  absl::Status failed_;  // while it was begun, with a peer
  int failed_peer_ = 0;
  absl::Status memory_;  // whether there is any
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_OPENING_H_
