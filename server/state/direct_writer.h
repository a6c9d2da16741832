#ifndef COXSWAIN_SERVER_STATE_DIRECT_WRITER_H_
#define COXSWAIN_SERVER_STATE_DIRECT_WRITER_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "server/state/state_writer.h"

namespace coxswain::server {

// Commits each batch on the caller's thread and calls back before it returns:
// for tests, where everything is to happen at once. The store outlives it.
class DirectWriter : public StateWriter {
 public:
  explicit DirectWriter(StateStore* store) : store_(store) {}

  absl::StatusOr<std::string> Get(absl::string_view table,
                                  absl::string_view key) const override {
    return store_->Get(table, key);
  }
  absl::StatusOr<std::vector<Record>> List(
      absl::string_view table) const override {
    return store_->List(table);
  }
  absl::StatusOr<std::vector<std::string>> Tables(
      absl::string_view prefix) const override {
    return store_->Tables(prefix);
  }
  absl::StatusOr<std::vector<Damaged>> FindDamaged() const override {
    return store_->FindDamaged();
  }
  absl::Status Apply(const StateBatch& batch) override {
    return store_->Apply(batch);
  }
  void Write(StateBatch batch, Done done) override {
    done(batch.empty() ? absl::OkStatus() : store_->Apply(batch));
  }
  void AfterWritten(std::function<void()> done) override { done(); }

 private:
  StateStore* const store_;
};

// For tests: runs a callback between the decision to write and the write.
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

#endif  // COXSWAIN_SERVER_STATE_DIRECT_WRITER_H_
