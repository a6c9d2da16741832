// What a rank on another host sends: to connect, and over its connections.

#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/cancel_signal.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/unique_fd.h"
#include "client/comm/channel.h"
#include "client/comm/collective_header.h"
#include "client/comm/memory_store.h"
#include "client/comm/tcp/control_stream.h"
#include "client/comm/tcp/hello.h"
#include "client/comm/tcp/lookup.h"
#include "client/comm/tcp/raw_tcp_peer_for_test.h"
#include "client/comm/tcp/tcp_communicator.h"
#include "client/comm/tcp/tcp_socket.h"
#include "client/comm/wire.h"
#include "tests/fuzz/decoders.h"
#include "tests/fuzz/fuzz_bytes.h"

namespace coxswain {
namespace {

constexpr absl::Duration kTcpTimeout = absl::Seconds(20);
constexpr int64_t kShortCount = 16;
constexpr int64_t kLongCount = 8192;  // of a message that waits for its place
constexpr int kSlots = 2;
constexpr int64_t kSlotBytes = kShortCount * sizeof(float);
// What all data that the peer sends consists of.
constexpr char kLetter = 'Z';
// More than a peer can make a rank hold: its announcements are 4 MiB.
constexpr size_t kMostHeld = 8 << 20;

size_t Allocated() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

Span Floats(std::vector<float>* data) {
  Span span;
  span.data = data->data();
  span.count = static_cast<int64_t>(data->size());
  return span;
}

// The peer of the one rank of two that keeps to the protocol. Which rank it is
// decides who calls.
class HostileTcpPeer {
 public:
  HostileTcpPeer(CommunicatorOptions group, FuzzBytes* bytes)
      : group_(std::move(group)), bytes_(bytes) {}

  // Connects, more or less; false: in such a way that the other cannot.
  bool Meet() { return group_.rank == 0 ? MeetAsCaller() : MeetAsCalled(); }

  // Sends frames, and other bytes.
  void Act() {
    for (int i = 0; i < 32 && !bytes_->empty(); ++i) {
      switch (bytes_->Below(8)) {
        case 0:
          Send(data_, bytes_->Text());
          only_letters_ = false;
          break;
        case 1:
          Send(control_, bytes_->Text());
          only_letters_ = false;
          break;
        case 2:
        case 3:
          SendOpening();
          break;
        default:
          SendControlFrame();
      }
    }
  }
  void Leave() {
    control_.Close();
    data_.Close();
  }

  // Whether what the rank receives can only be kLetter.
  bool only_letters() const { return only_letters_; }

 private:
  bool MeetAsCaller() {
    const RawTcpPeer peer(group_);
    std::vector<UniqueFd> strangers;
    for (size_t i = bytes_->Below(3); i > 0; --i) {
      strangers.push_back(peer.Call(bytes_->Text()));
    }
    bool right = true;
    for (UniqueFd* const socket : {&control_, &data_}) {
      TcpHelloBytes hello = Encode(peer.Hello(socket == &control_ ? 0 : 1));
      right = !Damage(hello.data(), hello.size()) && right;
      *socket = peer.Call(absl::string_view(hello.data(), hello.size()));
    }
    return right;
  }

  bool MeetAsCalled() {
    const auto listener = ListenTcp("127.0.0.1");
    COXSWAIN_CHECK(listener.ok());
    TcpPlace place;
    place.address = listener->address;
    place.answer_token = 7;
    COXSWAIN_CHECK(
        group_.store->Set(PlaceLookup::Key(group_, 0), EncodePlace(place))
            .ok());
    bool right = true;
    // The place has no host, so the rank chooses several connections for data;
    // all but the first keep silent.
    while (true) {
      UniqueFd socket = Accepted(listener->socket);
      const std::string text = RawTcpPeer::Read(socket, sizeof(TcpHelloBytes));
      TcpHelloBytes bytes = {};
      std::copy(text.begin(), text.end(), bytes.begin());
      const auto hello = DecodeHello(bytes);
      COXSWAIN_CHECK(hello.has_value() && hello->to == 0);
      TcpAnswerBytes answer = EncodeAnswer(place.answer_token);
      right = !Damage(answer.data(), answer.size()) && right;
      Send(socket, absl::string_view(answer.data(), answer.size()));
      const bool last = hello->index + 1 == hello->count;
      (hello->index == 0   ? control_
       : hello->index == 1 ? data_
                           : others_.emplace_back()) = std::move(socket);
      if (last || !right) return right;
    }
  }

