#ifndef COXSWAIN_TESTS_GPU_KERNEL_CASE_H_
#define COXSWAIN_TESTS_GPU_KERNEL_CASE_H_

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/element_type.h"
#include "client/device/launch.h"

// Kernels to try, each with the memory that it works on. A case is run on a GPU
// and, as client/device/launch.h allows, on the CPU, and both must leave the
// same bits behind, in all of the memory. Free of Abseil and of gtest, so that
// it is built on a machine that has neither: see run_on_device.sh.

namespace coxswain::gpu {

// How a part of the memory is compared.
enum class Content {
  kBytes,
  kFloat32,  // these: a NaN equals a NaN
  kFloat64,
  kFloat16,
  kBFloat16,
  kIgnored,  // pointers, which differ
};
enum class Fill {
  kPoison,   // what has not been written
  kRandom,   // normally distributed, of very different sizes
  kSpecial,  // the same with infinities, NaNs, subnormals and zeros
  kZero,
};

struct Part {
  int64_t offset = 0;
  int64_t bytes = 0;
  Content content = Content::kBytes;
  Fill fill = Fill::kPoison;
  double tolerance = 0;  // relative to the largest; 0: the same bits
};

// A part whose contents depend on where the memory is.
struct Table {
  int64_t offset = 0;
  std::function<std::vector<unsigned char>(unsigned char* base)> make;
};

// An array in a case's memory.
template <typename T>
struct Array {
  int64_t offset = 0;
  T* in(unsigned char* base) const {
    return reinterpret_cast<T*>(base + offset);
  }
};

class Case {
 public:
  explicit Case(std::string name) : name_(std::move(name)) {}

  // `shift`: elements off the alignment that memory of a GPU begins with.
  template <typename T>
  Array<T> Add(int64_t count, Fill fill, Content content, int64_t shift = 0,
               double tolerance = 0) {
    constexpr int64_t kAlignment = 256;  // and at least as much is between
    const int64_t size = static_cast<int64_t>(sizeof(T));
    const int64_t offset = bytes_ + shift * size;
    parts_.push_back({offset, count * size, content, fill, tolerance});
    bytes_ =
        (offset + count * size + 2 * kAlignment - 1) / kAlignment * kAlignment;
    return {offset};
  }
  // What `make` returns for the memory's beginning, at most `most` entries.
  template <typename T>
  Array<T> AddTable(int64_t most,
                    std::function<std::vector<T>(unsigned char*)> make) {
    const Array<T> array = Add<T>(most, Fill::kZero, Content::kIgnored);
    tables_.push_back(
        {array.offset, [make](unsigned char* base) {
           const std::vector<T> entries = make(base);
           std::vector<unsigned char> bytes(entries.size() * sizeof(T));
           if (!bytes.empty()) {
             std::memcpy(bytes.data(), entries.data(), bytes.size());
           }
           return bytes;
         }});
    return array;
  }

  // Sets what is tried, and how many bytes it must move at least.
  void Do(std::function<void(LaunchTarget*, unsigned char* base)> enqueue,
          double moved = 0, double elements = 0) {
    enqueue_ = std::move(enqueue);
    moved_ = moved;
    elements_ = elements;
  }

  const std::string& name() const { return name_; }
  int64_t bytes() const { return bytes_; }
  const std::vector<Part>& parts() const { return parts_; }
  const std::vector<Table>& tables() const { return tables_; }
  void Enqueue(LaunchTarget* target, unsigned char* base) const {
    enqueue_(target, base);
  }
  double moved() const { return moved_; }
  double elements() const { return elements_; }

 private:
  std::string name_;
  int64_t bytes_ = 256;
  std::vector<Part> parts_;
  std::vector<Table> tables_;
  std::function<void(LaunchTarget*, unsigned char*)> enqueue_;
  double moved_ = 0;
  double elements_ = 0;
};

// Returns cases of all kernels: odd sizes, misaligned memory, nothing at all.
// `few`: for a sanitizer, which is slow.
std::vector<Case> CasesToCheck(bool few);
// Returns cases of sizes that training has, with what they move.
std::vector<Case> CasesToTime();

// Returns the memory before the case, for the base that it will have.
std::vector<unsigned char> MakeImage(const Case& one, unsigned char* base,
                                     uint64_t seed);
// Returns what differs; empty: nothing.
std::string Difference(const Case& one,
                       const std::vector<unsigned char>& expected,
                       const std::vector<unsigned char>& got);

}  // namespace coxswain::gpu

#endif  // COXSWAIN_TESTS_GPU_KERNEL_CASE_H_
