#include "client/torch/elastic/module_catch_up.h"

#include <torch/utils.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/module_tensors.h"
#include "client/torch/optimizer_state.h"
#include "client/torch/state_bytes.h"

namespace coxswain::torch {
namespace {

using ::torch::Tensor;

// Of the names of a state's tensors.
constexpr uint64_t kMaxNames = 8;
constexpr uint64_t kMaxNameBytes = 64;

absl::Status OfAnotherOptimizer() {
  return absl::DataLossError(
      "the description of a step is that of another optimizer");
}

template <typename Number>
void Append(Number number, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&number), sizeof(number));
}

// Takes numbers and texts off the front of bytes; `ok` until there are too few.
class Reader {
 public:
  explicit Reader(absl::string_view bytes) : bytes_(bytes) {}
  bool ok() const { return ok_; }
  bool at_end() const { return bytes_.empty(); }

  template <typename Number>
  Number Take() {
    Number number = 0;
    const absl::string_view bytes = TakeBytes(sizeof(number));
    if (ok_) std::memcpy(&number, bytes.data(), sizeof(number));
    return number;
  }
  absl::string_view TakeBytes(uint64_t size) {
    ok_ = ok_ && size <= bytes_.size();
    if (!ok_) return "";
    const absl::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }

 private:
  absl::string_view bytes_;
  bool ok_ = true;
};

// Takes the form of a parameter's state.
absl::Status TakeForm(Reader* reader, int64_t* steps,
                      std::vector<std::string>* names) {
  *steps = reader->Take<int64_t>();
  const auto count = reader->Take<uint64_t>();
  if (!reader->ok() || *steps < 0 || count > kMaxNames) {
    return OfAnotherOptimizer();
  }
  for (uint64_t name = 0; name < count; ++name) {
    const auto size = reader->Take<uint64_t>();
    if (size > kMaxNameBytes) return OfAnotherOptimizer();
    names->emplace_back(reader->TakeBytes(size));
  }
  return reader->ok() ? absl::OkStatus() : OfAnotherOptimizer();
}

