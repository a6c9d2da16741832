#include "client/torch/state_bytes.h"

#include <torch/serialize.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "client/resume/tensor_bytes.h"
#include "client/torch/module_tensors.h"
#include "client/torch/optimizer_state.h"
#include "client/torch/python_optimizer.h"

namespace coxswain::torch {
namespace {

using ::torch::Tensor;

std::vector<TensorForm> FormsOf(const std::vector<NamedTensor>& tensors) {
  std::vector<TensorForm> forms;
  for (const NamedTensor& named : tensors) {
    forms.push_back(
        {named.name, DescribeForm(named.tensor), named.tensor.nbytes()});
  }
  return forms;
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

// The tensors in the order that this kind of optimizer has them in, with their
// names: any of them may be missing.
uint32_t DigestKnown(const SliceState& state, uint32_t seed) {
  if (state.tensors.empty()) return Crc32c("none", seed);
  seed = Crc32c(absl::StrCat(state.steps, " steps"), seed);
  for (const auto& [name, tensor] : state.tensors) {
    seed = DigestTensor(tensor, Crc32c(name, seed));
  }
  return seed;
}

// What a parameter's state writes into an archive, name by name.
uint32_t DigestArchived(const ::torch::optim::OptimizerParamState& state,
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

// Those that need no gradient.
std::vector<NamedTensor> UntrainedOf(const ::torch::nn::Module& module) {
  std::vector<NamedTensor> tensors;
  for (NamedTensor& named : TensorsOf(module)) {
    if (!named.tensor.requires_grad()) tensors.push_back(std::move(named));
  }
  return tensors;
}

absl::Status Save(const std::vector<NamedTensor>& tensors, std::string* bytes) {
  return Guarded("copying the model", [&] {
    SaveTensors(
        FormsOf(tensors),
        [&](size_t i, char* to) {
          const Tensor dense = tensors[i].tensor.detach().cpu().contiguous();
          if (dense.nbytes() > 0) {
            std::memcpy(to, dense.data_ptr(), dense.nbytes());
          }
        },
        bytes);
  });
}

absl::Status Load(absl::string_view bytes,
                  const std::vector<NamedTensor>& tensors) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto saved,
                            LoadTensors(bytes, FormsOf(tensors)));
  return Guarded("loading the model", [&] {
    const ::torch::NoGradGuard no_grad;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const Tensor& tensor = tensors[i].tensor;
      Tensor loaded = ::torch::empty(
          tensor.sizes(), ::torch::TensorOptions().dtype(tensor.scalar_type()));
      if (!saved[i].empty()) {
        std::memcpy(loaded.data_ptr(), saved[i].data(), saved[i].size());
      }
      tensor.copy_(loaded);
    }
  });
}

}  // namespace

absl::Status SaveModule(const ::torch::nn::Module& module, std::string* bytes) {
  return Save(TensorsOf(module), bytes);
}

absl::Status LoadModule(absl::string_view bytes, ::torch::nn::Module* module) {
  return Load(bytes, TensorsOf(*module));
}

absl::Status SaveUntrained(const ::torch::nn::Module& module,
                           std::string* bytes) {
  return Save(UntrainedOf(module), bytes);
}

absl::Status LoadUntrained(absl::string_view bytes,
                           ::torch::nn::Module* module) {
  return Load(bytes, UntrainedOf(*module));
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
  if (IsOfPython(bytes)) return LoadPythonOptimizer(bytes, optimizer);
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
  const bool known = CheckKnown(optimizer).ok();
  COXSWAIN_RETURN_IF_ERROR(Guarded("reading the optimizer", [&] {
    for (const auto& group : optimizer.param_groups()) {
      for (const Tensor& parameter : group.params()) {
        if (known && KeepsKnownState(optimizer, parameter)) {
          digest = DigestKnown(StateOf(optimizer, parameter), digest);
          continue;
        }
        const auto state = optimizer.state().find(
            c10::guts::to_string(parameter.unsafeGetTensorImpl()));
        if (state == optimizer.state().end()) {
          digest = Crc32c("none", digest);
        } else {
          digest = DigestArchived(*state->second, digest);
        }
      }
    }
  }));
  return digest;
}

}  // namespace coxswain::torch
