#include "client/elastic/catch_up/elements.h"

#include <cstddef>
#include <map>
#include <numeric>
#include <set>

#include "client/elastic/catch_up/frame.h"

namespace coxswain::catch_up {

std::vector<Span> SpansOf(const Parts& parts) {
  std::vector<Span> spans;
  for (const CatchUpTarget::Part& part : parts) spans.push_back(part.span);
  return spans;
}

std::vector<Elements> ElementsOf(const Parts& parts, int64_t piece) {
  std::vector<Elements> elements;
  PiecesOf(SpansOf(parts))
      .VisitSpans(piece, [&](size_t span, int64_t begin, int64_t bytes) {
        elements.push_back(
            {parts[span].parameter, begin, bytes, parts[span].span.bytes()});
      });
  return elements;
}

std::vector<int64_t> PiecesWith(const std::vector<Elements>& elements,
                                const Parts& state) {
  const PiecesOf pieces(SpansOf(state));
  std::multimap<int, size_t> parts;  // by parameter
  for (size_t i = 0; i < state.size(); ++i) {
    if (state[i].span.bytes() > 0) parts.emplace(state[i].parameter, i);
  }
  std::set<int64_t> with;
  for (const Elements& some : elements) {
    const auto [first_part, end_of_parts] = parts.equal_range(some.parameter);
    for (auto part = first_part; part != end_of_parts; ++part) {
      const size_t i = part->second;
      const int64_t all = state[i].span.bytes();
      // The elements of both parts are as many, whatever their types: a few
      // bytes of one are a few of the other.
      const int64_t unit = std::gcd(all, some.all);
      const int64_t here = all / unit;
      const int64_t there = some.all / unit;
      const int64_t first = pieces.begin(i) + some.begin / there * here;
      const int64_t end = pieces.begin(i) +
                          (some.begin + some.bytes + there - 1) / there * here;
      for (int64_t at = first / kPieceBytes; at * kPieceBytes < end; ++at) {
        with.insert(at);
      }
    }
  }
  return {with.begin(), with.end()};
}

}  // namespace coxswain::catch_up