  static UniqueFd Accepted(const UniqueFd& listener) {
    std::vector<pollfd> entries = {{listener.get(), POLLIN, 0}};
    while (true) {
      COXSWAIN_CHECK(PollUntil(&entries, Clock::Real()->Now() + kTcpTimeout) >
                     0);
      auto socket = AcceptTcp(listener);
      COXSWAIN_CHECK(socket.ok());
      if (socket->valid()) return *std::move(socket);
    }
  }

  // Changes a byte, sometimes; returns whether it has.
  bool Damage(char* at, size_t size) {
    if (bytes_->Below(16) != 15) return false;
    const char change = static_cast<char>(1 << bytes_->Below(8));
    at[bytes_->Below(size)] ^= change;
    return true;
  }

  static void Send(const UniqueFd& socket, absl::string_view bytes) {
    const iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
    // The other side may have closed, or be full.
    SendSome(socket, &part, 1).IgnoreError();
  }

  // A header of an exchange that the rank takes part in, with some of it
  // changed.
  CollectiveHeader Header(CollectiveKind kind, int64_t count) {
    CollectiveHeader header;
    header.kind = kind;
    header.count = count;
    header.root = kind == CollectiveKind::kMessage ? 1 - group_.rank : 0;
    switch (bytes_->Below(16)) {
      case 11:
        header.count = static_cast<int64_t>(bytes_->Number());
        break;
      case 12:
        header.sequence = bytes_->Number();
        break;
      case 13:
        header.root = static_cast<int32_t>(bytes_->Number());
        break;
      case 14:
        header.dtype = static_cast<DType>(bytes_->Below(8));
        break;
      case 15:
        header.kind = static_cast<CollectiveKind>(bytes_->Below(9));
        break;
      default:
        break;
    }
    return header;
  }

  int64_t Amount(int64_t sensible) {
    return bytes_->Below(8) == 7 ? static_cast<int64_t>(bytes_->Number())
                                 : sensible;
  }

  void SendOpening() {
    const int64_t width = sizeof(float);
    const CollectiveHeader header =
        Header(CollectiveKind::kAllReduce, kShortCount);
    const int64_t bytes = Amount(kShortCount * width);
    std::string frame = "CXCO....";
    PutLittleEndian(static_cast<uint32_t>(bytes), frame.data() + 4);
    const CollectiveHeaderBytes encoded = Encode(header);
    frame.append(encoded.data(), encoded.size());
    Damage(frame.data(), frame.size());
    frame.append(static_cast<size_t>(Amount(bytes) & 0x3fff), kLetter);
    Send(data_, frame);
  }

  void SendControlFrame() {
    const size_t kind = bytes_->Below(12);
    const bool is_long = bytes_->Below(2) == 1;
    const int64_t count = is_long ? kLongCount : kShortCount;
    const auto width = static_cast<int64_t>(sizeof(float));
    int64_t bytes = 0;
    if (kind == 1 && !is_long) bytes = count * width;  // kAnnounce
    if (kind == 3 && is_long) bytes = count * width;   // kData
    bytes = Amount(bytes);
    ControlFrame control;
    control.kind = static_cast<ControlFrame::Kind>(kind);
    control.tag = is_long ? 2 : 1;
    control.id = static_cast<uint64_t>(Amount(1));
    control.bytes = bytes;
    control.header = Header(CollectiveKind::kMessage, count);
    if (kind >= 7) SetChannel(&control, /*of_rank=*/is_long);
    bytes = control.bytes;
    std::string frame = RawTcpPeer::Encoded(control);
    const bool damaged = Damage(frame.data(), frame.size());
    const int64_t behind = Amount(bytes) & 0xffff;
    frame.append(static_cast<size_t>(behind), kLetter);
    // Otherwise the rank takes frames for data, and may.
    only_letters_ = only_letters_ && !damaged && behind == bytes;
    Send(control_, frame);
  }

