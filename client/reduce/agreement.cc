#include "client/reduce/agreement.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "client/comm/communicator.h"
#include "client/comm/rank_values.h"
#include "client/comm/work.h"
#include "client/device/tensor.h"

namespace coxswain {
namespace {

using Lines = std::vector<std::string>;

// What travels of a rank's lines, and is shown of them.
constexpr int64_t kMaxBytes = 16 << 20;
constexpr size_t kShownLines = 5;
constexpr size_t kShownColumns = 300;
constexpr size_t kShownRanks = 16;

bool IsRowMajor(const ParameterSpec& parameter) {
  if (parameter.count() == 0) return true;
  int64_t expected = 1;
  for (size_t i = parameter.shape.size(); i-- > 0;) {
    // Where there is one element, there is no second step.
    if (parameter.shape[i] != 1 && parameter.strides[i] != expected) {
      return false;
    }
    expected *= parameter.shape[i];
  }
  return true;
}

// Each line, preceded by its length.
std::string Encode(const Lines& lines) {
  std::string bytes;
  for (const std::string& line : lines) {
    const auto size = static_cast<uint32_t>(line.size());
    char prefix[sizeof(size)];
    std::memcpy(prefix, &size, sizeof(size));
    bytes.append(prefix, sizeof(prefix)).append(line);
  }
  return bytes;
}

// Returns the lines that are whole; others were cut off at kMaxBytes, or are a
// peer's nonsense.
Lines Decode(absl::string_view bytes) {
  Lines lines;
  uint32_t size = 0;
  while (bytes.size() >= sizeof(size)) {
    std::memcpy(&size, bytes.data(), sizeof(size));
    bytes.remove_prefix(sizeof(size));
    if (size > bytes.size()) break;
    lines.emplace_back(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  return lines;
}

// Returns a peer's line, fit for a message.
std::string Shown(absl::string_view line) {
  std::string shown;
  for (const char c : line.substr(0, kShownColumns)) {
    if (absl::ascii_isprint(static_cast<unsigned char>(c))) {
      shown += c;
    } else {
      shown += absl::CHexEscape(absl::string_view(&c, 1));
    }
  }
  return line.size() > kShownColumns ? shown + " ..." : shown;
}

// Those of `lines` that `others` lacks, in order; a line that stands twice is
// two lines.
Lines Without(const Lines& lines, const Lines& others) {
  std::map<absl::string_view, int64_t> counts;
  for (const std::string& line : others) ++counts[line];
  Lines result;
  for (const std::string& line : lines) {
    if (--counts[line] < 0) result.push_back(line);
  }
  return result;
}

std::string OneSide(int rank, const Lines& lines) {
  std::string text;
  const size_t shown = std::min(lines.size(), kShownLines);
  for (size_t i = 0; i < shown; ++i) {
    absl::StrAppend(&text, "\n  only rank ", rank, ": ", Shown(lines[i]));
  }
  if (shown < lines.size()) {
    absl::StrAppend(&text, "\n  only rank ", rank, ": ... and ",
                    lines.size() - shown, " more");
  }
  return text;
}

// How the lines of `rank` differ from those of the first rank.
std::string Difference(int first, const Lines& zero, int rank,
                       const Lines& other) {
  std::string text = OneSide(first, Without(zero, other)) +
                     OneSide(rank, Without(other, zero));
  if (!text.empty()) return text;
  const size_t common = std::min(zero.size(), other.size());
  for (size_t i = 0; i < common; ++i) {
    if (zero[i] == other[i]) continue;
    return absl::StrCat("\n  the same lines in another order, from line ", i,
                        " on; rank ", first, ": ", Shown(zero[i]), "; rank ",
                        rank, ": ", Shown(other[i]));
  }
  return absl::StrCat("\n  the first ", common, " lines are equal");
}

class Comparison {
 public:
  Comparison(Communicator* communicator, const Lines& lines,
             absl::Duration timeout, const AgreementWords& words)
      : communicator_(communicator),
        timeout_(timeout),
        words_(words),
        lines_(lines),
        encoded_(Encode(lines)),
        hash_(StableHash(encoded_)) {}

  absl::StatusOr<bool> AllEqual();
  // Returns the error where not all are equal.
  absl::Status Explain();

 private:
  // What a rank has sent of its lines.
  struct Said {
    uint64_t hash = 0;
    Lines lines;
  };
  absl::StatusOr<Said> Ask(int rank);
  int NameOf(int rank) const {
    return words_.ranks.empty() ? rank
                                : words_.ranks[static_cast<size_t>(rank)];
  }
  // The ranks that differ from rank 0, as all of them find themselves.
  absl::StatusOr<std::vector<int>> Differing(bool this_one);
  // Broadcasts zeroed memory, which `fill` prepares and `read` looks at.
  template <class Fill, class Read>
  absl::Status Run(int rank, int64_t count, DType dtype, const Fill& fill,
                   const Read& read);

  Communicator* const communicator_;
  const absl::Duration timeout_;
  const AgreementWords& words_;
  const Lines& lines_;
  const std::string encoded_;
  const uint64_t hash_;
};

template <class Fill, class Read>
absl::Status Comparison::Run(int rank, int64_t count, DType dtype,
                             const Fill& fill, const Read& read) {
  COXSWAIN_ASSIGN_OR_RETURN(const std::shared_ptr<BufferOwner> memory,
                            AllocateHostBuffer(*communicator_, count, dtype));
  fill(memory->span().data);
  COXSWAIN_RETURN_IF_ERROR(WaitHolding(
      communicator_->Broadcast(memory->span(), rank), memory, timeout_));
  read(memory->span().data);
  return absl::OkStatus();
}

absl::StatusOr<bool> Comparison::AllEqual() {
  // The maximum of ~hash is the complement of the minimum of hash.
  const auto hash = static_cast<int64_t>(hash_);
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::vector<int64_t> most,
      ReduceValues(*communicator_, {hash, ~hash}, ReduceOp::kMax, timeout_));
  return most[0] == ~most[1];
}

absl::StatusOr<Comparison::Said> Comparison::Ask(int rank) {
  const bool sends = rank == communicator_->rank();
  const int64_t size =
      std::min(static_cast<int64_t>(encoded_.size()), kMaxBytes);
  int64_t header[2] = {static_cast<int64_t>(hash_), size};
  COXSWAIN_RETURN_IF_ERROR(Run(
      rank, 2, DType::kInt64,
      [&](void* memory) {
        if (sends) std::memcpy(memory, header, sizeof(header));
      },
      [&](void* memory) { std::memcpy(header, memory, sizeof(header)); }));
  if (header[1] < 0 || header[1] > kMaxBytes) {
    return absl::DataLossError(
        absl::StrCat("rank ", NameOf(rank), " announced a description of ",
                     header[1], " bytes, at most ", kMaxBytes,
                     " are taken; look whether it runs the same version"));
  }
  Said said;
  said.hash = static_cast<uint64_t>(header[0]);
  if (header[1] == 0) return said;
  COXSWAIN_RETURN_IF_ERROR(Run(
      rank, header[1], DType::kUInt8,
      [&](void* memory) {
        if (sends) std::memcpy(memory, encoded_.data(), size);
      },
      [&](void* memory) {
        said.lines = Decode(
            {static_cast<const char*>(memory), static_cast<size_t>(header[1])});
      }));
  return said;
}

absl::StatusOr<std::vector<int>> Comparison::Differing(bool this_one) {
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::vector<int64_t> differs,
      GatherValues(*communicator_, {this_one ? 1 : 0}, timeout_));
  std::vector<int> ranks;
  for (int rank = 0; rank < communicator_->size(); ++rank) {
    if (differs[static_cast<size_t>(rank)] != 0) ranks.push_back(rank);
  }
  return ranks;
}

absl::Status Comparison::Explain() {
  COXSWAIN_ASSIGN_OR_RETURN(const Said zero, Ask(0));
  const bool differs = zero.hash != hash_;
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<int> ranks, Differing(differs));
  if (ranks.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the ranks' ", words_.what, " differ, but no rank differs from rank ",
        NameOf(0), "; look whether all run the same version"));
  }
  std::vector<int> names;
  for (const int rank : ranks) names.push_back(NameOf(rank));
  std::string message =
      absl::StrCat("the ranks must have the same ", words_.what, ", but ",
                   NameRanks(names), names.size() == 1 ? " differs" : " differ",
                   " from rank ", NameOf(0), ":");
  COXSWAIN_ASSIGN_OR_RETURN(const Said first, Ask(ranks[0]));
  message += differs ? Difference(NameOf(0), zero.lines,
                                  NameOf(communicator_->rank()), lines_)
                     : Difference(NameOf(0), zero.lines, names[0], first.lines);
  return absl::FailedPreconditionError(message);
}

