#include "hooks/cast.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/reduce/hook.h"
#include "hooks/allreduce.h"
#include "hooks/device/device_exchange.h"
#include "hooks/device/device_scratch.h"
#include "hooks/kernels/cuda/elementwise.h"
#include "hooks/narrow.h"
#include "hooks/narrow_communicator.h"
#include "hooks/plain_hook.h"
#include "hooks/scratch.h"
#include "hooks/weighted_exchange.h"
#include "hooks/wrapper_hook.h"

namespace coxswain {
namespace {

class CastExchange : public Exchange {
 public:
  // With `slices`, `narrow` has room for their padding.
  CastExchange(const Bucket& bucket, std::optional<BucketSlices> slices,
               Communicator& communicator, DType dtype, CastOrder order,
               std::shared_ptr<uint16_t> narrow)
      : data_(bucket.data),
        slices_(slices),
        share_(UnevenShare(bucket, communicator.size())),
        communicator_(communicator),
        dtype_(dtype),
        order_(order),
        narrow_(std::move(narrow)) {}

  absl::StatusOr<WorkPtr> Advance() override {
    if (std::exchange(started_, true)) {
      Widen();
      return WorkPtr();
    }
    Narrow();
    WorkPtr work = Send(Span{narrow_.get(), data_.count, dtype_, data_.device});
    // Keeps the memory until the back end is done with it, even if this
    // exchange is given up before.
    work->OnDone([keep = narrow_](const absl::Status&) {});
    return work;
  }

 private:
  void Narrow() {
    const int size = communicator_.size();
    if (share_.has_value() || order_ == CastOrder::kDivideThenCast) {
      NarrowSpan(data_, dtype_, narrow_.get(), share_.value_or(1.0 / size));
    } else {
      NarrowSpan(data_, dtype_, narrow_.get());
      DivideNarrow(narrow_.get(), data_.count, dtype_, size);
    }
  }

  WorkPtr Send(const Span& travelling) {
    if (!slices_.has_value()) return communicator_.AllReduce(travelling);
    const Span all = slices_->Padded(travelling);
    std::fill(narrow_.get() + travelling.count, narrow_.get() + all.count,
              uint16_t{0});
    return communicator_.ReduceScatter(
        all, slices_->PaddedSlice(travelling, communicator_.rank()));
  }

  void Widen() {
    if (!slices_.has_value()) return WidenSpan(narrow_.get(), dtype_, data_);
    const int rank = communicator_.rank();
    WidenSpan(narrow_.get() + slices_->begin(data_.count, rank), dtype_,
              slices_->Slice(data_, rank));
  }

  const Span data_;
  const std::optional<BucketSlices> slices_;
  const std::optional<double> share_;
  Communicator& communicator_;
  const DType dtype_;
  const CastOrder order_;
  const std::shared_ptr<uint16_t> narrow_;
  bool started_ = false;
};

class CastHook : public PlainHook {
 public:
  CastHook(std::string spec, DType dtype, CastOrder order)
      : PlainHook(std::move(spec)), dtype_(dtype), order_(order) {}

  bool applies_share() const override { return true; }

  absl::Status Configure(const std::vector<ParameterSpec>& parameters,
                         int world_size) override {
    sequences_.Clear();
    device_scratch_.Clear();
    return PlainHook::Configure(parameters, world_size);
  }

  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override {
    COXSWAIN_RETURN_IF_ERROR(CheckBucketType(spec(), bucket));
    if (!IsWide(bucket.data.dtype)) {
      return PrepareAllReduce(bucket, communicator, &sequences_);
    }
    if (IsOnDevice(bucket)) {
      return PrepareOnDevice(bucket, std::nullopt, communicator);
    }
    return std::make_unique<CastExchange>(
        bucket, std::nullopt, communicator, dtype_, order_,
        scratch_.Take<uint16_t>(static_cast<size_t>(bucket.data.count)));
  }

  absl::StatusOr<std::unique_ptr<Exchange>> PrepareSlice(
      const Bucket& bucket, const BucketSlices& slices,
      Communicator& communicator) override {
    COXSWAIN_RETURN_IF_ERROR(CheckBucketType(spec(), bucket));
    if (!IsWide(bucket.data.dtype)) {
      return PrepareReduceScatter(bucket, slices, communicator, &sequences_);
    }
    if (IsOnDevice(bucket)) {
      return PrepareOnDevice(bucket, slices, communicator);
    }
    return std::make_unique<CastExchange>(
        bucket, slices, communicator, dtype_, order_,
        scratch_.Take<uint16_t>(static_cast<size_t>(slices.padded())));
  }

