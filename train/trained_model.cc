#include "train/trained_model.h"

#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/element_names.h"
#include "base/status_macros.h"
#include "client/resume/tensor_bytes.h"
#include "train/life.h"

namespace coxswain {
namespace {

bool IsFloat(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 ||
         dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

absl::StatusOr<ParameterSpec> DescribeOne(const TrainedParameter& parameter) {
  ParameterSpec spec;
  spec.name = parameter.name;
  spec.shape = parameter.shape;
  spec.dtype = parameter.dtype;
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("the parameter \"", parameter.name, "\" ", why));
  };
  if (!IsFloat(parameter.dtype)) {
    return refuse(absl::StrCat("is of type ", NameOf(parameter.dtype),
                               "; those that are trained are of float32, "
                               "float64, float16 or bfloat16"));
  }
  for (const int64_t extent : parameter.shape) {
    if (extent >= 0) continue;
    return refuse(absl::StrCat("has the shape [",
                               absl::StrJoin(parameter.shape, ", "), "]"));
  }
  if (spec.count() == 0) return spec;
  if (parameter.value == nullptr || parameter.gradient == nullptr) {
    return refuse(absl::StrCat(
        "has no ", parameter.value == nullptr ? "value" : "gradient",
        ": give it the memory of ", spec.count(), " elements"));
  }
  if (parameter.value == parameter.gradient) {
    return refuse("has its gradient in the memory of its value");
  }
  return spec;
}

int64_t CountOf(const TrainedParameter& parameter) {
  int64_t count = 1;
  for (const int64_t extent : parameter.shape) count *= extent;
  return count;
}

Span SpanOf(const TrainedParameter& parameter, void* data) {
  Span span;
  span.data = data;
  span.count = CountOf(parameter);
  span.dtype = parameter.dtype;
  return span;
}

std::vector<TensorForm> FormsOf(
    const std::vector<TrainedParameter>& parameters) {
  std::vector<TensorForm> forms;
  for (const TrainedParameter& parameter : parameters) {
    forms.push_back(
        {parameter.name,
         absl::StrCat(NameOf(parameter.dtype), " [",
                      absl::StrJoin(parameter.shape, ", "), "]"),
         static_cast<size_t>(CountOf(parameter)) * SizeOf(parameter.dtype)});
  }
  return forms;
}

}  // namespace

absl::StatusOr<std::vector<ParameterSpec>> DescribeTrained(
    const std::vector<TrainedParameter>& parameters) {
  if (parameters.empty()) {
    return absl::InvalidArgumentError("there are no parameters to train");
  }
  std::vector<ParameterSpec> specs;
  std::set<std::string> names;
  for (const TrainedParameter& parameter : parameters) {
    COXSWAIN_ASSIGN_OR_RETURN(ParameterSpec spec, DescribeOne(parameter));
    if (!names.insert(spec.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("two parameters are called \"", spec.name,
                       "\": give each a name of its own"));
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

TrainedMemory MemoryOf(const std::vector<TrainedParameter>& parameters) {
  TrainedMemory memory;
  for (const TrainedParameter& parameter : parameters) {
    memory.values.push_back(SpanOf(parameter, parameter.value));
    memory.gradients.push_back(SpanOf(parameter, parameter.gradient));
  }
  return memory;
}

void CopyElements(const Span& from, void* to) {
  if (from.count > 0) {
    std::memcpy(to, from.data, static_cast<size_t>(from.bytes()));
  }
}

absl::Status CheckOptimizer(const TrainedOptimizer& optimizer) {
  if (!optimizer.step) {
    return absl::InvalidArgumentError(
        "the optimizer has no step: give Train the function that changes the "
        "values by the gradients");
  }
  if ((optimizer.save == nullptr) == (optimizer.load == nullptr)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the optimizer has ", optimizer.save ? "save" : "load",
                   " without ", optimizer.save ? "load" : "save",
                   ": give both, or none if it learns nothing"));
}

ProgramCheckpoint::Program ProgramOf(
    const std::vector<TrainedParameter>& trained_parameters,
    const TrainedOptimizer& trained_optimizer) {
  const auto* const parameters = &trained_parameters;
  const auto* const optimizer = &trained_optimizer;
  ProgramCheckpoint::Program program;
  program.save_model = [parameters](std::string* bytes) {
    const std::vector<TensorForm> forms = FormsOf(*parameters);
    const auto copy = [&](size_t i, char* to) {
      if (forms[i].bytes == 0) return;
      std::memcpy(to, (*parameters)[i].value, forms[i].bytes);
    };
    SaveTensors(forms, copy, bytes);
    return absl::OkStatus();
  };
  program.load_model = [parameters](absl::string_view bytes) -> absl::Status {
    COXSWAIN_ASSIGN_OR_RETURN(const auto saved,
                              LoadTensors(bytes, FormsOf(*parameters)));
    for (size_t i = 0; i < saved.size(); ++i) {
      if (saved[i].empty()) continue;
      std::memcpy((*parameters)[i].value, saved[i].data(), saved[i].size());
    }
    return absl::OkStatus();
  };
  program.save_optimizer = [optimizer]() -> absl::StatusOr<std::string> {
    if (!optimizer->save) return std::string();
    std::string bytes;
    COXSWAIN_RETURN_IF_ERROR(
        RunGuarded("saving the optimizer", [&]() -> absl::Status {
          COXSWAIN_ASSIGN_OR_RETURN(bytes, optimizer->save());
          return absl::OkStatus();
        }));
    return bytes;
  };
  program.load_optimizer = [optimizer](absl::string_view bytes) {
    if (!optimizer->load) return absl::OkStatus();
    return RunGuarded("loading the optimizer",
                      [&] { return optimizer->load(bytes); });
  };
  return program;
}

}  // namespace coxswain
