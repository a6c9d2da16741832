#include "capi/hook_calls.h"

#include <cstring>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "capi/errors.h"
#include "capi/open_session.h"
#include "client/comm/communicator.h"
#include "client/comm/work.h"
#include "client/reduce/hook.h"
#include "client/reduce/hook_state.h"
#include "hooks/plain_hook.h"

namespace coxswain::capi {
namespace {

// Of one exchange: a hook that never ends is an error, and no training that
// goes on for ever.
constexpr int kMostCollectives = 1000;
constexpr size_t kMostTensors = 1 << 20;
constexpr int kMostDimensions = 16;
// The entry of a state's options: the kinds of which each rank has its own. In
// what a rank saves for itself these begin with kOwn, as in all hooks.
constexpr char kOwnKinds[] = "own_kinds";
constexpr char kOwn[] = "own_";

std::string& HookError() {
  thread_local std::string error;
  return error;
}

// Calls a function that returns nothing.
template <typename Body>
void Tell(const Body& body) {
  CallHook("", [&body]() {
    body();
    return CX_OK;
  }).IgnoreError();
}

class OwnExchange : public Exchange {
 public:
  OwnExchange(std::shared_ptr<const OwnHook> own, void* exchange,
              Communicator& communicator)
      : own_(std::move(own)),
        exchange_(exchange),
        communicator_(communicator) {}
  ~OwnExchange() override {
    Tell([this]() { own_->calls.end(exchange_); });
  }

  absl::StatusOr<WorkPtr> Advance() override {
    if (averaged_) return WorkPtr();
    cx_collective next{};
    next.size = sizeof(next);
    COXSWAIN_RETURN_IF_ERROR(CallHook("advance", [this, &next]() {
      return own_->calls.advance(exchange_, &next);
    }));
    if (next.kind != CX_NO_COLLECTIVE) return Start(next);
    averaged_ = true;
    // Ranks whose exchange has another number of collectives would wait for
    // ever in the last one: here all of them notice.
    return communicator_.Barrier();
  }

 private:
  absl::StatusOr<WorkPtr> Start(const cx_collective& next) {
    if (++collectives_ > kMostCollectives) {
      return absl::FailedPreconditionError(
          absl::StrCat("its exchange has begun ", kMostCollectives,
                       " collectives and has not ended: does its loop end?"));
    }
    COXSWAIN_ASSIGN_OR_RETURN(
        const Span data,
        SpanOf(next.data, next.count, next.dtype, "collective.data"));
    if (next.kind == CX_BROADCAST) {
      return communicator_.Broadcast(data, next.root);
    }
    if (next.op < CX_SUM || next.op > CX_MAX) {
      return InvalidArgument(
          "collective.op",
          absl::StrCat("is ", next.op, ", not CX_SUM, CX_MIN or CX_MAX"));
    }
    const auto op = static_cast<ReduceOp>(next.op);
    if (next.kind == CX_ALL_REDUCE) return communicator_.AllReduce(data, op);
    COXSWAIN_ASSIGN_OR_RETURN(const Span output,
                              SpanOf(next.output, next.output_count, next.dtype,
                                     "collective.output"));
    switch (next.kind) {
      case CX_ALL_GATHER:
        return communicator_.AllGather(data, output);
      case CX_REDUCE_SCATTER:
        return communicator_.ReduceScatter(data, output, op);
      case CX_ALL_TO_ALL:
        return communicator_.AllToAll(data, output);
      default:
        return InvalidArgument(
            "collective.kind",
            absl::StrCat("is ", next.kind, ", and there is none of that"));
    }
  }

