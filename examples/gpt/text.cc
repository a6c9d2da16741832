#include "examples/gpt/text.h"

#include <zlib.h>

#include <array>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/philox.h"
#include "base/status_macros.h"

namespace coxswain::examples::gpt {
namespace {

// More than a program of this size has a use for.
constexpr size_t kMostBytes = size_t{1} << 30;

absl::StatusOr<std::string> ReadAll(const std::string& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(
      gzopen(path.c_str(), "rb"), gzclose);
  if (file == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("cannot open ", path,
                     "; install the Debian package jargon-text, or give "
                     "another text with --text"));
  }
  std::string bytes;
  std::array<char, 1 << 16> part;
  int got = 0;
  while ((got = gzread(file.get(), part.data(), part.size())) > 0) {
    bytes.append(part.data(), static_cast<size_t>(got));
    if (bytes.size() > kMostBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " has more than ", kMostBytes, " bytes"));
    }
  }
  int code = Z_OK;
  const char* const why = gzerror(file.get(), &code);
  if (got == 0 && code == Z_OK) return bytes;
  return absl::DataLossError(absl::StrCat(path, " cannot be read: ", why));
}

}  // namespace

absl::StatusOr<Text> Text::Read(const std::string& path, int64_t length) {
  COXSWAIN_ASSIGN_OR_RETURN(std::string bytes, ReadAll(path));
  Text text(std::move(bytes), length);
  // A piece is followed by a byte.
  if (length > 0 && text.trained_ > length && text.held_out_pieces() > 0) {
    return text;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      path, " has ", text.size(), " bytes, too few for pieces of ", length,
      ": give a longer "
      "--text, or a smaller --length"));
}

Text::Text(std::string bytes, int64_t length)
    : bytes_(std::move(bytes)),
      length_(length),
      trained_(static_cast<int64_t>(bytes_.size()) / 10 * 9) {}

uint32_t Text::checksum() const { return Crc32c(bytes_); }

int64_t Text::TrainingPiece(uint64_t seed, int64_t number) const {
  const auto n = static_cast<uint64_t>(number);
  const PhiloxBlock random =
      Philox({static_cast<uint32_t>(n), static_cast<uint32_t>(n >> 32), 0, 0},
             {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t drawn = uint64_t{random[0]} << 32 | random[1];
  return static_cast<int64_t>(drawn %
                              static_cast<uint64_t>(trained_ - length_));
}

int64_t Text::HeldOutPiece(int64_t number) const {
  return trained_ + number % held_out_pieces() * length_;
}

int64_t Text::held_out_pieces() const {
  return (size() - trained_ - 1) / length_;
}

void Text::Copy(int64_t begin, int64_t* tokens, int64_t* targets) const {
  const char* from = bytes_.data() + begin;
  for (int64_t i = 0; i < length_; ++i) {
    tokens[i] = static_cast<uint8_t>(from[i]);
    targets[i] = static_cast<uint8_t>(from[i + 1]);
  }
}

}  // namespace coxswain::examples::gpt
