#ifndef COXSWAIN_SERVER_HTTP_REQUEST_STREAM_H_
#define COXSWAIN_SERVER_HTTP_REQUEST_STREAM_H_

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <string>

#include "absl/time/time.h"
#include "base/clock.h"
#include "httplib.h"

namespace coxswain::server {

// One connection, for one request: all of the request must come within a time
// and a number of bytes, and all of the answer go within that time again,
// however slowly a peer sends or reads its bytes. The library's own stream
// gives the same time to each read. One thread.
class RequestStream : public httplib::Stream {
 public:
  struct Limits {
    absl::Duration time;
    size_t bytes = 0;  // of the request
  };

  // `socket` is non-blocking, and stays the caller's. Raised, `stop` ends what
  // is under way.
  RequestStream(int socket, const Limits& limits, const Clock* clock,
                const std::atomic<bool>* stop);

  bool is_readable() const override { return true; }
  bool is_writable() const override { return !failed_; }
  ssize_t read(char* to, size_t size) override;
  ssize_t write(const char* from, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  // None: the library would refuse one above FD_SETSIZE.
  socket_t socket() const override { return INVALID_SOCKET; }

 private:
  // Until the socket is ready for these events, or time is up.
  bool Await(short events);
  ssize_t Fill();

  const int socket_;
  const Limits limits_;
  const Clock* const clock_;
  const std::atomic<bool>* const stop_;
  absl::Time deadline_;
  bool answering_ = false;
  bool failed_ = false;
  size_t taken_ = 0;  // from the socket
  std::array<char, 4096> buffer_;
  size_t begin_ = 0, end_ = 0;  // of what is in it
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_HTTP_REQUEST_STREAM_H_