  const std::shared_ptr<const OwnHook> own_;
  void* const exchange_;
  Communicator& communicator_;
  int collectives_ = 0;
  bool averaged_ = false;
};

absl::StatusOr<StateTensor> TensorOf(const cx_state_tensor& given,
                                     absl::string_view where) {
  StateTensor tensor;
  COXSWAIN_ASSIGN_OR_RETURN(tensor.kind,
                            TextOf(given.kind, absl::StrCat(where, ".kind")));
  COXSWAIN_ASSIGN_OR_RETURN(
      tensor.parameter,
      TextOf(given.parameter, absl::StrCat(where, ".parameter")));
  if (given.ndim < 0 || given.ndim > kMostDimensions) {
    return InvalidArgument(where,
                           absl::StrCat("has ", given.ndim, " dimensions"));
  }
  if (given.ndim > 0) {
    COXSWAIN_RETURN_IF_ERROR(
        CheckPresent(given.shape, absl::StrCat(where, ".shape")));
  }
  tensor.shape.assign(given.shape, given.shape + given.ndim);
  int64_t count = 1;
  for (const int64_t extent : tensor.shape) {
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count)) {
      return InvalidArgument(where, "has a shape that makes no sense");
    }
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      const Span span, SpanOf(const_cast<void*>(given.data), count, given.dtype,
                              absl::StrCat(where, ".data")));
  tensor.dtype = span.dtype;
  if (count > 0) {
    tensor.data.assign(static_cast<const char*>(span.data),
                       static_cast<size_t>(span.bytes()));
  }
  return tensor;
}

template <typename T>
void Multiply(std::string* data, double factor) {
  for (size_t at = 0; at < data->size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, data->data() + at, sizeof(T));
    value = static_cast<T>(static_cast<double>(value) * factor);
    std::memcpy(&(*data)[at], &value, sizeof(T));
  }
}

void Multiply(StateTensor* tensor, double factor) {
  if (tensor->dtype == DType::kFloat64) {
    Multiply<double>(&tensor->data, factor);
  } else {
    Multiply<float>(&tensor->data, factor);
  }
}

// A hook whose exchange the program makes.
class ProgramHook : public PlainHook {
 public:
  ProgramHook(std::shared_ptr<const OwnHook> own, std::string spec,
              const OptionValues& options)
      : PlainHook(std::move(spec)), own_(std::move(own)) {
    const OptionSettings given(options);
    made_ = Named(CallHook("make", [&]() {
      return own_->calls.make(own_->calls.data, this->spec().c_str(),
                              given.settings().data(), given.settings().size(),
                              &hook_);
    }));
  }
  ~ProgramHook() override {
    if (made_.ok()) Tell([this]() { own_->calls.destroy(hook_); });
  }

  // A part of the gradients may be chosen among those of a bucket.
  bool needs_frozen_layout() const override { return true; }

  absl::Status Configure(const std::vector<ParameterSpec>& parameters,
                         int world_size) override {
    COXSWAIN_RETURN_IF_ERROR(made_);
    COXSWAIN_RETURN_IF_ERROR(PlainHook::Configure(parameters, world_size));
    if (own_->calls.configure == nullptr) return absl::OkStatus();
    std::vector<cx_parameter> given;
    for (const ParameterSpec& parameter : parameters) {
      given.push_back({parameter.name.c_str(), parameter.shape.data(),
                       static_cast<int32_t>(parameter.shape.size()),
                       static_cast<cx_dtype>(parameter.dtype)});
    }
    return Named(CallHook("configure", [&]() {
      return own_->calls.configure(hook_, given.data(), given.size(),
                                   world_size);
    }));
  }

  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override {
    COXSWAIN_RETURN_IF_ERROR(CheckBucket(spec(), bucket));
    std::vector<cx_slot> slots;
    for (const GradientSlot& slot : bucket.gradients) {
      slots.push_back({slot.parameter, 0, slot.offset, slot.count});
    }
    cx_bucket given{};
    given.size = sizeof(given);
    given.index = bucket.index;
    given.last = bucket.last ? 1 : 0;
    given.data = bucket.data.data;
    given.count = bucket.data.count;
    given.slots = slots.data();
    given.slot_count = slots.size();
    given.dtype = static_cast<cx_dtype>(bucket.data.dtype);
    void* exchange = nullptr;
    COXSWAIN_RETURN_IF_ERROR(Named(CallHook("begin", [&]() {
      return own_->calls.begin(hook_, &given, communicator.rank(),
                               communicator.size(), &exchange);
    })));
    auto made = std::make_unique<OwnExchange>(own_, exchange, communicator);
    return std::make_unique<NamedExchange>(this, std::move(made));
  }

