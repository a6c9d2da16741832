#include "client/elastic/catch_up/sender.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/exception_status.h"
#include "base/logging.h"
#include "base/peer_text.h"
#include "base/start_thread.h"
#include "base/status_macros.h"

namespace coxswain::catch_up {
namespace {

// A newcomer that is so many steps behind is in step: these are on their way.
constexpr size_t kOnTheWay = 4;
// One that reports none of so many steps is given up.
constexpr size_t kMaxUnreached = 65'536;
// Reads of answers, before anything else is looked at.
constexpr int kMaxReads = 16;

absl::Time Now() { return Clock::Real()->Now(); }

int64_t BytesOf(const Frame& frame) {
  return static_cast<int64_t>(sizeof(Header)) + frame.payload.bytes;
}

absl::StatusOr<TcpAddress> AddressOf(const std::string& text) {
  const size_t colon = text.rfind(':');
  TcpAddress address;
  if (colon == std::string::npos ||
      !absl::SimpleAtoi(text.substr(colon + 1), &address.port)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is no address of a newcomer"));
  }
  address.host = text.substr(0, colon);
  return address;
}

}  // namespace

Sender::Sender(Options options) : options_(std::move(options)) {
  absl::StatusOr<std::thread> thread = StartThread([this] { Run(); });
  if (thread.ok()) {
    thread_ = *std::move(thread);
    return;
  }
  MutexLock lock(&mutex_);
  failure_ = thread.status();
  LogDroppedLocked();
}

Sender::~Sender() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  wake_.Raise();
  if (thread_.joinable()) thread_.join();
}

bool Sender::Fits(int64_t bytes) {
  MutexLock lock(&mutex_);
  return FitsLocked(bytes);
}

bool Sender::FitsLocked(int64_t bytes) {
  if (!failure_.ok()) return false;
  if (queued_bytes_ + bytes <= options_.max_queued_bytes) return true;
  FailLocked(absl::ResourceExhaustedError(absl::StrCat(
      queued_bytes_ + bytes, " bytes would wait for it, and ",
      options_.max_queued_bytes, " may: it takes them too slowly")));
  return false;
}

void Sender::FailLocked(absl::Status why) {
  failure_ = std::move(why);
  wake_.Raise();
}

void Sender::Send(std::vector<Frame> frames, int64_t progress) {
  int64_t bytes = 0;
  for (const Frame& frame : frames) bytes += BytesOf(frame);
  MutexLock lock(&mutex_);
  if (!FitsLocked(bytes)) return;
  if (unreached_.size() == kMaxUnreached) {
    return FailLocked(absl::ResourceExhaustedError(
        absl::StrCat("it reports none of ", kMaxUnreached, " steps")));
  }
  queued_bytes_ += bytes;
  unreached_.push_back(progress);
  for (Frame& frame : frames) queue_.push_back(std::move(frame));
  wake_.Raise();
}

void Sender::Drop(absl::string_view why) {
  MutexLock lock(&mutex_);
  if (!failure_.ok()) return;
  FailLocked(absl::CancelledError(why));
}

std::vector<int64_t> Sender::TakeAsked() {
  MutexLock lock(&mutex_);
  return std::exchange(asked_, {});
}

bool Sender::settled() const {
  MutexLock lock(&mutex_);
  return (in_step_ && !lacks_) || !failure_.ok();
}

bool Sender::in_step() const {
  MutexLock lock(&mutex_);
  return in_step_;
}

bool Sender::failed() const {
  MutexLock lock(&mutex_);
  return !failure_.ok();
}

std::string Sender::damage() const {
  MutexLock lock(&mutex_);
  return damage_;
}

void Sender::Run() {
  const absl::Status served = WithoutExceptions([this] { return Serve(); });
  socket_ = UniqueFd();
  sending_ = Frame();
  // Released after the lock, which the thread that trains takes: it may be much
  // memory.
  std::deque<Frame> dropped;
  MutexLock lock(&mutex_);
  if (failure_.ok()) failure_ = served;
  dropped.swap(queue_);
  // It has all that there is, and is a member next.
  if (stopping_ || sent_last_) return;
  LogDroppedLocked();
}

void Sender::LogDroppedLocked() const {
  LogWarning("newcomer_dropped",
             {{"address", options_.address},
              {"rank", options_.hello.rank},
              {"reason", failure_.ToString()},
              {"next", "it copies the state when the members regroup"}});
}

absl::Status Sender::Connect() {
  COXSWAIN_ASSIGN_OR_RETURN(const TcpAddress address,
                            AddressOf(options_.address));
  COXSWAIN_ASSIGN_OR_RETURN(socket_, BeginConnectTcp(address));
  const absl::Time end = Now() + options_.connect_timeout;
  std::vector<pollfd> entries = {{socket_.get(), POLLOUT, 0},
                                 {wake_.get(), POLLIN, 0}};
  while (entries[0].revents == 0) {
    PollUntil(&entries, end);
    wake_.Clear();
    {
      MutexLock lock(&mutex_);
      if (stopping_) return absl::CancelledError("catching up was ended");
      if (!failure_.ok()) return failure_;
    }
    if (entries[0].revents == 0 && Now() >= end) {
      return absl::DeadlineExceededError("it does not answer");
    }
  }
  COXSWAIN_RETURN_IF_ERROR(ConnectResult(socket_));
  std::string payload(sizeof(Hello), '\0');
  std::memcpy(payload.data(), &options_.hello, sizeof(Hello));
  payload += options_.host;
  Header header;
  header.kind = Kind::kHello;
  header.bytes = static_cast<int64_t>(payload.size());
  header.checksum = Crc32c(payload);
  const WakeFd none;
  return SendAll(socket_, Encode(header) + payload, none, end);
}