 private:
  absl::StatusOr<std::unique_ptr<Exchange>> PrepareOnDevice(
      const Bucket& bucket, std::optional<BucketSlices> slices,
      Communicator& communicator) {
    COXSWAIN_ASSIGN_OR_RETURN(DeviceQueue* const queue,
                              QueueFor(spec(), bucket, communicator));
    const auto share = UnevenShare(bucket, communicator.size());
    return MakeDeviceExchange(
        bucket, *queue,
        [this, data = bucket.data, slices, share, &communicator,
         queue]() -> absl::Status {
          Span narrow{nullptr, data.count, dtype_, data.device};
          if (slices.has_value()) narrow = slices->Padded(narrow);
          // Not within a recording, where memory may not be had.
          COXSWAIN_ASSIGN_OR_RETURN(
              const std::shared_ptr<void> memory,
              device_scratch_.Take(*queue, narrow.bytes()));
          narrow.data = memory.get();
          const auto enqueue = [&] {
            return Enqueue(data, slices, share, narrow, communicator, *queue);
          };
          const int64_t part = slices.has_value() ? 1 : 0;
          // Shares differ from step to step.
          absl::Status status =
              share.has_value() ? enqueue()
                                : sequences_.Run(*queue, data, part, enqueue);
          status.Update(device_scratch_.Seal(*queue));
          return status;
        });
  }

  // From the writing of `narrow` to its last reading, so that exchanges,
  // recorded ones too, may have the same memory for it. With `slices` it has
  // their padding, whose sum is that of whatever is there.
  absl::Status Enqueue(const Span& data, std::optional<BucketSlices> slices,
                       std::optional<double> share, const Span& narrow,
                       Communicator& communicator, DeviceQueue& queue) const {
    const int size = communicator.size();
    const bool divide_first =
        share.has_value() || order_ == CastOrder::kDivideThenCast;
    DeviceRuntime& runtime = queue.runtime();
    LaunchTarget target = runtime.Target(queue.stream());
    auto* const values = static_cast<uint16_t*>(narrow.data);
    EnqueueNarrow(&target, data.dtype, data.data, dtype_, values, data.count,
                  divide_first ? share.value_or(1.0 / size) : 1);
    if (!divide_first) {
      EnqueueDivide(&target, dtype_, values, data.count, size);
    }
    COXSWAIN_RETURN_IF_ERROR(runtime.StatusOf(target));
    const int rank = communicator.rank();
    COXSWAIN_RETURN_IF_ERROR(
        Begun(slices.has_value()
                  ? communicator.ReduceScatter(
                        narrow, narrow.Slice(slices->each * rank, slices->each))
                  : communicator.AllReduce(narrow)));
    const Span averages = slices.has_value() ? slices->Slice(data, rank) : data;
    const int64_t first =
        slices.has_value() ? slices->begin(data.count, rank) : 0;
    EnqueueWiden(&target, dtype_, values + first, averages.dtype, averages.data,
                 averages.count);
    return runtime.StatusOf(target);
  }

  const DType dtype_;
  const CastOrder order_;
  ScratchPool scratch_;
  DeviceScratch device_scratch_;
  SequenceCache sequences_;
};

// An inner exchange and the communicator that it uses.
class NarrowExchange : public Exchange {
 public:
  NarrowExchange(Communicator& communicator, DType dtype, ScratchPool& scratch,
                 DeviceScratch& device_scratch)
      : communicator_(communicator, dtype, scratch, &device_scratch) {}

  absl::Status Prepare(Hook& inner, const Bucket& bucket) {
    COXSWAIN_ASSIGN_OR_RETURN(exchange_, inner.Prepare(bucket, communicator_));
    return absl::OkStatus();
  }
  absl::Status PrepareSlice(Hook& inner, const Bucket& bucket,
                            const BucketSlices& slices) {
    COXSWAIN_ASSIGN_OR_RETURN(
        exchange_, inner.PrepareSlice(bucket, slices, communicator_));
    return absl::OkStatus();
  }

  absl::StatusOr<WorkPtr> Advance() override { return exchange_->Advance(); }

 private:
  NarrowCommunicator communicator_;
  std::unique_ptr<Exchange> exchange_;  // goes before what it uses
};

// `fp16(h)` and `bf16(h)`: everything that hook h sends travels in 16 bits,
// while h computes and remembers in the type it would use without the
// wrapper. So `fp16(powersgd)` halves P, Q and the raw tensors, and keeps its
// error in float32. The state is h's own, saved under h's spec and in full
// precision: it can be taken over with another wrapper or none.
//
// Cost: h's collectives at 2 bytes an element, and 2 bytes an element of
// scratch while they travel. Numerics: one rounding to 16 bits per collective
// and rank, and the back end's sum in 16 bits; see narrow_communicator.h for
// what fp16 does with large values. The rounding is not fed back as error.
class NarrowWrapper : public WrapperHook {
 public:
  NarrowWrapper(std::string spec, DType dtype, std::unique_ptr<Hook> inner)
      : WrapperHook(std::move(spec), std::move(inner)), dtype_(dtype) {}

