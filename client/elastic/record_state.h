#ifndef COXSWAIN_CLIENT_ELASTIC_RECORD_STATE_H_
#define COXSWAIN_CLIENT_ELASTIC_RECORD_STATE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/elastic/elastic_record.h"
#include "client/elastic/elastic_state.h"

namespace coxswain {

// A state whose bytes are a record and an optimizer's: that of a program,
// whatever its framework, which adds the tensors.
class RecordState : public ElasticState {
 public:
  // Returns what the program changes; kept by Keep.
  ElasticRecord& record() { return record_; }

  // Called between steps: Rollback restores the state as it is now.
  virtual void Keep();
  // Called when a window begins: Rollback restores what was kept. Otherwise
  // there is nothing to undo.
  void Begin() { in_window_ = true; }
  // Likewise, for a window that was not declared: what the program has noted
  // since Keep stays. Does nothing in a window.
  void BeginUndeclared();
  bool in_window() const { return in_window_; }

  // ElasticState.
  int64_t step() const override { return record_.step(); }
  int64_t progress() const override { return record_.progress; }
  void Rollback() override;
  absl::StatusOr<std::string> Save() override;
  absl::Status Load(absl::string_view bytes, int64_t step) override;
  // Returns the record: a program may have counted differently on each rank.
  std::string LooseBytes() override { return record_.Serialize(); }
  absl::Status LoadLooseBytes(absl::string_view bytes) override;
  // Returns the digest of the optimizer.
  absl::StatusOr<uint64_t> Digest() override;

 private:
  virtual absl::StatusOr<std::string> SaveOptimizer() = 0;
  virtual absl::Status LoadOptimizer(absl::string_view bytes) = 0;

  ElasticRecord record_;
  ElasticRecord kept_;
  bool in_window_ = false;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_ELASTIC_RECORD_STATE_H_
