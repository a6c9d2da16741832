#ifndef COXSWAIN_BASE_NEAREST_WORD_H_
#define COXSWAIN_BASE_NEAREST_WORD_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace coxswain {

// Returns which of `known` was probably meant by `word`: the one that takes the
// fewest changes of a letter (one more, one less, another one, or two that
// change places), the first of several; empty if all take too many for a slip.
std::string NearestWord(absl::string_view word,
                        const std::vector<std::string>& known);

// Returns "; did you mean 'x'?" for errors, or nothing.
std::string DidYouMean(absl::string_view word,
                       const std::vector<std::string>& known);

}  // namespace coxswain

#endif  // COXSWAIN_BASE_NEAREST_WORD_H_
