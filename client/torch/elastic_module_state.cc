#include "client/torch/elastic_module_state.h"

#include <torch/utils.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "client/schedule/schedule_client.h"
#include "client/torch/module_tensors.h"
#include "client/torch/state_bytes.h"
#include "schedule/ticket.h"

namespace coxswain::torch {
namespace {

using ::torch::Tensor;

void PutNumber(int64_t number, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void PutText(absl::string_view text, std::string* bytes) {
  PutNumber(static_cast<int64_t>(text.size()), bytes);
  bytes->append(text.data(), text.size());
}

// Takes fields off the front; once one does not fit, all that follow are empty.
class FieldReader {
 public:
  explicit FieldReader(absl::string_view bytes) : rest_(bytes) {}
  int64_t Number() {
    int64_t number = 0;
    const absl::string_view bytes = Take(sizeof(number));
    if (good_) std::memcpy(&number, bytes.data(), sizeof(number));
    return number;
  }
  std::string Text() { return std::string(Take(Number())); }
  bool done() const { return good_ && rest_.empty(); }
  bool good() const { return good_; }

 private:
  absl::string_view Take(int64_t size) {
    good_ = good_ && size >= 0 && static_cast<size_t>(size) <= rest_.size();
    if (!good_) return "";
    const absl::string_view taken = rest_.substr(0, static_cast<size_t>(size));
    rest_.remove_prefix(taken.size());
    return taken;
  }
  absl::string_view rest_;
  bool good_ = true;
};

// A zero stands for a number that is not there: to look at one makes it.
void PutNumbers(const std::map<std::string, int64_t>& numbers,
                std::string* bytes) {
  int64_t count = 0;
  for (const auto& [name, number] : numbers) count += number != 0 ? 1 : 0;
  PutNumber(count, bytes);
  for (const auto& [name, number] : numbers) {
    if (number == 0) continue;
    PutText(name, bytes);
    PutNumber(number, bytes);
  }
}

std::map<std::string, int64_t> ReadNumbers(FieldReader* reader) {
  std::map<std::string, int64_t> numbers;
  for (int64_t left = reader->Number(); left > 0 && reader->good(); --left) {
    const std::string name = reader->Text();
    numbers[name] = reader->Number();
  }
  return numbers;
}

// Returns whether each element has memory of its own: each dimension steps over
// all that those of smaller strides reach.
bool HasOwnElements(const Tensor& tensor) {
  std::vector<std::pair<int64_t, int64_t>> dimensions;  // stride, size
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) == 0) return true;
    if (tensor.size(i) > 1) {
      dimensions.emplace_back(tensor.stride(i), tensor.size(i));
    }
  }
  std::sort(dimensions.begin(), dimensions.end());
  int64_t last = 0;  // the farthest element of the dimensions before
  for (const auto& [stride, size] : dimensions) {
    if (stride <= last) return false;
    last += stride * (size - 1);
  }
  return true;
}

absl::Status CheckMemory(const std::string& name, const Tensor& tensor) {
  if (!tensor.defined()) return absl::OkStatus();
  if (tensor.is_cpu() && HasOwnElements(tensor)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", name, "\" cannot be copied between workers: ",
      tensor.is_cpu()
          ? "some of its elements share memory (sizes [" +
                absl::StrJoin(tensor.sizes(), ", ") + "], strides [" +
                absl::StrJoin(tensor.strides(), ", ") +
                "]); register a contiguous() copy of it"
          : "it is on a GPU, and changes of the members need the CPU's "
            "memory"));
}

}  // namespace

std::string ElasticRecord::Serialize() const {
  std::string bytes;
  PutNumber(progress, &bytes);
  PutNumbers(position, &bytes);
  PutNumbers(counters, &bytes);
  int64_t count = 0;
  for (const auto& [name, blob] : blobs) count += blob.empty() ? 0 : 1;
  PutNumber(count, &bytes);
  for (const auto& [name, blob] : blobs) {
    if (blob.empty()) continue;
    PutText(name, &bytes);
    PutText(blob, &bytes);
  }
  return bytes;
}

absl::StatusOr<ElasticRecord> ElasticRecord::Parse(absl::string_view bytes) {
  FieldReader reader(bytes);
  ElasticRecord record;
  record.progress = reader.Number();
  record.position = ReadNumbers(&reader);
  record.counters = ReadNumbers(&reader);
  for (int64_t left = reader.Number(); left > 0 && reader.good(); --left) {
    const std::string name = reader.Text();
    record.blobs[name] = reader.Text();
  }
  if (reader.done()) return record;
  return absl::DataLossError(
      "the counters and positions of a peer cannot be read; do all workers run "
      "the same version?");
}