uint64_t Bits(double value) {
  // There are many that are not a number, and which is not specified.
  if (std::isnan(value)) return 1;
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

uint64_t Combine(uint64_t hash, uint64_t bits) {
  return Mix64(hash ^ Mix64(bits));
}

}  // namespace

std::string NameRanks(const std::vector<int>& ranks) {
  const size_t shown = std::min(ranks.size(), kShownRanks);
  std::string text =
      absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                   absl::StrJoin(ranks.begin(), ranks.begin() + shown, ", "));
  if (shown < ranks.size()) {
    absl::StrAppend(&text, " and ", ranks.size() - shown, " more");
  }
  return text;
}

std::string DescribeParameter(int index, const ParameterSpec& parameter) {
  std::string line = absl::StrCat("parameter ", index, " \"", parameter.name,
                                  "\": ", NameOf(parameter.dtype), " [",
                                  absl::StrJoin(parameter.shape, ", "), "]");
  const bool has_strides = parameter.strides.size() == parameter.shape.size();
  if (parameter.strides.empty() || (has_strides && IsRowMajor(parameter))) {
    return line;
  }
  return absl::StrCat(line, " strides [",
                      absl::StrJoin(parameter.strides, ", "), "]");
}

absl::Status CheckAgreement(Communicator& communicator,
                            const std::vector<std::string>& lines,
                            absl::Duration timeout,
                            const AgreementWords& words) {
  if (communicator.size() == 1) return absl::OkStatus();
  Comparison comparison(&communicator, lines, timeout, words);
  COXSWAIN_ASSIGN_OR_RETURN(const bool equal, comparison.AllEqual());
  return equal ? absl::OkStatus() : comparison.Explain();
}

uint64_t HashLayout(const std::vector<Bucket>& buckets) {
  uint64_t hash = buckets.size();
  for (const Bucket& bucket : buckets) {
    hash = Combine(hash, static_cast<uint64_t>(bucket.data.dtype));
    hash = Combine(hash, bucket.gradients.size());
    for (const GradientSlot& slot : bucket.gradients) {
      hash = Combine(hash, static_cast<uint64_t>(slot.parameter));
      hash = Combine(hash, static_cast<uint64_t>(slot.offset));
      hash = Combine(hash, static_cast<uint64_t>(slot.count));
    }
  }
  return hash;
}

void StepDigest::Mix(uint64_t bits) { value_ = Combine(value_, bits); }

void StepDigest::Add(const StepReport& report, int64_t collectives,
                     bool same_averages) {
  Mix(static_cast<uint64_t>(report.step));
  Mix(report.empty ? 1 : 0);
  for (const BucketTiming& bucket : report.buckets) {
    Mix(static_cast<uint64_t>(bucket.gradient_bytes));
  }
  Mix(static_cast<uint64_t>(collectives));
  if (!same_averages) return;
  Mix(Bits(report.gradient_norm));
  Mix(static_cast<uint64_t>(report.non_finite));
}

}  // namespace coxswain
