#ifndef COXSWAIN_SERVER_STATE_INTERRUPTED_WRITER_H_
#define COXSWAIN_SERVER_STATE_INTERRUPTED_WRITER_H_

#include <functional>
#include <utility>

#include "server/state/direct_writer.h"

namespace coxswain::server {

// For tests: does something between the decision to write and the write.
class InterruptedWriter : public DirectWriter {
 public:
  using DirectWriter::DirectWriter;
  void Write(StateBatch batch, Done done) override {
    const std::function<void()> interrupt = std::exchange(interrupt_, nullptr);
    if (interrupt) interrupt();
    DirectWriter::Write(std::move(batch), std::move(done));
  }
  void Interrupt(std::function<void()> interrupt) {
    interrupt_ = std::move(interrupt);
  }

 private:
  std::function<void()> interrupt_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STATE_INTERRUPTED_WRITER_H_