absl::StatusOr<std::unique_ptr<ElasticModuleState>> ElasticModuleState::Create(
    std::shared_ptr<::torch::nn::Module> module,
    ::torch::optim::Optimizer* optimizer) {
  for (const NamedTensor& named : TensorsOf(*module)) {
    COXSWAIN_RETURN_IF_ERROR(CheckMemory(named.name, named.tensor));
  }
  std::unique_ptr<ElasticModuleState> state(
      new ElasticModuleState(std::move(module), optimizer));
  state->Keep();
  return state;
}

void ElasticModuleState::Keep() {
  in_window_ = false;
  dense_.clear();
  loose_dense_.clear();
  kept_ = record_;
  kept_buffers_.clear();
  for (const Tensor& buffer : module_->buffers()) {
    kept_buffers_.push_back(buffer.defined() ? buffer.detach().clone()
                                             : Tensor());
  }
}

void ElasticModuleState::BeginUndeclared() {
  if (std::exchange(in_window_, true)) return;
  kept_ = record_;
}

int64_t ElasticModuleState::step() const {
  const auto train = record_.position.find(schedule::kTrainStream);
  return train == record_.position.end() ? 0 : train->second;
}

void ElasticModuleState::Rollback() {
  const absl::Status status = Guarded("rolling back", [this] {
    module_->zero_grad();
    if (!std::exchange(in_window_, false)) return;
    record_ = kept_;
    const ::torch::NoGradGuard no_grad;
    const std::vector<Tensor> buffers = module_->buffers();
    for (size_t i = 0; i < buffers.size() && i < kept_buffers_.size(); ++i) {
      if (buffers[i].defined()) buffers[i].copy_(kept_buffers_[i]);
    }
  });
  if (!status.ok()) LogError("rollback", {{"reason", status.message()}});
}

std::vector<Span> ElasticModuleState::SpansOf(
    const std::vector<Tensor>& tensors, std::vector<DenseCopy>* copies) {
  copies->clear();
  std::vector<Span> spans;
  for (const Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    if (tensor.is_contiguous()) {
      spans.push_back(BytesOf(tensor));
      continue;
    }
    copies->push_back({tensor, tensor.detach().contiguous()});
    spans.push_back(BytesOf(copies->back().dense));
  }
  return spans;
}

std::vector<Span> ElasticModuleState::Tensors() {
  return SpansOf(module_->parameters(), &dense_);
}

std::vector<Span> ElasticModuleState::LooseTensors() {
  return SpansOf(module_->buffers(), &loose_dense_);
}

absl::Status ElasticModuleState::TakeTensors() {
  return Guarded("taking copied tensors over", [this] {
    const ::torch::NoGradGuard no_grad;
    for (std::vector<DenseCopy>* copies : {&dense_, &loose_dense_}) {
      for (DenseCopy& copy : *copies) copy.tensor.copy_(copy.dense);
      copies->clear();
    }
  });
}

absl::StatusOr<std::string> ElasticModuleState::Save() {
  COXSWAIN_ASSIGN_OR_RETURN(const std::string optimizer,
                            SaveOptimizer(optimizer_));
  std::string bytes;
  PutText(record_.Serialize(), &bytes);
  return bytes + optimizer;
}

absl::Status ElasticModuleState::Load(absl::string_view bytes, int64_t) {
  int64_t size = -1;
  if (bytes.size() >= sizeof(size)) {
    std::memcpy(&size, bytes.data(), sizeof(size));
    bytes.remove_prefix(sizeof(size));
  }
  if (size < 0 || static_cast<size_t>(size) > bytes.size()) {
    return absl::DataLossError("a peer's state was cut short");
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      ElasticRecord record,
      ElasticRecord::Parse(bytes.substr(0, static_cast<size_t>(size))));
  COXSWAIN_RETURN_IF_ERROR(
      LoadOptimizer(bytes.substr(static_cast<size_t>(size)), &optimizer_));
  record_ = std::move(record);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> ElasticModuleState::Digest() {
  return DigestOptimizer(optimizer_);
}

absl::Status ElasticModuleState::LoadLooseBytes(absl::string_view bytes) {
  COXSWAIN_ASSIGN_OR_RETURN(record_, ElasticRecord::Parse(bytes));
  return absl::OkStatus();
}

}  // namespace coxswain::torch
