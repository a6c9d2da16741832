#ifndef COXSWAIN_TESTS_PROPERTY_MEANING_H_
#define COXSWAIN_TESTS_PROPERTY_MEANING_H_

#include <cstdint>
#include <string>

#include "client/device/tensor.h"
#include "tests/hooks/reference/low_rank.h"

namespace coxswain::property {

// What a hook's spec means, as far as the oracle needs to know.
struct Meaning {
  enum class Kind {
    kAverage,   // an average whose roundings are all known
    kLocal,     // each rank keeps its own
    kLowRank,   // LowRankReference, from `start` on
    kFeedback,  // only known to lose nothing, from `start` on
  };
  Kind kind = Kind::kAverage;
  // Wide gradients travel in this type, if it is not that of the gradients.
  bool narrows = false;
  DType narrow = DType::kFloat32;
  bool divide_first = true;
  int64_t start = 0;
  reference::LowRankOptions low_rank;

  bool has_state() const {
    return kind == Kind::kLowRank || kind == Kind::kFeedback;
  }
  // Returns whether each rank keeps in its state what it has not sent, so that
  // nothing is lost.
  bool conserves() const { return has_state() && low_rank.error_feedback; }
};

// Returns the meaning of a spec of RandomCase.
Meaning MeaningOf(const std::string& spec);

}  // namespace coxswain::property

#endif  // COXSWAIN_TESTS_PROPERTY_MEANING_H_
