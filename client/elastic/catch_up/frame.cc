#include "client/elastic/catch_up/frame.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/status_macros.h"

namespace coxswain::catch_up {
namespace {

static_assert(std::is_trivially_copyable_v<Header> && sizeof(Header) == 48 &&
                  std::is_trivially_copyable_v<Hello> && sizeof(Hello) == 32,
              "they travel as they lie in memory");
constexpr size_t kChecked = sizeof(Header) - sizeof(uint32_t);

// Waits for one of the events.
absl::Status Await(const UniqueFd& socket, short events, const WakeFd& wake,
                   absl::Time end) {
  std::vector<pollfd> entries = {{socket.get(), events, 0},
                                 {wake.get(), POLLIN, 0}};
  while (PollUntil(&entries, end) == 0) {
    if (Clock::Real()->Now() >= end) {
      return absl::DeadlineExceededError(
          "the other end sends, or takes, "
          "nothing more");
    }
  }
  if (entries[1].revents != 0) {
    return absl::CancelledError("catching up was ended");
  }
  return absl::OkStatus();
}

}  // namespace

std::string Encode(Header header) {
  std::string bytes(sizeof(header), '\0');
  std::memcpy(bytes.data(), &header, sizeof(header));
  header.own_checksum = Crc32c(absl::string_view(bytes).substr(0, kChecked));
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

absl::StatusOr<Header> Decode(absl::string_view bytes) {
  Header header;
  if (bytes.size() == sizeof(header)) {
    std::memcpy(&header, bytes.data(), sizeof(header));
    if (header.magic == Header::kMagic &&
        header.own_checksum == Crc32c(bytes.substr(0, kChecked)) &&
        header.bytes >= 0 && header.bytes <= kMaxSmallBytes &&
        header.number >= 0) {
      return header;
    }
  }
  return absl::DataLossError(
      "what should be the header of a piece of a state is none");
}

PiecesOf::PiecesOf(std::vector<Span> spans) : spans_(std::move(spans)) {
  for (const Span& span : spans_) {
    begins_.push_back(bytes_);
    bytes_ += span.bytes();
  }
}

int64_t PiecesOf::SizeOf(int64_t piece) const {
  return std::clamp<int64_t>(bytes_ - piece * kPieceBytes, 0, kPieceBytes);
}

int64_t PiecesOf::SizeOf(const std::vector<int64_t>& pieces) const {
  int64_t bytes = 0;
  for (const int64_t piece : pieces) bytes += SizeOf(piece);
  return bytes;
}

void PiecesOf::VisitSpans(
    int64_t piece,
    const std::function<void(size_t span, int64_t begin, int64_t bytes)>& visit)
    const {
  int64_t at = piece * kPieceBytes;
  const int64_t end = at + SizeOf(piece);
  // The last span that begins at or before it.
  size_t span = static_cast<size_t>(
      std::upper_bound(begins_.begin(), begins_.end(), at) - begins_.begin());
  for (span -= span > 0 ? 1 : 0; at < end; ++span) {
    const int64_t begin = at - begins_[span];
    const int64_t bytes = std::min(spans_[span].bytes() - begin, end - at);
    if (bytes > 0) visit(span, begin, bytes);
    at += bytes;
  }
}

void PiecesOf::Visit(
    int64_t piece,
    const std::function<void(char* data, int64_t bytes)>& visit) const {
  VisitSpans(piece, [&](size_t span, int64_t begin, int64_t bytes) {
    visit(static_cast<char*>(spans_[span].data) + begin, bytes);
  });
}

absl::Status SendAll(const UniqueFd& socket, absl::string_view bytes,
                     const WakeFd& wake, absl::Time end) {
  while (!bytes.empty()) {
    const iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
    COXSWAIN_ASSIGN_OR_RETURN(const int64_t sent, SendSome(socket, &part, 1));
    bytes.remove_prefix(static_cast<size_t>(sent));
    if (sent == 0) {
      COXSWAIN_RETURN_IF_ERROR(Await(socket, POLLOUT, wake, end));
    }
  }
  return absl::OkStatus();
}

absl::Status ReceiveAll(const UniqueFd& socket, char* data, int64_t bytes,
                        const WakeFd& wake, absl::Time end) {
  while (bytes > 0) {
    COXSWAIN_ASSIGN_OR_RETURN(const int64_t received,
                              ReceiveSome(socket, data, bytes));
    data += received;
    bytes -= received;
    if (received == 0) {
      COXSWAIN_RETURN_IF_ERROR(Await(socket, POLLIN, wake, end));
    }
  }
  return absl::OkStatus();
}

}  // namespace coxswain::catch_up