  absl::Status Commit() override {
    if (own_->calls.commit != nullptr) {
      COXSWAIN_RETURN_IF_ERROR(Named(
          CallHook("commit", [this]() { return own_->calls.commit(hook_); })));
    }
    return PlainHook::Commit();
  }

  void Rollback() override {
    if (made_.ok() && own_->calls.rollback != nullptr) {
      Tell([this]() { own_->calls.rollback(hook_); });
    }
  }

  absl::StatusOr<HookState> SaveOwn() const override {
    HookState state;
    state.spec = spec();
    state.step = step();
    if (own_->calls.save == nullptr) return state;
    const cx_state_tensor* tensors = nullptr;
    size_t count = 0;
    COXSWAIN_RETURN_IF_ERROR(Named(CallHook(
        "save", [&]() { return own_->calls.save(hook_, &tensors, &count); })));
    if (count > kMostTensors) {
      return Named(absl::ResourceExhaustedError(
          absl::StrCat("it remembers ", count, " tensors, and there may be ",
                       kMostTensors)));
    }
    std::set<std::string> own_kinds;
    for (size_t i = 0; i < count; ++i) {
      const std::string where = absl::StrCat("tensors[", i, "]");
      auto tensor = TensorOf(tensors[i], where);
      if (!tensor.ok()) return Named(tensor.status());
      if (absl::StartsWith(tensor->kind, kOwn)) {
        return Named(
            InvalidArgument(where, "is of a kind that begins with own_"));
      }
      if ((tensors[i].flags & CX_STATE_OWN) != 0) {
        if (tensor->dtype != DType::kFloat32 &&
            tensor->dtype != DType::kFloat64) {
          return Named(InvalidArgument(
              where, absl::StrCat("is each rank's own, which is for float32 "
                                  "and float64, and of ",
                                  NameOf(tensor->dtype))));
        }
        own_kinds.insert(tensor->kind);
        tensor->kind = absl::StrCat(kOwn, tensor->kind);
      }
      state.tensors.push_back(*std::move(tensor));
    }
    if (!own_kinds.empty()) {
      state.options[kOwnKinds] = absl::StrJoin(own_kinds, ",");
    }
    return state;
  }

  absl::Status LoadOwn(const HookState& state, double error_scale) override {
    COXSWAIN_RETURN_IF_ERROR(CheckErrorScale(spec(), error_scale));
    return Load(state, error_scale);
  }

  absl::StatusOr<HookState> SaveState(Communicator& communicator) override {
    COXSWAIN_ASSIGN_OR_RETURN(HookState state, SaveOwn());
    for (StateTensor& tensor : state.tensors) {
      absl::string_view kind = tensor.kind;
      if (!absl::ConsumePrefix(&kind, kOwn)) continue;
      tensor.kind = std::string(kind);
      const auto bytes = std::make_shared<std::string>(tensor.data);
      Span span;
      span.data = bytes->data();
      span.dtype = tensor.dtype;
      span.count = static_cast<int64_t>(bytes->size() / SizeOf(tensor.dtype));
      COXSWAIN_RETURN_IF_ERROR(Named(WaitHolding(
          communicator.AllReduce(span), bytes, absl::InfiniteDuration())));
      tensor.data = *bytes;
      Multiply(&tensor, 1.0 / communicator.size());
    }
    if (communicator.rank() != 0) state.tensors.clear();
    return state;
  }

  absl::Status LoadState(const HookState& state, int, int) override {
    return Load(state, /*error_scale=*/1);
  }

 private:
  // Names the hook in the errors of an exchange.
  class NamedExchange : public Exchange {
   public:
    NamedExchange(const ProgramHook* hook, std::unique_ptr<Exchange> exchange)
        : hook_(hook), exchange_(std::move(exchange)) {}
    absl::StatusOr<WorkPtr> Advance() override {
      absl::StatusOr<WorkPtr> work = exchange_->Advance();
      if (work.ok()) return work;
      return hook_->Named(work.status());
    }

