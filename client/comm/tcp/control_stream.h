#ifndef COXSWAIN_CLIENT_COMM_TCP_CONTROL_STREAM_H_
#define COXSWAIN_CLIENT_COMM_TCP_CONTROL_STREAM_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/comm/collective_header.h"
#include "client/comm/tcp/tcp_stream.h"
#include "client/device/tensor.h"

namespace coxswain {

// What travels on a control connection: a fixed part, and bytes behind it.
struct ControlFrame {
  // The values travel.
  enum class Kind : uint32_t {
    kAnnounce = 1,  // a message `id` with this `tag`; short ones are behind it
    kClear = 2,     // the message `id` may come
    kData = 3,      // the message `id`
    kTaken = 4,     // the message `id` has been received
    kRefused = 5,   // it is another one than `header`, which was to be received
    kEnd = 6,       // the sender ends; the reason follows it
    // Of the channel with this tag whose sender is the header's root:
    kOpen = 7,   // an end has so many slots (`id`) of `header.count` bytes
    kSlot = 8,   // block `id`, counted from 0
    kFreed = 9,  // the receiver has taken `id` blocks in all
    kClose = 10,
  };
  Kind kind = Kind::kEnd;
  uint32_t tag = 0;
  uint64_t id = 0;
  int64_t bytes = 0;  // behind it
  CollectiveHeader header;

  static constexpr size_t kFixed = 56;
  static constexpr int64_t kMaxInline = 16 << 10;  // of an announced message
  static constexpr int64_t kMaxText = 1024;        // of a reason
};

// Returns whether a message of these bytes comes after its announcement.
inline bool IsLongMessage(const Span& span) {
  return span.bytes() > ControlFrame::kMaxInline;
}

// One end of a control connection. Not thread-safe; never waits.
class ControlStream {
 public:
  struct Handlers {
    // Returns where a frame's bytes go; an error if the frame makes no sense.
    // Called before any of them is read, and if there are any.
    std::function<absl::StatusOr<char*>(const ControlFrame&)> place;
    // Takes a frame that is complete.
    std::function<absl::Status(const ControlFrame&)> take;
  };

  // Moved over one connection before the others have their turn, and others
  // the lock of the caller.
  static constexpr int64_t kTurnBytes = 256 << 10;

  explicit ControlStream(TcpStream stream) : stream_(std::move(stream)) {}

  int fd() const { return stream_.fd(); }

  // Appends a frame; `bytes` stay until it has been written, or dropped, by the
  // caller or by `memory`. A kFreed takes the place of one of its channel that
  // is not begun.
  void Queue(const ControlFrame& frame, const char* bytes,
             std::shared_ptr<char> memory = nullptr);
  // Writes what the system takes, about kTurnBytes at most; returns how many
  // bytes. Where there is output after it, poll shows when more can be written.
  absl::StatusOr<int64_t> Flush();
  bool has_output() const { return !output_.empty(); }
  // Returns how many answers about messages are still to be written: kClear,
  // kTaken and kRefused.
  int answers() const { return answers_; }
  // Returns whether bytes of a message are still to be written.
  bool IsWriting(uint64_t id) const;
  // The bytes of a message that is dropped are not read any more; nor are any
  // that are queued behind it if it has been begun.
  void Drop(uint64_t id);
  // What still comes for this memory is thrown away.
  void Discard(const char* memory, int64_t bytes);

  // Reads what there is, up to `limit` bytes and what poll would not show.
  // UNAVAILABLE at the connection's end; an error of the handlers, or
  // INVALID_ARGUMENT, for what makes no sense.
  absl::Status Read(const Handlers& handlers, int64_t limit = kTurnBytes);

  // Writes this frame, as the last, before all but a frame that has been begun
  // and answers, of which peers wait for some: others are dropped. No memory of
  // the caller's is read any more: it copies what is to be written, up to
  // kMaxCopied bytes, and drops the last frame, too, where that is more.
  void EndWith(const ControlFrame& last, absl::string_view bytes);
  static constexpr int64_t kMaxCopied = 16 << 20;

 private:
  struct Output {
    std::array<char, ControlFrame::kFixed> fixed = {};
    const char* bytes = nullptr;
    int64_t skipped = 0;  // of the bytes: written before `bytes`
    int64_t size = 0;     // of all
    int64_t sent = 0;
    uint64_t id = 0;  // of a message
    ControlFrame::Kind kind = ControlFrame::Kind::kEnd;
    uint32_t tag = 0;
    int sender = 0;  // of a channel
    std::shared_ptr<char> memory;
  };

  // Returns whether the peer takes what follows for the rest of it.
  bool HasBegun(const Output& output) const {
    return output.sent > 0 ||
           (&output == &output_.front() && stream_.sends_half());
  }

  // Nothing more is written, nor what has not been yet.
  void End();
  // Copies the bytes that are still to be written; fails where it is too many.
  static bool Own(Output* output);

  TcpStream stream_;
  std::deque<Output> output_;
  int answers_ = 0;  // of these
  bool ended_ = false;
  // What is being read.
  std::array<char, ControlFrame::kFixed> fixed_ = {};
  int64_t read_ = 0;
  ControlFrame frame_;
  char* place_ = nullptr;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_CONTROL_STREAM_H_
