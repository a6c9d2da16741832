#include "tests/bench/free_reducer.h"

#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "client/comm/in_process/loopback_communicator.h"
#include "hooks/registry/registry.h"

namespace coxswain::bench {

absl::StatusOr<std::unique_ptr<FreeReducer>> FreeReducer::Create(
    const Options& options, std::vector<ParameterSpec> parameters) {
  auto made = std::unique_ptr<FreeReducer>(new FreeReducer);
  made->options_ = options;
  int64_t total = 0;
  for (const ParameterSpec& parameter : parameters) {
    made->offsets_.push_back(total);
    total += parameter.count();
  }
  if (options.copies) made->gradients_.assign(static_cast<size_t>(total), 1);
  made->communicator_ = std::make_unique<LoopbackCommunicator>();
  COXSWAIN_ASSIGN_OR_RETURN(made->hook_, MakeHook("allreduce"));
  ReducerOptions reducer;
  reducer.statistics = options.statistics;
  COXSWAIN_ASSIGN_OR_RETURN(
      made->reducer_,
      Reducer::Create(reducer, std::move(parameters), made->hook_.get(),
                      made->communicator_.get()));
  return made;
}

Span FreeReducer::Outside(int parameter) {
  Span span = reducer_->GradientView(parameter);
  span.data = gradients_.data() + offsets_[static_cast<size_t>(parameter)];
  return span;
}

absl::Status FreeReducer::Step() {
  COXSWAIN_RETURN_IF_ERROR(reducer_->BeginStep());
  Reducer::MarkOptions mark;
  mark.copy_back = options_.copies;
  for (int i = static_cast<int>(offsets_.size()); i-- > 0;) {
    COXSWAIN_RETURN_IF_ERROR(options_.copies
                                 ? reducer_->MarkReady(i, Outside(i), mark)
                                 : reducer_->MarkReady(i));
  }
  COXSWAIN_RETURN_IF_ERROR(reducer_->Finish());
  return reducer_->Commit();
}

void FreeReducer::Copy() {
  if (!options_.copies) return;
  const int parameters = static_cast<int>(offsets_.size());
  for (int i = parameters; i-- > 0;) {
    const Span view = reducer_->GradientView(i);
    std::memcpy(view.data, Outside(i).data, static_cast<size_t>(view.bytes()));
  }
  for (int i = parameters; i-- > 0;) {
    const Span view = reducer_->GradientView(i);
    std::memcpy(Outside(i).data, view.data, static_cast<size_t>(view.bytes()));
  }
}

}  // namespace coxswain::bench
