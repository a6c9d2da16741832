#ifndef COXSWAIN_CAPI_NEWCOMER_H_
#define COXSWAIN_CAPI_NEWCOMER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "capi/coxswain.h"
#include "capi/table.h"
#include "client/elastic/catch_up/catch_up_target.h"
#include "client/elastic/catch_up/receiver.h"

namespace coxswain::capi {

// A program's state, by the functions that it has passed.
class ProgramTarget : public CatchUpTarget {
 public:
  explicit ProgramTarget(const cx_newcomer_calls& calls) : calls_(calls) {}

  absl::Status Begin(absl::string_view rest) override;
  absl::StatusOr<std::vector<Part>> State() override;
  absl::StatusOr<std::vector<Part>> Averages(absl::string_view rest) override;
  absl::Status Step(absl::string_view rest, bool applied) override;
  absl::Status Undo() override;
  // The program forgets by itself what it could go back to.
  void Forget() override {}

 private:
  const cx_newcomer_calls calls_;
};

// What a cx_newcomer stands for.
struct Newcomer {
  explicit Newcomer(const cx_newcomer_calls& calls) : target(calls) {}

  ProgramTarget target;
  std::unique_ptr<catch_up::Receiver> receiver;  // destroyed first
};

// Returns all newcomers that listen. Never destroyed.
Table<Newcomer>& Newcomers();

}  // namespace coxswain::capi

#endif  // COXSWAIN_CAPI_NEWCOMER_H_
