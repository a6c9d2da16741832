#ifndef COXSWAIN_CLIENT_ELASTIC_CATCH_UP_ELEMENTS_H_
#define COXSWAIN_CLIENT_ELASTIC_CATCH_UP_ELEMENTS_H_

#include <cstdint>
#include <vector>

#include "client/device/tensor.h"
#include "client/elastic/catch_up/catch_up_target.h"

// Which pieces hold the same elements. An optimizer acts on each element alone:
// whatever is damaged of one damages, with the next step, its parameter and all
// that the optimizer keeps of it, and nothing else.

namespace coxswain::catch_up {

using Parts = std::vector<CatchUpTarget::Part>;

// Elements of one parameter: where they are in a part of `all` bytes.
struct Elements {
  int parameter = 0;
  int64_t begin = 0;
  int64_t bytes = 0;
  int64_t all = 0;
};

std::vector<Span> SpansOf(const Parts& parts);

// Returns the elements that a piece of these parts holds.
std::vector<Elements> ElementsOf(const Parts& parts, int64_t piece);

// Returns the pieces of the state that hold any of the elements, in order.
std::vector<int64_t> PiecesWith(const std::vector<Elements>& elements,
                                const Parts& state);

}  // namespace coxswain::catch_up

#endif  // COXSWAIN_CLIENT_ELASTIC_CATCH_UP_ELEMENTS_H_