  // Makes it a frame of one of the two channels: that in which the other rank
  // sends, or receives.
  void SetChannel(ControlFrame* frame, bool of_rank) {
    frame->tag = 1;
    frame->bytes = 0;
    frame->header.count = kShortCount;
    frame->header.root = of_rank ? group_.rank : 1 - group_.rank;
    switch (frame->kind) {
      case ControlFrame::Kind::kOpen:
        frame->id = static_cast<uint64_t>(Amount(kSlots));
        frame->header.count = std::max<int64_t>(Amount(kSlotBytes), 0);
        break;
      case ControlFrame::Kind::kSlot:
        frame->header.root = 1 - group_.rank;
        frame->id = static_cast<uint64_t>(Amount(blocks_++));
        frame->bytes = Amount(kSlotBytes);
        break;
      case ControlFrame::Kind::kFreed:
        frame->header.root = group_.rank;
        frame->id = static_cast<uint64_t>(Amount(++freed_));
        break;
      default:
        break;
    }
  }

  const CommunicatorOptions group_;  // of the other rank
  FuzzBytes* const bytes_;
  int64_t blocks_ = 0;
  int64_t freed_ = 0;
  UniqueFd control_;
  UniqueFd data_;
  std::vector<UniqueFd> others_;
  bool only_letters_ = true;
};

// An operation of the rank that keeps to the protocol, with its memory.
struct FuzzedOperation {
  std::unique_ptr<std::vector<float>> data;
  WorkPtr work;
  bool receives = false;
};

// It ends, and with an error that names the peer if it fails.
void CheckEnd(const absl::Status& status, int peer) {
  if (status.ok()) return;
  COXSWAIN_CHECK(!absl::IsDeadlineExceeded(status));
  COXSWAIN_CHECK(!absl::IsUnknown(status));
  COXSWAIN_CHECK(
      absl::StrContains(status.message(), absl::StrCat("rank ", peer)) ||
      absl::StrContains(status.message(), absl::StrCat("ranks ")));
}

std::vector<FuzzedOperation> Begin(Communicator* communicator) {
  const int peer = 1 - communicator->rank();
  std::vector<FuzzedOperation> operations;
  const auto add = [&](int64_t count, bool receives, const auto& begin) {
    FuzzedOperation operation;
    operation.data =
        std::make_unique<std::vector<float>>(static_cast<size_t>(count));
    operation.receives = receives;
    operation.work = begin(Floats(operation.data.get()));
    operations.push_back(std::move(operation));
  };
  add(kShortCount, true,
      [&](const Span& span) { return communicator->Receive(span, peer, 1); });
  add(kLongCount, true,
      [&](const Span& span) { return communicator->Receive(span, peer, 2); });
  add(kShortCount, false,
      [&](const Span& span) { return communicator->Send(span, peer, 1); });
  add(kLongCount, false,
      [&](const Span& span) { return communicator->Send(span, peer, 2); });
  add(kShortCount, false,
      [&](const Span& span) { return communicator->AllReduce(span); });
  return operations;
}

bool IsAllLetters(const std::vector<float>& data) {
  const auto* const text = reinterpret_cast<const char*>(data.data());
  return std::all_of(text, text + data.size() * sizeof(float),
                     [](char one) { return one == kLetter; });
}

// Both ends of the rank's channels with the peer, used until they fail.
class FuzzedChannels {
 public:
  explicit FuzzedChannels(Communicator* communicator)
      : peer_(1 - communicator->rank()) {
    ChannelOptions options;
    options.peer = peer_;
    options.tag = 1;
    options.slot_bytes = kSlotBytes;
    options.slots = kSlots;
    auto sender = communicator->OpenSender(options);
    auto receiver = communicator->OpenReceiver(options);
    // Not where the peer has ended the communicator already.
    if (!sender.ok() || !receiver.ok()) return;
    sender_ = *std::move(sender);
    receiver_ = *std::move(receiver);
    sending_ = std::thread([this] {
      std::vector<float> data(kShortCount);
      absl::Status status;
      while (status.ok()) status = sender_->Send(Floats(&data), kTcpTimeout);
      CheckEnd(status, peer_);
    });
    receiving_ = std::thread([this] {
      absl::Status status;
      while (status.ok()) {
        std::vector<float> data(kShortCount);
        status = receiver_->Receive(Floats(&data), kTcpTimeout);
        if (status.ok() && !IsAllLetters(data)) has_other_ = true;
      }
      CheckEnd(status, peer_);
    });
  }