  absl::Status Configure(const std::vector<ParameterSpec>& parameters,
                         int world_size) override {
    device_scratch_.Clear();
    return WrapperHook::Configure(parameters, world_size);
  }

  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override {
    auto exchange = std::make_unique<NarrowExchange>(communicator, dtype_,
                                                     scratch_, device_scratch_);
    COXSWAIN_RETURN_IF_ERROR(exchange->Prepare(inner(), bucket));
    return exchange;
  }

  absl::StatusOr<std::unique_ptr<Exchange>> PrepareSlice(
      const Bucket& bucket, const BucketSlices& slices,
      Communicator& communicator) override {
    auto exchange = std::make_unique<NarrowExchange>(communicator, dtype_,
                                                     scratch_, device_scratch_);
    COXSWAIN_RETURN_IF_ERROR(exchange->PrepareSlice(inner(), bucket, slices));
    return exchange;
  }

 private:
  const DType dtype_;
  ScratchPool scratch_;
  DeviceScratch device_scratch_;
};

constexpr char kDivideThenCast[] = "divide_then_cast";
constexpr char kCastThenDivide[] = "cast_then_divide";

OptionDescription OrderOption() {
  return ChoiceOption("order", kDivideThenCast,
                      {kDivideThenCast, kCastThenDivide},
                      "whether the division by the number of ranks comes "
                      "before the cast, or after it as in PyTorch");
}

absl::Status CheckCast(const OptionValues& options, bool has_inner) {
  if (!has_inner || options.Choice("order") == kDivideThenCast) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "order is an option of the hook without an inner hook; the inner hook "
      "divides by itself");
}

std::unique_ptr<Hook> MakeCastOrWrapper(DType dtype, std::string spec,
                                        const OptionValues& options,
                                        std::unique_ptr<Hook> inner) {
  if (inner != nullptr) {
    return std::make_unique<NarrowWrapper>(std::move(spec), dtype,
                                           std::move(inner));
  }
  return MakeCastHook(std::move(spec), dtype,
                      options.Choice("order") == kDivideThenCast
                          ? CastOrder::kDivideThenCast
                          : CastOrder::kCastThenDivide);
}

// `numerics` and `avoid` of a card are what the two types differ in.
CostCard CastCard(const std::string& name, absl::string_view numerics,
                  absl::string_view avoid) {
  return {
      absl::StrCat("2 N bytes for a bucket of N elements; ", name,
                   "(h): half of what h sends in float32"),
      absl::StrCat("1 all-reduce; ", name, "(h): those of h"),
      absl::StrCat("none kept, 2 N bytes in flight; ", name,
                   "(h): that of h, and 2 bytes per element in flight"),
      absl::StrCat(
          "one rounding per rank, then the back end's sum in 16 bits: ",
          numerics, "; ", name,
          "(h) rounds what h sends, and h keeps its state in its own "
          "precision"),
      std::string(avoid),
  };
}

HookRow CastRow(std::string name, std::string help, CostCard card,
                DType dtype) {
  HookRow row;
  row.description.aliases = {absl::StrCat(name, "_compress")};
  row.description.name = std::move(name);
  row.description.help = std::move(help);
  row.description.card = std::move(card);
  row.description.takes_inner = true;
  row.on_device = true;
  row.description.options = {OrderOption()};
  row.check = CheckCast;
  row.make = [dtype](std::string spec, OptionValues options,
                     std::unique_ptr<Hook> inner) {
    return MakeCastOrWrapper(dtype, std::move(spec), options, std::move(inner));
  };
  return row;
}

}  // namespace

HookRow Fp16Row() {
  return CastRow(
      "fp16",
      "gradients travel as float16; fp16(h): all that hook h sends does",
      CastCard("fp16",
               "11 significant bits, an infinity above 65504, zero below 6e-8",
               "gradients that leave float16's range; bf16 keeps that of "
               "float32"),
      DType::kFloat16);
}

HookRow Bf16Row() {
  return CastRow(
      "bf16",
      "gradients travel as bfloat16; bf16(h): all that hook h sends does",
      CastCard("bf16", "8 significant bits in the range of float32",
               "averages over many ranks for which 8 bits are too few; fp16 "
               "has 11"),
      DType::kBFloat16);
}

std::unique_ptr<Hook> MakeCastHook(std::string spec, DType dtype,
                                   CastOrder order) {
  return std::make_unique<CastHook>(std::move(spec), dtype, order);
}

}  // namespace coxswain