bool IsDense(const Tensor& tensor) {
  return tensor.layout() == ::torch::kStrided && tensor.is_cpu() &&
         tensor.is_contiguous();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModuleCatchUp>> ModuleCatchUp::Create(
    const ::torch::nn::Module& module, ::torch::optim::Optimizer* optimizer) {
  COXSWAIN_RETURN_IF_ERROR(CheckKnown(*optimizer));
  std::unique_ptr<ModuleCatchUp> made(new ModuleCatchUp(optimizer));
  const auto number_of = [&](const Tensor& parameter) {
    std::vector<Tensor>& all = made->parameters_;
    const auto found = std::find_if(
        all.begin(), all.end(),
        [&](const Tensor& other) { return other.is_same(parameter); });
    const auto number = static_cast<int>(found - all.begin());
    if (found == all.end()) all.push_back(parameter);
    return number;
  };
  for (const Tensor& parameter : module.parameters()) {
    if (parameter.defined()) number_of(parameter);
  }
  for (const auto& group : optimizer->param_groups()) {
    for (const Tensor& parameter : group.params()) {
      made->trained_.emplace_back(parameter, number_of(parameter));
    }
  }
  made->used_.resize(made->trained_.size());
  for (const auto& [parameter, number] : made->trained_) {
    if (KeepsKnownState(*optimizer, parameter)) continue;
    return absl::UnimplementedError(
        "what the optimizer keeps of a parameter is of a type of its own");
  }
  for (const Tensor& parameter : made->parameters_) {
    if (IsDense(parameter)) continue;
    return absl::UnimplementedError(
        "a parameter is not contiguous in the CPU's memory");
  }
  return made;
}

std::vector<double> ModuleCatchUp::Rates() const {
  std::vector<double> rates;
  for (const auto& group : optimizer_.param_groups()) {
    rates.push_back(group.options().get_lr());
  }
  return rates;
}

void ModuleCatchUp::SetRates(const std::vector<double>& rates) {
  for (size_t i = 0; i < rates.size(); ++i) {
    optimizer_.param_groups()[i].options().set_lr(rates[i]);
  }
}

std::vector<Span> ModuleCatchUp::AveragesToSend() {
  rates_before_ = Rates();
  averages_.clear();
  std::vector<Span> spans;
  for (size_t i = 0; i < trained_.size(); ++i) {
    const Tensor average = trained_[i].first.grad();
    used_[i] = average.defined() ? 1 : 0;
    if (!average.defined()) continue;
    averages_.push_back(average.detach().contiguous());
    spans.push_back(BytesOf(averages_.back()));
  }
  return spans;
}

std::string ModuleCatchUp::DescribeStep(bool begins) const {
  std::string bytes;
  const std::vector<double> rates = Rates();
  for (const std::vector<double>& some :
       {rates_before_.empty() ? rates : rates_before_, rates}) {
    for (const double rate : some) Append(rate, &bytes);
  }
  bytes.append(used_.data(), used_.size());
  if (!begins) return bytes;
  for (const auto& [parameter, number] : trained_) {
    const SliceState state = StateOf(optimizer_, parameter);
    Append<int64_t>(state.steps, &bytes);
    Append<uint64_t>(state.tensors.size(), &bytes);
    for (const auto& [name, tensor] : state.tensors) {
      Append<uint64_t>(name.size(), &bytes);
      bytes += name;
    }
  }
  return bytes;
}

std::vector<Span> ModuleCatchUp::StateToSend() {
  sent_.clear();
  std::vector<Span> spans;
  for (const Part& part : Parts(&sent_)) spans.push_back(part.span);
  return spans;
}

std::vector<CatchUpTarget::Part> ModuleCatchUp::Parts(
    std::vector<c10::Storage>* memory) const {
  std::vector<Part> parts;
  const auto add = [&](const Tensor& tensor, int number) {
    parts.push_back({BytesOf(tensor), number});
    if (memory != nullptr) memory->push_back(tensor.storage());
  };
  for (size_t i = 0; i < parameters_.size(); ++i) {
    add(parameters_[i], static_cast<int>(i));
  }
  for (const auto& [parameter, number] : trained_) {
    for (const auto& [name, tensor] : StateOf(optimizer_, parameter).tensors) {
      add(tensor, number);
    }
  }
  return parts;
}

absl::StatusOr<ModuleCatchUp::Description> ModuleCatchUp::Parse(
    absl::string_view rest) const {
  Reader reader(rest);
  Description description;
  const size_t groups = optimizer_.param_groups().size();
  for (std::vector<double>* rates :
       {&description.rates_before, &description.rates}) {
    for (size_t i = 0; i < groups; ++i) {
      rates->push_back(reader.Take<double>());
    }
  }
  const absl::string_view used = reader.TakeBytes(trained_.size());
  description.used.assign(used.begin(), used.end());
  const bool flags = std::all_of(used.begin(), used.end(),
                                 [](char flag) { return (flag & ~1) == 0; });
  if (!reader.ok() || !flags) return OfAnotherOptimizer();
  // What follows is there where newcomers begin.
  if (reader.at_end()) return description;
  for (size_t i = 0; i < trained_.size(); ++i) {
    Form form;
    COXSWAIN_RETURN_IF_ERROR(TakeForm(&reader, &form.steps, &form.names));
    description.forms.push_back(std::move(form));
  }
  if (!reader.at_end()) return OfAnotherOptimizer();
  return description;
}

absl::Status ModuleCatchUp::Begin(absl::string_view rest) {
  COXSWAIN_ASSIGN_OR_RETURN(const Description description, Parse(rest));
  if (description.forms.size() != trained_.size()) {
    return absl::DataLossError(
        "the description of a state is that of another optimizer");
  }
  Backup backup;
  COXSWAIN_ASSIGN_OR_RETURN(backup.optimizer, SaveOptimizer(optimizer_));
  COXSWAIN_RETURN_IF_ERROR(Guarded("keeping the parameters", [&] {
    for (const Tensor& parameter : parameters_) {
      backup.values.push_back(parameter.detach().clone());
    }
  }));
  backup_ = std::move(backup);
  const absl::Status made = MakeState(description.forms);
  if (!made.ok()) {
    COXSWAIN_RETURN_IF_ERROR(Undo());
    return made;
  }
  DropAverages();
  SetRates(description.rates);
  return absl::OkStatus();
}

absl::Status ModuleCatchUp::MakeState(const std::vector<Form>& forms) {
  optimizer_.state().clear();
  for (size_t i = 0; i < trained_.size(); ++i) {
    const Form& form = forms[i];
    const Tensor& parameter = trained_[i].first;
    if (!form.names.empty()) {
      COXSWAIN_RETURN_IF_ERROR(SetState(
          optimizer_, parameter, form.steps,
          [&form](const std::string& name,
                  const Tensor&) -> absl::StatusOr<bool> {
            return std::find(form.names.begin(), form.names.end(), name) !=
                   form.names.end();
          }));
    }
    // In this order its tensors come.
    const SliceState state = StateOf(optimizer_, parameter);
    const bool same = std::equal(
        state.tensors.begin(), state.tensors.end(), form.names.begin(),
        form.names.end(), [](const auto& entry, const std::string& name) {
          return entry.first == name;
        });
    if (!same || state.steps != form.steps) return OfAnotherOptimizer();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<CatchUpTarget::Part>> ModuleCatchUp::State() {
  std::vector<Part> parts;
  COXSWAIN_RETURN_IF_ERROR(
      Guarded("reading the state", [&] { parts = Parts(); }));
  return parts;
}

absl::StatusOr<std::vector<CatchUpTarget::Part>> ModuleCatchUp::Averages(
    absl::string_view rest) {
  COXSWAIN_ASSIGN_OR_RETURN(const Description description, Parse(rest));
  std::vector<Part> parts;
  COXSWAIN_RETURN_IF_ERROR(Guarded("making room for averages", [&] {
    for (size_t i = 0; i < trained_.size(); ++i) {
      const auto& [parameter, number] = trained_[i];
      Tensor& gradient = Tensor(parameter).mutable_grad();
      if (description.used[i] == 0) {
        gradient = Tensor();
        continue;
      }
      if (!gradient.defined()) {
        gradient = ::torch::empty_like(parameter.detach());
      }
      parts.push_back({BytesOf(gradient), number});
    }
  }));
  return parts;
}

absl::Status ModuleCatchUp::Step(absl::string_view rest, bool applied) {
  COXSWAIN_ASSIGN_OR_RETURN(const Description description, Parse(rest));
  if (applied) {
    SetRates(description.rates_before);
    // Its gradients stay, as memory for the next averages.
    COXSWAIN_RETURN_IF_ERROR(
        Guarded("optimizer step", [this] { optimizer_.step(); }));
  }
  SetRates(description.rates);
  return absl::OkStatus();
}

void ModuleCatchUp::DropAverages() {
  for (const auto& [parameter, number] : trained_) {
    Tensor(parameter).mutable_grad() = Tensor();
  }
}

void ModuleCatchUp::Forget() {
  DropAverages();
  backup_.reset();
}

absl::Status ModuleCatchUp::Undo() {
  DropAverages();
  if (!backup_) return absl::OkStatus();
  const Backup backup = *std::exchange(backup_, std::nullopt);
  absl::Status undone = LoadOptimizer(backup.optimizer, &optimizer_);
  undone.Update(Guarded("taking the parameters back", [&] {
    const ::torch::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      parameters_[i].copy_(backup.values[i]);
    }
  }));
  if (undone.ok()) return undone;
  return absl::DataLossError(
      absl::StrCat("going back to its own state after catching up failed: ",
                   undone.message(), "; start this worker again"));
}

}  // namespace coxswain::torch
