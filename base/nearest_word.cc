#include "base/nearest_word.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"

namespace coxswain {
namespace {

// Longer ones are no slips, and come from peers or files.
constexpr size_t kMaxLetters = 64;

// Returns how many slips are believed in a word of so many letters.
size_t Believed(size_t letters) {
  if (letters < 4) return 1;
  return letters < 8 ? 2 : 3;
}

// Returns the distance of Damerau and Levenshtein, by its recurrence over the
// beginnings of both words.
size_t Distance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1),
      row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t other = a[i - 1] == b[j - 1] ? 0 : 1;
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + other});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

}  // namespace

std::string NearestWord(absl::string_view word,
                        const std::vector<std::string>& known) {
  if (word.size() > kMaxLetters) return "";
  std::string nearest;
  size_t least = Believed(word.size()) + 1;
  for (const std::string& one : known) {
    if (one.size() > kMaxLetters) continue;
    const size_t distance = Distance(word, one);
    // A word that shares nothing with it is none.
    if (distance < least && distance < std::max(word.size(), one.size())) {
      least = distance;
      nearest = one;
    }
  }
  return nearest;
}

std::string DidYouMean(absl::string_view word,
                       const std::vector<std::string>& known) {
  const std::string nearest = NearestWord(word, known);
  return nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?");
}

}  // namespace coxswain
