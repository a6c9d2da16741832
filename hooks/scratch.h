#ifndef COXSWAIN_HOOKS_SCRATCH_H_
#define COXSWAIN_HOOKS_SCRATCH_H_

#include <cstddef>
#include <memory>

namespace coxswain {

// Host memory that a hook uses again from step to step, because fresh pages
// for every bucket would cost more than the arithmetic on them. Thread-safe.
class ScratchPool {
 public:
  ScratchPool();

  // Memory for `count` elements, aligned to a cache line, with undefined
  // contents. It goes back to the pool when its last holder lets go of it,
  // on any thread, even after the pool is gone.
  template <typename T>
  std::shared_ptr<T> Take(size_t count) {
    return std::static_pointer_cast<T>(TakeBytes(count * sizeof(T)));
  }

 private:
  struct Blocks;
  std::shared_ptr<void> TakeBytes(size_t bytes);

  std::shared_ptr<Blocks> blocks_;
};

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_SCRATCH_H_
