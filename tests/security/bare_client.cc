#include "tests/security/bare_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/security/http2.h"

namespace coxswain {

std::string BareClient::Preface() {
  return absl::StrCat(kHttp2Preface, Http2Frame(kHttp2Settings, 0, 0, ""));
}

BareClient::BareClient(int port)
    : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  EXPECT_EQ(connect(fd_.get(), reinterpret_cast<sockaddr*>(&address),
                    sizeof(address)),
            0);
}

void BareClient::Send(const std::string& bytes) {
  EXPECT_EQ(send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

bool BareClient::Receives(const std::string& text) {
  std::string received;
  char data[64];
  pollfd readable = {fd_.get(), POLLIN, 0};
  while (!absl::StrContains(received, text)) {
    if (poll(&readable, 1, kTimeoutMs) <= 0) ADD_FAILURE() << "silence";
    const ssize_t size = recv(fd_.get(), data, sizeof(data), MSG_DONTWAIT);
    if (size <= 0) return false;
    received.append(data, static_cast<size_t>(size));
  }
  return true;
}

std::optional<uint32_t> BareClient::Setting(uint16_t id) {
  const std::string head = Read(9);
  const size_t size = Http2Number(head, 0, 3);
  EXPECT_EQ(head[3], kHttp2Settings);
  const std::string settings = Read(size);
  for (size_t at = 0; at + 6 <= size; at += 6) {
    if (Http2Number(settings, at, 2) == id) {
      return Http2Number(settings, at + 2, 4);
    }
  }
  return std::nullopt;
}

std::string BareClient::Read(size_t size) {
  std::string bytes;
  while (bytes.size() < size) {
    pollfd readable = {fd_.get(), POLLIN, 0};
    char data[64];
    const size_t left = std::min(sizeof(data), size - bytes.size());
    const ssize_t got = poll(&readable, 1, kTimeoutMs) > 0
                            ? recv(fd_.get(), data, left, 0)
                            : -1;
    if (got <= 0) {
      ADD_FAILURE() << "the server sends no more";
      return std::string(size, '\0');
    }
    bytes.append(data, static_cast<size_t>(got));
  }
  return bytes;
}

}  // namespace coxswain
