#include "client/torch/elastic/elastic_shards.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/comm/rank_values.h"

namespace coxswain::torch {
namespace {

// What an optimizer wants, from the ranks of an exchange.
class PeersPieces : public PieceReader {
 public:
  explicit PeersPieces(PieceExchange& exchange) : exchange_(exchange) {}

  absl::StatusOr<int64_t> StepOf(const std::string& parameter,
                                 const std::string& kind) override {
    return exchange_.pieces().StepOf(parameter, kind);
  }
  absl::Status Read(const TensorPiece& want, const Span& to) override {
    wanted_.push_back({want, static_cast<char*>(to.data)});
    return absl::OkStatus();
  }
  absl::Status Finish() override { return exchange_.Get(wanted_); }

 private:
  PieceExchange& exchange_;
  std::vector<PieceMemory> wanted_;
};

}  // namespace

absl::Status ElasticShards::Keep(const ShardedOptimizer& optimizer,
                                 const ShardVersion& version) {
  kept_.clear();
  version_ = version;
  touched_ = true;
  COXSWAIN_ASSIGN_OR_RETURN(std::vector<KeptPiece> pieces, optimizer.Pieces());
  touched_ = version.progress > 0;
  if (!touched_) return absl::OkStatus();
  for (KeptPiece& one : pieces) {
    const auto bytes = static_cast<size_t>(one.piece.bytes());
    kept_.push_back(
        {std::move(one.piece),
         std::string(static_cast<const char*>(one.memory.data), bytes)});
  }
  return absl::OkStatus();
}

absl::Status ElasticShards::Restore(const ShardVersion& version,
                                    Communicator& communicator,
                                    ShardedOptimizer* optimizer) {
  std::vector<PieceMemory> have;
  if (version_ == version) {
    for (Kept& one : kept_) have.push_back({one.piece, one.elements.data()});
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      PieceExchange exchange,
      PieceExchange::Create(std::move(have), options_, communicator));
  PeersPieces reader(exchange);
  return optimizer->Load(reader);
}

absl::Status ElasticShards::CheckUntouched(Communicator& communicator) const {
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::vector<int64_t> touched,
      GatherValues(communicator, {touched_ ? 1 : 0}, options_.timeout));
  if (touched[0] == 0) return absl::OkStatus();
  return absl::DataLossError(
      "rank 0 was cut short in the job's first step, and its parameters are no "
      "longer those that training begins with; start the job again");
}

absl::StatusOr<bool> ElasticShards::WasLoaded(
    const ShardVersion& version, Communicator& communicator) const {
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::vector<int64_t> noted,
      ReduceValues(communicator, {loaded_ == version ? 1 : 0}, ReduceOp::kMax,
                   options_.timeout));
  return noted[0] == 1;
}

}  // namespace coxswain::torch
