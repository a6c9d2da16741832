#ifndef COXSWAIN_EXAMPLES_FASHION_MNIST_DISPLAY_H_
#define COXSWAIN_EXAMPLES_FASHION_MNIST_DISPLAY_H_

#include <string>
#include <vector>

#include "examples/fashion_mnist/events.h"

namespace coxswain::examples {

// Returns the closing table, one row a run, and a warning for each run whose
// hook never started to compress.
std::string ResultTable(const std::vector<ResultEvent>& results);

// {"world_size": N, "mode": M, "runs": [{hook, steps, test_accuracy, ...}]};
// an empty mode is left out.
std::string ResultJson(int world_size, const std::vector<ResultEvent>& results,
                       const std::string& mode = "");

}  // namespace coxswain::examples

#endif  // COXSWAIN_EXAMPLES_FASHION_MNIST_DISPLAY_H_
