#include "client/torch/module_bytes.h"

#include <torch/utils.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "client/torch/module_tensors.h"

namespace coxswain::torch {
namespace {

using ::torch::Tensor;

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "elements and lengths are written as they are in memory");

constexpr size_t kMaxDifferences = 8;

std::string FormOf(const Tensor& tensor) {
  return absl::StrCat(::torch::toString(tensor.scalar_type()), " [",
                      absl::StrJoin(tensor.sizes(), ", "), "]");
}

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
    const std::string form = FormOf(named.tensor);
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

}  // namespace

absl::Status SaveModule(const ::torch::nn::Module& module, std::string* bytes) {
  return Guarded("copying the model", [&] {
    const std::vector<NamedTensor> tensors = TensorsOf(module);
    std::vector<std::string> forms;
    size_t size = sizeof(uint64_t);
    for (const NamedTensor& named : tensors) {
      forms.push_back(FormOf(named.tensor));
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

}  // namespace coxswain::torch
