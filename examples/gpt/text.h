#ifndef COXSWAIN_EXAMPLES_GPT_TEXT_H_
#define COXSWAIN_EXAMPLES_GPT_TEXT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace coxswain::examples::gpt {

// The Jargon File, version 4.4.7, which is in the public domain: of the Debian
// package jargon-text.
inline constexpr char kPackagedText[] =
    "/usr/share/doc/jargon-text/jargon.txt.gz";

// A text to train on, of which the last tenth is held out. Immutable.
class Text {
 public:
  // Reads a file, which gzip may have compressed. Fails with NOT_FOUND, naming
  // the package that has the default one, with DATA_LOSS if it is damaged, and
  // with INVALID_ARGUMENT if it is too short for pieces of `length` bytes, or
  // too long.
  static absl::StatusOr<Text> Read(const std::string& path, int64_t length);

  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }
  uint32_t checksum() const;

  // Returns where in the text to read a piece that is trained on: a function of
  // its number, so that ranks of any mesh read the same pieces.
  int64_t TrainingPiece(uint64_t seed, int64_t number) const;
  // Returns where the held-out pieces are, one after the other, and how many
  // there are.
  int64_t HeldOutPiece(int64_t number) const;
  int64_t held_out_pieces() const;

  // Writes the `length` bytes of a piece as numbers, and those of which each
  // follows one.
  void Copy(int64_t begin, int64_t* tokens, int64_t* targets) const;

 private:
  Text(std::string bytes, int64_t length);

  std::string bytes_;
  int64_t length_;
  int64_t trained_;  // bytes, before those that are held out
};

}  // namespace coxswain::examples::gpt

#endif  // COXSWAIN_EXAMPLES_GPT_TEXT_H_
