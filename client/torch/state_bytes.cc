#include "client/torch/state_bytes.h"

#include <torch/serialize.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "client/torch/module_tensors.h"

namespace coxswain::torch {
namespace {

using ::torch::Tensor;

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "elements and lengths are written as they are in memory");

constexpr size_t kMaxDifferences = 8;

// Writes into memory that is large enough.
class Writer {
 public:
  explicit Writer(char* at) : at_(at) {}
  void Number(uint64_t number) { Raw(&number, sizeof(number)); }
  void Text(absl::string_view text) {
    Number(text.size());
    Raw(text.data(), text.size());
  }
  void Elements(const Tensor& tensor) {
    const Tensor dense = tensor.detach().cpu().contiguous();
    Number(dense.nbytes());
    Raw(dense.data_ptr(), dense.nbytes());
  }

 private:
  void Raw(const void* data, size_t size) {
    if (size > 0) std::memcpy(at_, data, size);
    at_ += size;
  }
  char* at_;
};

struct Saved {
  absl::string_view form;
  absl::string_view elements;
};

class Reader {
 public:
  explicit Reader(absl::string_view bytes) : rest_(bytes) {}
  uint64_t Number() {
    uint64_t number = 0;
    good_ = good_ && rest_.size() >= sizeof(number);
    if (!good_) return 0;
    std::memcpy(&number, rest_.data(), sizeof(number));
    rest_.remove_prefix(sizeof(number));
    return number;
  }
  absl::string_view Text() {
    const uint64_t size = Number();
    good_ = good_ && size <= rest_.size();
    if (!good_) return "";
    const absl::string_view text = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return text;
  }
  bool good() const { return good_; }
  bool done() const { return good_ && rest_.empty(); }

 private:
  absl::string_view rest_;
  bool good_ = true;
};

absl::StatusOr<std::map<std::string, Saved>> Parse(absl::string_view bytes) {
  std::map<std::string, Saved> tensors;
  Reader reader(bytes);
  for (uint64_t left = reader.Number(); left > 0 && reader.good(); --left) {
    const std::string name(reader.Text());
    Saved& saved = tensors[name];
    saved.form = reader.Text();
    saved.elements = reader.Text();
  }
  if (reader.done()) return tensors;
  return absl::DataLossError("these bytes are not those of a model");
}

absl::Status CheckFits(const std::map<std::string, Saved>& saved,
                       const std::vector<NamedTensor>& here) {
  std::vector<std::string> differences;
  std::map<std::string, Saved> rest = saved;
  for (const NamedTensor& named : here) {
    const std::string form = DescribeForm(named.tensor);
    const auto found = rest.find(named.name);
    if (found == rest.end()) {
      differences.push_back(
          absl::StrCat(named.name, " (", form, ") not in the checkpoint"));
      continue;
    }
    if (found->second.form != form ||
        found->second.elements.size() != named.tensor.nbytes()) {
      differences.push_back(absl::StrCat(named.name, ": saved ",
                                         found->second.form, ", here ", form));
    }
    rest.erase(found);
  }
  for (const auto& [name, tensor] : rest) {
    differences.push_back(
        absl::StrCat(name, " (", tensor.form, ") only in the checkpoint"));
  }
  if (differences.empty()) return absl::OkStatus();
  const size_t count = differences.size();
  if (count > kMaxDifferences) {
    differences.resize(kMaxDifferences);
    differences.push_back(
        absl::StrCat("and ", count - kMaxDifferences, " more"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the checkpoint is of another model: ",
                   absl::StrJoin(differences, "; ")));
}

std::vector<double> LearningRates(const ::torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) {
    rates.push_back(group.options().get_lr());
  }
  return rates;
}

absl::string_view BytesOf(const std::vector<double>& numbers) {
  return absl::string_view(reinterpret_cast<const char*>(numbers.data()),
                           numbers.size() * sizeof(double));
}

uint32_t DigestTensor(const Tensor& tensor, uint32_t seed) {
  std::ostringstream type;
  type << tensor.scalar_type() << tensor.sizes();
  seed = Crc32c(type.str(), seed);
  const Tensor dense = tensor.detach().cpu().contiguous();
  return Crc32c(absl::string_view(static_cast<const char*>(dense.data_ptr()),
                                  dense.nbytes()),
                seed);
}

// Where its state is.
::torch::Device DeviceOf(const ::torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    if (!group.params().empty()) return group.params()[0].device();
  }
  return ::torch::kCPU;
}

