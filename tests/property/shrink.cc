#include "tests/property/shrink.h"

#include <algorithm>
#include <string>
#include <utility>

namespace coxswain::property {
namespace {

// Collects what is valid and not the case itself.
class Candidates {
 public:
  explicit Candidates(const Case& one) : one_(one), text_(ToText(one)) {}

  // Adds `one` with a change.
  template <typename Change>
  void Try(Change change) {
    Case smaller = one_;
    change(smaller);
    smaller.broadcast_buffers = smaller.broadcast_buffers && smaller.buffers;
    if (!IsValid(smaller) || ToText(smaller) == text_) return;
    all_.push_back(std::move(smaller));
  }

  std::vector<Case> Take() { return std::move(all_); }

 private:
  const Case& one_;
  const std::string text_;
  std::vector<Case> all_;
};

template <typename T>
void Erase(std::vector<T>& all, size_t index) {
  all.erase(all.begin() + static_cast<std::ptrdiff_t>(index));
}

// Steps are erased with the times of parameters that refer to them.
void EraseStep(Case& one, size_t step) {
  Erase(one.steps, step);
  const int at = static_cast<int>(step);
  for (ParameterCase& parameter : one.parameters) {
    if (parameter.from > at) --parameter.from;
    if (parameter.until != kAlways && parameter.until > at) --parameter.until;
  }
}

uint32_t WithoutBit(uint32_t bits, size_t bit) {
  const uint32_t below = (uint32_t{1} << bit) - 1;
  return (bits & below) | ((bits >> 1) & ~below);
}

void EraseTerm(Case& one, size_t term) {
  Erase(one.terms, term);
  for (StepCase& step : one.steps) {
    for (auto& micros : step.uses) {
      for (uint32_t& uses : micros) uses = WithoutBit(uses, term);
    }
  }
}

void EraseParameter(Case& one, size_t parameter) {
  const int erased = static_cast<int>(parameter);
  for (size_t term = one.terms.size(); term-- > 0;) {
    const Term& own = one.terms[term];
    if (own.a == erased || own.b == erased) EraseTerm(one, term);
  }
  for (Term& term : one.terms) {
    if (term.a > erased) --term.a;
    if (term.b > erased) --term.b;
  }
  Erase(one.parameters, parameter);
}

void EraseRank(Case& one, size_t rank) {
  --one.world;
  for (StepCase& step : one.steps) Erase(step.uses, rank);
}

void TryToErase(const Case& one, Candidates& candidates) {
  const size_t steps = one.steps.size();
  candidates.Try([&](Case& smaller) { smaller.steps.resize((steps + 1) / 2); });
  for (size_t step = steps; step-- > 0;) {
    candidates.Try([&](Case& smaller) { EraseStep(smaller, step); });
  }
  for (size_t rank = static_cast<size_t>(one.world); rank-- > 0;) {
    candidates.Try([&](Case& smaller) { EraseRank(smaller, rank); });
  }
  for (size_t i = one.parameters.size(); i-- > 0;) {
    candidates.Try([&](Case& smaller) { EraseParameter(smaller, i); });
  }
  for (size_t i = one.terms.size(); i-- > 0;) {
    candidates.Try([&](Case& smaller) { EraseTerm(smaller, i); });
  }
}

// Options to their plainest.
void TryPlainOptions(const Case& one, Candidates& candidates) {
  const auto set = [&](auto member, auto plain) {
    if (one.*member == plain) return;
    candidates.Try([&](Case& smaller) { smaller.*member = plain; });
  };
  set(&Case::hook, std::string("allreduce"));
  set(&Case::accumulate, 0);
  set(&Case::view, false);
  set(&Case::rebuild, false);
  set(&Case::find_unused, false);
  set(&Case::uneven, false);
  set(&Case::static_graph, false);
  set(&Case::overlapped, false);
  set(&Case::max_norm, 0.0);
  set(&Case::statistics, false);
  set(&Case::broadcast_buffers, false);
  set(&Case::buffers, false);
  const BucketPlanOptions usual;
  if (one.buckets.bucket_bytes == usual.bucket_bytes) return;
  candidates.Try([&](Case& smaller) { smaller.buckets = usual; });
}

void TryPlainStep(const Case& one, size_t number, Candidates& candidates) {
  const StepCase& step = one.steps[number];
  const auto set = [&](auto member, auto plain) {
    if (step.*member == plain) return;
    candidates.Try(
        [&](Case& smaller) { smaller.steps[number].*member = plain; });
  };
  set(&StepCase::ending, Ending::kBackward);
  set(&StepCase::zero, ZeroGrad::kNone);
  set(&StepCase::carry_state, false);
  set(&StepCase::hook, std::string());
  set(&StepCase::change_before, 0);
  if (step.buckets.bucket_bytes == 0) return;
  candidates.Try([&](Case& smaller) {
    smaller.steps[number].buckets = {0, 0};
  });
}

// One micro-batch less in each window; then one by one.
void TryFewerMicros(const Case& one, Candidates& candidates) {
  candidates.Try([](Case& smaller) {
    smaller.accumulate = std::max(0, smaller.accumulate - 1);
    for (StepCase& step : smaller.steps) {
      for (auto& micros : step.uses) {
        if (micros.size() > 1) micros.pop_back();
      }
    }
  });
  for (size_t step = 0; step < one.steps.size(); ++step) {
    for (size_t rank = 0; rank < one.steps[step].uses.size(); ++rank) {
      for (size_t micro = one.steps[step].uses[rank].size(); micro-- > 0;) {
        candidates.Try([&](Case& smaller) {
          Erase(smaller.steps[step].uses[rank], micro);
        });
      }
    }
  }
}

// Every pass uses everything; then pass by pass.
void TryPlainUses(const Case& one, Candidates& candidates) {
  const uint32_t every =
      static_cast<uint32_t>((uint64_t{1} << one.terms.size()) - 1);
  bool partial = false;
  for (size_t step = 0; step < one.steps.size(); ++step) {
    for (size_t rank = 0; rank < one.steps[step].uses.size(); ++rank) {
      const auto& micros = one.steps[step].uses[rank];
      for (size_t micro = 0; micro < micros.size(); ++micro) {
        if (micros[micro] == every) continue;
        partial = true;
        candidates.Try([&](Case& smaller) {
          smaller.steps[step].uses[rank][micro] = every;
        });
      }
    }
  }
  if (!partial) return;
  candidates.Try([&](Case& smaller) {
    for (StepCase& step : smaller.steps) {
      for (auto& micros : step.uses) {
        std::fill(micros.begin(), micros.end(), every);
      }
    }
  });
}

void TryPlainParameter(const Case& one, size_t number, Candidates& candidates) {
  const ParameterCase& parameter = one.parameters[number];
  const auto set = [&](auto member, auto plain) {
    if (parameter.*member == plain) return;
    candidates.Try(
        [&](Case& smaller) { smaller.parameters[number].*member = plain; });
  };
  set(&ParameterCase::memory, Memory::kDense);
  set(&ParameterCase::shared, false);
  set(&ParameterCase::from, 0);
  set(&ParameterCase::until, kAlways);
  if (parameter.dtype != DType::kFloat64) {
    set(&ParameterCase::dtype, DType::kFloat32);
  }
  if (!parameter.shape.empty()) {
    candidates.Try(
        [&](Case& smaller) { smaller.parameters[number].shape.pop_back(); });
  }
  for (size_t axis = 0; axis < parameter.shape.size(); ++axis) {
    const int64_t extent = parameter.shape[axis];
    for (const int64_t less : {extent / 2, extent - 1}) {
      if (less < 1) continue;
      candidates.Try([&](Case& smaller) {
        smaller.parameters[number].shape[axis] = less;
      });
    }
  }
}

void TryPlainTerm(const Case& one, size_t number, Candidates& candidates) {
  const Term& term = one.terms[number];
  if (term.kind != TermKind::kLinear) {
    candidates.Try(
        [&](Case& smaller) { smaller.terms[number].kind = TermKind::kLinear; });
  }
  if (term.b == term.a) return;
  candidates.Try([&](Case& smaller) { smaller.terms[number].b = term.a; });
}

}  // namespace

std::vector<Case> Smaller(const Case& one) {
  Candidates candidates(one);
  TryToErase(one, candidates);
  TryPlainOptions(one, candidates);
  TryFewerMicros(one, candidates);
  for (size_t i = 0; i < one.steps.size(); ++i) {
    TryPlainStep(one, i, candidates);
  }
  for (size_t i = 0; i < one.terms.size(); ++i) {
    TryPlainTerm(one, i, candidates);
  }
  TryPlainUses(one, candidates);
  for (size_t i = 0; i < one.parameters.size(); ++i) {
    TryPlainParameter(one, i, candidates);
  }
  return candidates.Take();
}

Case Shrink(Case one, const std::function<bool(const Case&)>& fails, int runs) {
  bool smaller = true;
  while (smaller) {
    smaller = false;
    for (Case& candidate : Smaller(one)) {
      if (runs-- <= 0) return one;
      if (!fails(candidate)) continue;
      one = std::move(candidate);
      smaller = true;
      break;
    }
  }
  return one;
}

}  // namespace coxswain::property
