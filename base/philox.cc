#include "base/philox.h"

#include "base/box_muller.h"
#include "base/random.h"

namespace coxswain {
namespace {

constexpr int kRounds = 10;

uint32_t Low(uint64_t x) { return static_cast<uint32_t>(x); }
uint32_t High(uint64_t x) { return static_cast<uint32_t>(x >> 32); }

uint64_t Join(uint32_t low, uint32_t high) {
  return low | static_cast<uint64_t>(high) << 32;
}

}  // namespace

PhiloxBlock Philox(PhiloxBlock counter, PhiloxKey key) {
  constexpr uint64_t kMultipliers[] = {0xd2511f53, 0xcd9e8d57};
  constexpr PhiloxKey kWeyl = {0x9e3779b9, 0xbb67ae85};
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t first = kMultipliers[0] * counter[0];
    const uint64_t second = kMultipliers[1] * counter[2];
    counter = {High(second) ^ counter[1] ^ key[0], Low(second),
               High(first) ^ counter[3] ^ key[1], Low(first)};
    key = {key[0] + kWeyl[0], key[1] + kWeyl[1]};
  }
  return counter;
}

// A chain over the place's words, as of a message authentication code: 128 bits
// that all depend on all of them.
PlaceRandom::PlaceRandom(const DrawPlace& place) {
  const PhiloxKey seed = {Low(place.seed), High(place.seed)};
  const uint64_t words[][2] = {
      {static_cast<uint64_t>(place.purpose), static_cast<uint64_t>(place.step)},
      {static_cast<uint64_t>(place.data_index),
       static_cast<uint64_t>(place.micro_batch)},
      {place.name, 0}};
  PhiloxBlock chain = {};
  for (const auto& [a, b] : words) {
    chain = Philox({chain[0] ^ Low(a), chain[1] ^ High(a), chain[2] ^ Low(b),
                    chain[3] ^ High(b)},
                   seed);
  }
  key_ = {chain[0], chain[1]};
  place_ = {chain[2], chain[3]};
}

PhiloxBlock PlaceRandom::Draw(uint64_t element) const {
  return Philox({Low(element), High(element), place_[0], place_[1]}, key_);
}

double PlaceRandom::Uniform(uint64_t element) const {
  const PhiloxBlock drawn = Draw(element);
  return UnitInterval(Join(drawn[0], drawn[1]));
}

double PlaceRandom::Normal(uint64_t element) const {
  const PhiloxBlock drawn = Draw(element);
  return BoxMuller(UnitInterval(Join(drawn[0], drawn[1])),
                   UnitInterval(Join(drawn[2], drawn[3])));
}

}  // namespace coxswain