// What a parameter's state writes into an archive, name by name.
uint32_t DigestState(const ::torch::optim::OptimizerParamState& state,
                     uint32_t seed) {
  ::torch::serialize::OutputArchive written;
  state.serialize(written);
  std::stringstream bytes;
  written.save_to(bytes);
  ::torch::serialize::InputArchive archive;
  archive.load_from(bytes);
  std::vector<std::string> keys = archive.keys();
  std::sort(keys.begin(), keys.end());
  for (const std::string& key : keys) {
    seed = Crc32c(key, seed);
    ::torch::IValue value;
    archive.read(key, value);
    if (value.isTensor()) {
      seed = DigestTensor(value.toTensor(), seed);
      continue;
    }
    std::ostringstream text;
    text << value;
    seed = Crc32c(text.str(), seed);
  }
  return seed;
}

}  // namespace

absl::Status SaveModule(const ::torch::nn::Module& module, std::string* bytes) {
  return Guarded("copying the model", [&] {
    const std::vector<NamedTensor> tensors = TensorsOf(module);
    std::vector<std::string> forms;
    size_t size = sizeof(uint64_t);
    for (const NamedTensor& named : tensors) {
      forms.push_back(DescribeForm(named.tensor));
      size += 3 * sizeof(uint64_t) + named.name.size() + forms.back().size() +
              named.tensor.nbytes();
    }
    bytes->resize(size);
    Writer writer(bytes->data());
    writer.Number(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      writer.Text(tensors[i].name);
      writer.Text(forms[i]);
      writer.Elements(tensors[i].tensor);
    }
  });
}

absl::Status LoadModule(absl::string_view bytes, ::torch::nn::Module* module) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto saved, Parse(bytes));
  const std::vector<NamedTensor> tensors = TensorsOf(*module);
  COXSWAIN_RETURN_IF_ERROR(CheckFits(saved, tensors));
  return Guarded("loading the model", [&] {
    const ::torch::NoGradGuard no_grad;
    for (const NamedTensor& named : tensors) {
      const absl::string_view elements = saved.at(named.name).elements;
      Tensor loaded = ::torch::empty(
          named.tensor.sizes(),
          ::torch::TensorOptions().dtype(named.tensor.scalar_type()));
      if (!elements.empty()) {
        std::memcpy(loaded.data_ptr(), elements.data(), elements.size());
      }
      named.tensor.copy_(loaded);
    }
  });
}

absl::StatusOr<std::string> SaveOptimizer(
    const ::torch::optim::Optimizer& optimizer) {
  std::string bytes(BytesOf(LearningRates(optimizer)));
  COXSWAIN_RETURN_IF_ERROR(Guarded("saving the optimizer", [&] {
    ::torch::serialize::OutputArchive archive;
    optimizer.save(archive);
    std::ostringstream stream;
    archive.save_to(stream);
    bytes += stream.str();
  }));
  return bytes;
}

absl::Status LoadOptimizer(absl::string_view bytes,
                           ::torch::optim::Optimizer* optimizer) {
  std::vector<double> rates(optimizer->param_groups().size());
  const size_t head = rates.size() * sizeof(double);
  if (bytes.size() < head) {
    return absl::DataLossError(
        absl::StrCat(bytes.size(), " bytes are no optimizer with ",
                     rates.size(), " groups of parameters"));
  }
  std::memcpy(rates.data(), bytes.data(), head);
  const absl::Status loaded = Guarded("loading the optimizer", [&] {
    const absl::string_view rest = bytes.substr(head);
    ::torch::serialize::InputArchive archive;
    // The peer's device may have another number.
    archive.load_from(rest.data(), rest.size(), DeviceOf(*optimizer));
    // What the peer has not, this one must not keep.
    optimizer->state().clear();
    optimizer->load(archive);
    for (size_t i = 0; i < rates.size(); ++i) {
      optimizer->param_groups()[i].options().set_lr(rates[i]);
    }
  });
  if (loaded.ok()) return loaded;
  return absl::DataLossError(loaded.message());
}

absl::StatusOr<uint64_t> DigestOptimizer(
    const ::torch::optim::Optimizer& optimizer) {
  uint32_t digest = Crc32c(BytesOf(LearningRates(optimizer)));
  COXSWAIN_RETURN_IF_ERROR(Guarded("reading the optimizer", [&] {
    for (const auto& group : optimizer.param_groups()) {
      for (const Tensor& parameter : group.params()) {
        const auto state = optimizer.state().find(
            c10::guts::to_string(parameter.unsafeGetTensorImpl()));
        if (state == optimizer.state().end()) {
          digest = Crc32c("none", digest);
        } else {
          digest = DigestState(*state->second, digest);
        }
      }
    }
  }));
  return digest;
}

}  // namespace coxswain::torch
