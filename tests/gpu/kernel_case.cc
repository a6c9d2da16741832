#include "tests/gpu/kernel_case.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "base/float16.h"

namespace coxswain::gpu {
namespace {

constexpr unsigned char kPoison = 0xa5;

// SplitMix64; base/random.h has Abseil.
class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}
  uint64_t Bits() {
    uint64_t x = state_ += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
  }
  double Uniform() { return static_cast<double>(Bits() >> 11) * 0x1.0p-53; }
  double Value(Fill fill) {
    const uint64_t kind = Bits();
    if (fill == Fill::kSpecial && kind % 16 == 0) return Special(kind >> 8);
    const int exponent = static_cast<int>((kind >> 32) % 16) - 8;
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += Uniform();
    return std::ldexp(sum, exponent);
  }

 private:
  static double Special(uint64_t which) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const double values[] = {kInfinity, -kInfinity, std::nan(""), 0.0,
                             -0.0,      1e-40,      -3e-41,       65520,
                             3.4e38,    6e-8,       5e-324,       1e-45};
    return values[which % (sizeof(values) / sizeof(values[0]))];
  }

  uint64_t state_;
};

template <typename T>
void Put(unsigned char* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}

int64_t SizeOfContent(Content content) {
  switch (content) {
    case Content::kFloat64:
      return 8;
    case Content::kFloat32:
      return 4;
    case Content::kFloat16:
    case Content::kBFloat16:
      return 2;
    default:
      return 1;
  }
}

void PutValue(Content content, double value, unsigned char* to) {
  const float narrow = static_cast<float>(value);
  switch (content) {
    case Content::kFloat64:
      return Put(to, value);
    case Content::kFloat32:
      return Put(to, narrow);
    case Content::kFloat16:
      return Put(to, FloatToFloat16(narrow));
    case Content::kBFloat16:
      return Put(to, FloatToBFloat16(narrow));
    default:
      *to = static_cast<unsigned char>(std::fmod(std::fabs(value), 1) * 256);
  }
}

template <typename T>
T Get(const unsigned char* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

double GetValue(Content content, const unsigned char* from) {
  switch (content) {
    case Content::kFloat64:
      return Get<double>(from);
    case Content::kFloat32:
      return Get<float>(from);
    case Content::kFloat16:
      return Float16ToFloat(Get<uint16_t>(from));
    case Content::kBFloat16:
      return BFloat16ToFloat(Get<uint16_t>(from));
    default:
      return *from;
  }
}

std::string Text(const char* format, double a, double b, int64_t at) {
  char text[160];
  std::snprintf(text, sizeof(text), format, static_cast<long long>(at), a, b);
  return text;
}

// Returns the first element of a part that differs.
std::string DifferenceOf(const Part& part, const unsigned char* expected,
                         const unsigned char* got) {
  if (part.content == Content::kIgnored ||
      std::memcmp(expected, got, static_cast<size_t>(part.bytes)) == 0) {
    return "";
  }
  const int64_t size = SizeOfContent(part.content);
  double largest = 0;
  for (int64_t i = 0; i < part.bytes && part.tolerance > 0; i += size) {
    largest =
        std::max(largest, std::fabs(GetValue(part.content, expected + i)));
  }
  for (int64_t i = 0; i < part.bytes; i += size) {
    if (std::memcmp(expected + i, got + i, static_cast<size_t>(size)) == 0) {
      continue;
    }
    const double a = GetValue(part.content, expected + i);
    const double b = GetValue(part.content, got + i);
    if (std::isnan(a) && std::isnan(b)) continue;
    if (part.tolerance > 0 && std::fabs(a - b) <= part.tolerance * largest) {
      continue;
    }
    return Text("element %lld is %.17g on the CPU, %.17g on the GPU", a, b,
                i / size);
  }
  return "";
}

}  // namespace

std::vector<unsigned char> MakeImage(const Case& one, unsigned char* base,
                                     uint64_t seed) {
  std::vector<unsigned char> image(static_cast<size_t>(one.bytes()), kPoison);
  Draws draws(seed);
  for (const Part& part : one.parts()) {
    unsigned char* const at = image.data() + part.offset;
    if (part.fill == Fill::kZero) {
      std::fill_n(at, part.bytes, static_cast<unsigned char>(0));
    }
    if (part.fill == Fill::kZero || part.fill == Fill::kPoison) continue;
    const int64_t size = SizeOfContent(part.content);
    for (int64_t i = 0; i < part.bytes; i += size) {
      PutValue(part.content, draws.Value(part.fill), at + i);
    }
  }
  for (const Table& table : one.tables()) {
    const std::vector<unsigned char> bytes = table.make(base);
    std::copy(bytes.begin(), bytes.end(), image.begin() + table.offset);
  }
  return image;
}

std::string Difference(const Case& one,
                       const std::vector<unsigned char>& expected,
                       const std::vector<unsigned char>& got) {
  int64_t end = 0;
  for (size_t i = 0; i <= one.parts().size(); ++i) {
    const bool last = i == one.parts().size();
    const int64_t next = last ? one.bytes() : one.parts()[i].offset;
    // The bytes between must not be written.
    for (int64_t at = end; at < next; ++at) {
      const size_t index = static_cast<size_t>(at);
      if (got[index] == kPoison && expected[index] == kPoison) continue;
      return Text("byte %lld of no array was written (%g, %g)", expected[index],
                  got[index], at);
    }
    if (last) break;
    const Part& part = one.parts()[i];
    const std::string difference = DifferenceOf(
        part, expected.data() + part.offset, got.data() + part.offset);
    if (!difference.empty()) {
      return "array " + std::to_string(i) + ": " + difference;
    }
    end = part.offset + part.bytes;
  }
  return "";
}

}  // namespace coxswain::gpu
