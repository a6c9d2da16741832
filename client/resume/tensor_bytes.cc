#include "client/resume/tensor_bytes.h"

#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

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
  // Room for this many bytes, after their number.
  char* Elements(size_t size) {
    Number(size);
    char* const room = at_;
    at_ += size;
    return room;
  }

 private:
  void Raw(const void* data, size_t size) {
    if (size > 0) std::memcpy(at_, data, size);
    at_ += size;
  }
  char* at_;
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

absl::Status CheckFits(const std::map<std::string, SavedTensor>& saved,
                       const std::vector<TensorForm>& here) {
  std::vector<std::string> differences;
  std::map<std::string, SavedTensor> rest = saved;
  for (const TensorForm& named : here) {
    const std::string& form = named.form;
    const auto found = rest.find(named.name);
    if (found == rest.end()) {
      differences.push_back(
          absl::StrCat(named.name, " (", form, ") not in the checkpoint"));
      continue;
    }
    if (found->second.form != form ||
        found->second.elements.size() != named.bytes) {
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

absl::StatusOr<std::map<std::string, SavedTensor>> ParseTensors(
    absl::string_view bytes) {
  std::map<std::string, SavedTensor> tensors;
  Reader reader(bytes);
  for (uint64_t left = reader.Number(); left > 0 && reader.good(); --left) {
    const std::string name(reader.Text());
    SavedTensor& saved = tensors[name];
    saved.form = reader.Text();
    saved.elements = reader.Text();
  }
  if (reader.done()) return tensors;
  return absl::DataLossError("these bytes are not those of a model");
}

void SaveTensors(const std::vector<TensorForm>& tensors,
                 const std::function<void(size_t tensor, char* to)>& copy,
                 std::string* bytes) {
  size_t size = sizeof(uint64_t);
  for (const TensorForm& tensor : tensors) {
    size += 3 * sizeof(uint64_t) + tensor.name.size() + tensor.form.size() +
            tensor.bytes;
  }
  bytes->resize(size);
  Writer writer(bytes->data());
  writer.Number(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    writer.Text(tensors[i].name);
    writer.Text(tensors[i].form);
    copy(i, writer.Elements(tensors[i].bytes));
  }
}

absl::StatusOr<std::vector<absl::string_view>> LoadTensors(
    absl::string_view bytes, const std::vector<TensorForm>& here) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto saved, ParseTensors(bytes));
  COXSWAIN_RETURN_IF_ERROR(CheckFits(saved, here));
  std::vector<absl::string_view> elements;
  for (const TensorForm& tensor : here) {
    elements.push_back(saved.at(tensor.name).elements);
  }
  return elements;
}

}  // namespace coxswain
