// What workers read of each other, and of NCCL, before and beside training.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/cancel_signal.h"
#include "base/check.h"
#include "base/unique_fd.h"
#include "client/comm/communicator.h"
#include "client/comm/hosts.h"
#include "client/comm/memory_store.h"
#include "client/comm/shm/shm_communicator.h"
#include "client/session/fake_ras_server.h"
#include "client/session/nccl_ras.h"
#include "tests/fuzz/decoders.h"
#include "tests/fuzz/fuzz_bytes.h"

namespace coxswain {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(20);

// Returns the fuzzer's next bytes for every key.
class LyingStore : public RendezvousStore {
 public:
  explicit LyingStore(FuzzBytes* bytes) : bytes_(bytes) {}
  absl::Status Set(absl::string_view, absl::string_view) override {
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(absl::string_view, absl::Duration) override {
    return std::string(bytes_->Text());
  }

 private:
  FuzzBytes* const bytes_;
};

// A frame between ranks of one host, as client/comm/shm/peers.cc has it.
struct Frame {
  uint32_t kind = 0;
  uint32_t tag = 0;
  uint64_t id = 0;
  int64_t bytes = 0;
};

// Memory as a rank shares it: sealed, or not.
UniqueFd SharedMemory(int64_t bytes, bool sealed) {
  UniqueFd fd(memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  COXSWAIN_CHECK(ftruncate(fd.get(), bytes) == 0);
  if (sealed) {
    COXSWAIN_CHECK(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  }
  return fd;
}

// Rank 1 of 2 on this host, which means harm.
class HostilePeer {
 public:
  HostilePeer(const std::string& name, FuzzBytes* bytes)
      : bytes_(bytes), socket_(Connect(name)) {
    timeval timeout = {2, 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout,
               sizeof(timeout));
  }

  void Act() {
    Frame hello;
    hello.id = 1;
    if (bytes_->Below(16) == 15) hello.id = bytes_->Number();
    if (bytes_->Below(16) == 15) hello.kind = bytes_->Byte();
    Send(hello, "", -1);
    if (hello.id == 1 && hello.kind == 0) ScribbleOnArea();
    for (int i = 0; i < 32 && !bytes_->empty(); ++i) SendFrame();
  }

 private:
  static UniqueFd Connect(const std::string& name) {
    UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) +
                                               1 + name.size());
    COXSWAIN_CHECK(
        connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
    return fd;
  }

  void Send(const Frame& frame, absl::string_view text, int fd) {
    std::string message(reinterpret_cast<const char*>(&frame), sizeof(frame));
    message.append(text.data(), text.size());
    if (bytes_->Below(16) == 15) message.resize(bytes_->Byte());
    iovec part = {message.data(), message.size()};
    msghdr header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (fd >= 0) {
      header.msg_control = control;
      header.msg_controllen = sizeof(control);
      cmsghdr* const rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(rights), &fd, sizeof(int));
    }
    // The other side may have closed already.
    sendmsg(socket_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  void SendFrame() {
    Frame frame;
    frame.kind = bytes_->Below(8);
    frame.tag = bytes_->Byte();
    frame.id = bytes_->Number();
    frame.bytes = static_cast<int64_t>(bytes_->Number());
    const absl::string_view text = bytes_->Text();
    UniqueFd memory;
    const size_t what = bytes_->Below(4);
    if (what > 0) {
      const int64_t fits = std::clamp<int64_t>(frame.bytes, 0, 1 << 20);
      memory = SharedMemory(what == 1 ? 64 : fits, what != 3);
    }
    Send(frame, text, memory.get());
  }

  // Overwrites this rank's part of the shared area: phases, and the collective
  // that it announces.
  void ScribbleOnArea() {
    const UniqueFd area = ReceiveArea();
    if (!area.valid()) return;
    constexpr size_t kLines = 4 << 10;
    const off_t size = lseek(area.get(), 0, SEEK_END);
    if (size < 2 * static_cast<off_t>(kLines)) return;
    void* const memory =
        mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE,
             MAP_SHARED, area.get(), 0);
    if (memory == MAP_FAILED) return;
    char* const part = static_cast<char*>(memory) + size / 2;
    for (size_t i = bytes_->Below(8); i > 0; --i) {
      const size_t at = bytes_->Byte() * 8;
      const absl::string_view text = bytes_->Text();
      std::memcpy(part + at, text.data(), std::min(text.size(), kLines - at));
    }
    munmap(memory, static_cast<size_t>(size));
  }

  UniqueFd ReceiveArea() {
    char buffer[2048];
    iovec part = {buffer, sizeof(buffer)};
    msghdr header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    if (recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC) <= 0) {
      return UniqueFd();
    }
    const cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    if (rights == nullptr || rights->cmsg_type != SCM_RIGHTS) return UniqueFd();
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(rights), sizeof(int));
    return UniqueFd(fd);
  }

  FuzzBytes* const bytes_;
  const UniqueFd socket_;
};

// Rank 0 of 2: connects, and uses what it gets.
void BeHonest(const CommunicatorOptions& options) {
  const auto communicator = ConnectShm(options);
  if (!communicator.ok()) return;
  std::vector<float> values(16, 1);
  Span span;
  span.data = values.data();
  span.count = static_cast<int64_t>(values.size());
  (*communicator)->AllReduce(span)->Wait(kTimeout).IgnoreError();
  (*communicator)->Barrier()->Wait(kTimeout).IgnoreError();
  (*communicator)->Receive(span, 1, /*tag=*/1)->Wait(kTimeout).IgnoreError();
}

}  // namespace

void FuzzHosts(absl::string_view input) {
  FuzzBytes bytes(input);
  CommunicatorOptions options;
  options.id = "fuzz";
  options.size = 1 + static_cast<int>(bytes.Below(8));
  options.rank = static_cast<int>(bytes.Below(options.size));
  options.store = std::make_shared<LyingStore>(&bytes);
  const auto hosts = FindHosts(options, "this host");
  if (!hosts.ok()) return;
  for (int rank = 0; rank < options.size; ++rank) {
    const int place = hosts->local_rank(rank);
    COXSWAIN_CHECK(hosts->ranks(hosts->host_of(rank))[place] == rank);
  }
  for (int bridge = 0; bridge < hosts->bridges(); ++bridge) {
    COXSWAIN_CHECK(static_cast<int>(hosts->bridge(bridge).size()) ==
                   hosts->count());
  }
  AgreeThatAll(options, "fuzz", absl::OkStatus()).IgnoreError();
}

void FuzzShmPeer(absl::string_view input) {
  FuzzBytes bytes(input);
  CancelSignal cancel;
  CommunicatorOptions options;
  options.id = "fuzz";
  options.size = 2;
  options.store = std::make_shared<MemoryStore>();
  options.timeout = kTimeout;
  options.cancel = &cancel;
  std::thread honest([&] { BeHonest(options); });
  const auto name = options.store->Get("shm/fuzz/0", kTimeout);
  COXSWAIN_CHECK(name.ok());
  HostilePeer(*name, &bytes).Act();
  // For a rank that still waits for one that it can believe.
  cancel.Raise(absl::AbortedError("enough"));
  honest.join();
}

void FuzzNcclRas(absl::string_view input) {
  std::vector<std::string> answers =
      absl::StrSplit(input, absl::MaxSplits('\0', 2));
  const FakeRasServer server(std::move(answers));
  // After half a line both wait for the other.
  const auto text = ReadNcclRas(server.address(), absl::Milliseconds(20));
  if (text.ok()) COXSWAIN_CHECK(text->size() < kMostRasBytes + 100);
}

}  // namespace coxswain
