#ifndef COXSWAIN_CLIENT_SESSION_FAKE_RAS_SERVER_H_
#define COXSWAIN_CLIENT_SESSION_FAKE_RAS_SERVER_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/unique_fd.h"

namespace coxswain {

// For tests: NCCL's RAS for one client, on a free port of the loopback. Reads
// a line and sends the next of `answers`, until there are no more; then it ends
// the connection, or with `hangs` leaves it open. Ended by its destructor.
class FakeRasServer {
 public:
  explicit FakeRasServer(std::vector<std::string> answers, bool hangs = false)
      : answers_(std::move(answers)), hangs_(hangs) {
    listener_ = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const bare = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof(address);
    COXSWAIN_CHECK(bind(listener_.get(), bare, size) == 0);
    COXSWAIN_CHECK(listen(listener_.get(), 1) == 0);
    COXSWAIN_CHECK(getsockname(listener_.get(), bare, &size) == 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this]() { Run(); });
  }
  ~FakeRasServer() { Finish(); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  // Returns the lines of the client, once it has closed the connection or is
  // not expected to send more.
  const std::vector<std::string>& Finish() {
    if (thread_.joinable()) {
      // Wakes a thread that waits for a client.
      shutdown(listener_.get(), SHUT_RDWR);
      thread_.join();
    }
    return said_;
  }

 private:
  void Run() {
    const UniqueFd client(
        accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client.valid()) return;
    for (const std::string& answer : answers_) {
      if (!ReadLine(client)) return;
      for (size_t at = 0; at < answer.size();) {
        const ssize_t sent = send(client.get(), answer.data() + at,
                                  answer.size() - at, MSG_NOSIGNAL);
        if (sent <= 0) return;
        at += static_cast<size_t>(sent);
      }
    }
    while (hangs_ && ReadLine(client)) {
    }
  }

  bool ReadLine(const UniqueFd& client) {
    std::string line;
    char c = 0;
    while (recv(client.get(), &c, 1, 0) == 1) {
      if (c == '\n') {
        said_.push_back(line);
        return true;
      }
      line.push_back(c);
    }
    return false;
  }

  const std::vector<std::string> answers_;
  const bool hangs_;
  UniqueFd listener_;
  int port_ = 0;
  std::vector<std::string> said_;  // the thread's, until it is joined
  std::thread thread_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SESSION_FAKE_RAS_SERVER_H_