absl::Status Sender::Serve() {
  COXSWAIN_RETURN_IF_ERROR(Connect());
  absl::Time moved = Now();
  bool waits_to_send = true;  // of what was queued meanwhile
  while (true) {
    std::vector<pollfd> entries = {{wake_.get(), POLLIN, 0},
                                   {socket_.get(), POLLIN, 0}};
    if (waits_to_send) entries[1].events |= POLLOUT;
    PollUntil(&entries, waits_to_send ? moved + options_.send_timeout
                                      : Now() + options_.send_timeout);
    wake_.Clear();
    {
      MutexLock lock(&mutex_);
      if (stopping_ || !failure_.ok()) return failure_;
    }
    COXSWAIN_RETURN_IF_ERROR(ReceiveAnswers());
    COXSWAIN_ASSIGN_OR_RETURN(const bool sent, SendSomeQueued());
    waits_to_send = !front_.empty();
    if (sent || !waits_to_send) {
      moved = Now();
    } else if (Now() >= moved + options_.send_timeout) {
      return absl::DeadlineExceededError(absl::StrCat(
          "it took nothing for ", absl::FormatDuration(options_.send_timeout)));
    }
  }
}

absl::StatusOr<bool> Sender::SendSomeQueued() {
  bool any = false;
  while (true) {
    if (front_.empty()) {
      MutexLock lock(&mutex_);
      // However fast the newcomer takes it.
      if (queue_.empty() || stopping_ || !failure_.ok()) return any;
      sending_ = std::move(queue_.front());
      queue_.pop_front();
      sending_.header.bytes = sending_.payload.bytes;
      front_ = Encode(sending_.header);
      sent_ = 0;
    }
    const auto head = static_cast<int64_t>(front_.size());
    const int64_t all = head + sending_.payload.bytes;
    while (sent_ < all) {
      const int64_t in_head = std::min(sent_, head);
      const int64_t in_body = sent_ - in_head;
      const iovec parts[] = {
          {front_.data() + in_head, static_cast<size_t>(head - in_head)},
          {const_cast<char*>(sending_.payload.data) + in_body,
           static_cast<size_t>(sending_.payload.bytes - in_body)}};
      COXSWAIN_ASSIGN_OR_RETURN(const int64_t sent,
                                SendSome(socket_, parts, 2));
      if (sent == 0) return any;
      any = true;
      sent_ += sent;
    }
    front_.clear();
    sent_last_ |= (sending_.header.flags & kLast) != 0;
    const int64_t bytes = BytesOf(sending_);
    // It may release much memory, and the thread that trains takes the lock.
    sending_ = Frame();
    MutexLock lock(&mutex_);
    queued_bytes_ -= bytes;
  }
}

absl::Status Sender::ReceiveAnswers() {
  for (int reads = 0; reads < kMaxReads; ++reads) {
    char bytes[1024];
    COXSWAIN_ASSIGN_OR_RETURN(const int64_t received,
                              ReceiveSome(socket_, bytes, sizeof(bytes)));
    if (received == 0) return absl::OkStatus();
    answer_.append(bytes, static_cast<size_t>(received));
    while (answer_.size() >= sizeof(Header)) {
      COXSWAIN_ASSIGN_OR_RETURN(
          const Header header,
          Decode(absl::string_view(answer_).substr(0, sizeof(Header))));
      if (header.bytes > kMaxAnswerBytes) {
        return absl::DataLossError(
            absl::StrCat("an answer of ", header.bytes, " bytes"));
      }
      const size_t all = sizeof(Header) + static_cast<size_t>(header.bytes);
      if (answer_.size() < all) break;
      const absl::string_view text = absl::string_view(answer_).substr(
          sizeof(Header), static_cast<size_t>(header.bytes));
      if (Crc32c(text) != header.checksum) {
        return absl::DataLossError("an answer did not arrive as it was sent");
      }
      NoteAnswer(header, text);
      answer_.erase(0, all);
    }
  }
  return absl::OkStatus();
}

void Sender::NoteAnswer(const Header& header, absl::string_view text) {
  MutexLock lock(&mutex_);
  if (header.kind == Kind::kAgain) {
    // One that is left out is missed, and the newcomer gives up.
    if (asked_.size() + asking_.size() < kMaxAsked) {
      asking_.push_back(header.number);
    }
    if ((header.flags & kMore) == 0) {
      asked_.insert(asked_.end(), asking_.begin(), asking_.end());
      asking_.clear();
      lacks_ = true;
    }
    damage_ = OneLine(ValidUtf8(text));  // it goes into a message
  } else if (header.kind == Kind::kLacks) {
    lacks_ = true;
  } else if (header.kind == Kind::kReached) {
    while (!unreached_.empty() && unreached_.front() <= header.progress) {
      unreached_.pop_front();
    }
    in_step_ |= unreached_.size() <= kOnTheWay;
    lacks_ = false;
  }
}

}  // namespace coxswain::catch_up