   private:
    const ProgramHook* const hook_;
    const std::unique_ptr<Exchange> exchange_;
  };

  static std::set<std::string> OwnKinds(const HookState& state) {
    const auto found = state.options.find(kOwnKinds);
    if (found == state.options.end()) return {};
    return absl::StrSplit(found->second, ',');
  }

  absl::Status Named(const absl::Status& status) const {
    if (status.ok()) return status;
    return WithPrefix(absl::StrCat("the hook ", spec(), ": "), status);
  }

  absl::Status Load(const HookState& state, double error_scale) {
    COXSWAIN_RETURN_IF_ERROR(CheckStateName(spec(), state));
    if (own_->calls.load != nullptr) {
      const std::set<std::string> own_kinds = OwnKinds(state);
      std::vector<StateTensor> tensors = state.tensors;
      std::vector<cx_state_tensor> given;
      for (StateTensor& tensor : tensors) {
        absl::string_view kind = tensor.kind;
        if (absl::ConsumePrefix(&kind, kOwn)) tensor.kind = std::string(kind);
        const bool own = own_kinds.count(tensor.kind) > 0;
        if (own && error_scale != 1) Multiply(&tensor, error_scale);
        given.push_back(
            {tensor.kind.c_str(), tensor.parameter.c_str(), tensor.shape.data(),
             static_cast<int32_t>(tensor.shape.size()),
             static_cast<cx_dtype>(tensor.dtype), tensor.data.data(),
             own ? uint64_t{CX_STATE_OWN} : uint64_t{0}});
      }
      COXSWAIN_RETURN_IF_ERROR(Named(CallHook("load", [&]() {
        return own_->calls.load(hook_, given.data(), given.size());
      })));
    }
    return PlainHook::LoadState(state, 0, 1);
  }

  const std::shared_ptr<const OwnHook> own_;
  void* hook_ = nullptr;
  absl::Status made_;
};

}  // namespace

HookGate& HookGate::Get() {
  static auto* const gate = new HookGate;
  return *gate;
}

bool HookGate::Enter() {
  MutexLock lock(&mutex_);
  if (ended_) return false;
  ++running_;
  return true;
}

void HookGate::Leave() {
  MutexLock lock(&mutex_);
  if (--running_ == 0) left_.NotifyAll();
}

bool HookGate::End(absl::Duration limit) {
  MutexLock lock(&mutex_);
  ended_ = true;
  return left_.WaitFor(&mutex_, limit, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return running_ == 0;
  });
}

void SetHookError(std::string message) { HookError() = std::move(message); }

absl::Status HookStatus(cx_code code, absl::string_view function) {
  if (code == CX_OK) return absl::OkStatus();
  const auto known = code > CX_OK && code <= CX_UNAUTHENTICATED
                         ? static_cast<absl::StatusCode>(code)
                         : absl::StatusCode::kUnknown;
  if (!HookError().empty()) return absl::Status(known, HookError());
  return absl::Status(
      known, absl::StrCat("its function `", function, "` has returned ", code,
                          ", and no text"));
}

absl::Status HookException(absl::string_view function) {
  return WithPrefix(
      absl::StrCat("its function `", function, "` must throw nothing: "),
      StatusOfException());
}

absl::Status HookEnded() {
  return absl::CancelledError(
      "the program ends, and with it the hooks that it has registered");
}

std::unique_ptr<Hook> MakeOwnHook(std::shared_ptr<const OwnHook> own,
                                  std::string spec,
                                  const OptionValues& options) {
  return std::make_unique<ProgramHook>(std::move(own), std::move(spec),
                                       options);
}

absl::Status CheckOwnHook(const OwnHook& own, const OptionValues& options) {
  const OptionSettings given(options);
  void* hook = nullptr;
  COXSWAIN_RETURN_IF_ERROR(CallHook("make", [&]() {
    return own.calls.make(own.calls.data, own.name.c_str(),
                          given.settings().data(), given.settings().size(),
                          &hook);
  }));
  Tell([&]() { own.calls.destroy(hook); });
  return absl::OkStatus();
}

}  // namespace coxswain::capi