  // Returns whether anything but the peer's letters was received.
  bool Join() {
    if (sending_.joinable()) sending_.join();
    if (receiving_.joinable()) receiving_.join();
    return has_other_;
  }

 private:
  const int peer_;
  std::unique_ptr<ChannelSender> sender_;
  std::unique_ptr<ChannelReceiver> receiver_;
  bool has_other_ = false;
  std::thread sending_;
  std::thread receiving_;
};

}  // namespace

void FuzzTcpWords(absl::string_view input) {
  const auto place = DecodePlace(input);
  if (place.ok()) {
    const auto again = DecodePlace(EncodePlace(*place));
    COXSWAIN_CHECK(again.ok() && EncodePlace(*again) == EncodePlace(*place));
  }
  TcpHelloBytes hello = {};
  std::copy_n(input.data(), std::min(input.size(), hello.size()),
              hello.begin());
  const auto decoded = DecodeHello(hello);
  if (decoded.has_value()) {
    const TcpHelloBytes again = Encode(*decoded);
    constexpr size_t kUsed = 8 + 3 * 8 + 5 * 4;
    COXSWAIN_CHECK(
        std::equal(again.begin(), again.begin() + kUsed, hello.begin()));
  }
  CollectiveHeaderBytes header = {};
  std::copy_n(input.data(), std::min(input.size(), header.size()),
              header.begin());
  const auto collective = DecodeCollectiveHeader(header);
  if (collective.has_value()) {
    COXSWAIN_CHECK(Encode(*collective) == header && collective->count >= 0);
    COXSWAIN_CHECK(!Describe(*collective).empty());
  }
}

void FuzzTcpPeer(absl::string_view input) {
  FuzzBytes bytes(input);
  CancelSignal cancel;
  CommunicatorOptions options;
  options.id = "fuzz";
  options.rank = static_cast<int>(bytes.Below(2));
  options.size = 2;
  options.store = std::make_shared<MemoryStore>();
  options.timeout = kTcpTimeout;
  options.cancel = &cancel;
  const int peer = 1 - options.rank;
  absl::StatusOr<std::unique_ptr<Communicator>> connected;
  std::thread connecting([&] { connected = ConnectTcp(options); });
  HostileTcpPeer hostile(options, &bytes);
  const bool met = hostile.Meet();
  if (!met) cancel.Raise(absl::AbortedError("rank 0 or rank 1 is hostile"));
  connecting.join();
  if (!connected.ok()) {
    COXSWAIN_CHECK(!met);
    return CheckEnd(connected.status(), peer);
  }
  const size_t before = Allocated();
  std::vector<FuzzedOperation> operations = Begin(connected->get());
  FuzzedChannels channels(connected->get());
  hostile.Act();
  hostile.Leave();
  COXSWAIN_CHECK(!channels.Join() || !hostile.only_letters());
  for (FuzzedOperation& operation : operations) {
    const absl::Status status = operation.work->Wait(kTcpTimeout);
    CheckEnd(status, peer);
    COXSWAIN_CHECK(!status.ok() || !operation.receives ||
                   !hostile.only_letters() || IsAllLetters(*operation.data));
    // Not read any more, which a sanitizer would notice.
    operation.data.reset();
  }
  COXSWAIN_CHECK(Allocated() < before + kMostHeld);
}

}  // namespace coxswain
