#include "tests/fuzz/mutator.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace coxswain {
namespace {

// Numbers as they stand in bytes, and what small languages are made of.
constexpr uint64_t kNumbers[] = {0,
                                 1,
                                 0x7f,
                                 0x80,
                                 0xff,
                                 0x7fff,
                                 0xffff,
                                 0x7fffffff,
                                 0x80000000,
                                 0xffffffff,
                                 0x7fffffffffffffff,
                                 0x8000000000000000,
                                 0xffffffffffffffff};
constexpr char kSigns[] = "()[]{}<>,.:;=/\\'\"-+*&!|@#%~ \t\r\n\0019x";

}  // namespace

Mutator::Mutator(std::vector<std::string> corpus, uint64_t seed)
    : corpus_(corpus.empty() ? std::vector<std::string>{""}
                             : std::move(corpus)),
      random_(seed, /*stream=*/0) {}

std::string Mutator::Next() {
  std::string bytes = Pick();
  const size_t changes = 1 + Below(6);
  for (size_t i = 0; i < changes; ++i) Change(&bytes);
  if (bytes.size() > kMaxBytes) bytes.resize(kMaxBytes);
  return bytes;
}

void Mutator::Change(std::string* bytes) {
  switch (Below(7)) {
    case 0:
      return Overwrite(bytes);
    case 1:
      return OverwriteNumber(bytes);
    case 2:
      return Insert(bytes);
    case 3:
      return Erase(bytes);
    case 4:
      return Repeat(bytes);
    case 5:
      return Splice(bytes);
    default:
      if (!bytes->empty()) {
        (*bytes)[Below(bytes->size())] ^= static_cast<char>(1 << Below(8));
      }
  }
}

void Mutator::Overwrite(std::string* bytes) {
  if (bytes->empty()) return;
  (*bytes)[Below(bytes->size())] = Below(2) == 0
                                       ? static_cast<char>(Draw())
                                       : kSigns[Below(sizeof(kSigns) - 1)];
}

void Mutator::OverwriteNumber(std::string* bytes) {
  const size_t width = size_t{1} << Below(4);
  if (bytes->size() < width) return;
  const uint64_t number = kNumbers[Below(std::size(kNumbers))];
  std::memcpy(bytes->data() + Below(bytes->size() - width + 1), &number, width);
}

void Mutator::Insert(std::string* bytes) {
  std::string added(1 + Below(8), static_cast<char>(Draw()));
  if (Below(2) == 0) added = kSigns[Below(sizeof(kSigns) - 1)];
  bytes->insert(Below(bytes->size() + 1), added);
}

void Mutator::Erase(std::string* bytes) {
  if (bytes->empty()) return;
  const size_t at = Below(bytes->size());
  bytes->erase(at, 1 + Below(std::min<size_t>(bytes->size() - at, 16)));
}

void Mutator::Repeat(std::string* bytes) {
  if (bytes->empty() || bytes->size() > kMaxBytes) return;
  const size_t at = Below(bytes->size());
  const std::string piece = bytes->substr(at, 1 + Below(32));
  const size_t times = 1 + Below(Below(8) == 0 ? 64 : 4);
  std::string added;
  for (size_t i = 0; i < times; ++i) added += piece;
  bytes->insert(at, added);
}

void Mutator::Splice(std::string* bytes) {
  const std::string& other = Pick();
  if (other.empty()) return;
  const size_t from = Below(other.size());
  bytes->replace(Below(bytes->size() + 1), std::string::npos,
                 other.substr(from));
}

}  // namespace coxswain
