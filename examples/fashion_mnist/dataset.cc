#include "examples/fashion_mnist/dataset.h"

#include <zlib.h>

#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain::examples {
namespace {

// The IDX format's magic numbers: unsigned bytes, of one or three dimensions.
constexpr uint32_t kLabelsMagic = 0x00000801;
constexpr uint32_t kImagesMagic = 0x00000803;
// More than any packaged file has: bounds what a broken header can ask for.
constexpr uint32_t kMaxCount = 1000000;

class GzipReader {
 public:
  explicit GzipReader(const std::string& path)
      : path_(path), file_(gzopen(path.c_str(), "rb"), gzclose) {}

  absl::Status Opened() const {
    if (file_ != nullptr) return absl::OkStatus();
    return absl::NotFoundError(
        absl::StrCat("cannot open ", path_,
                     "; install the Debian package dataset-fashion-mnist, or "
                     "give its folder with --data"));
  }

  absl::Status Read(uint8_t* out, size_t bytes) {
    const int got = gzread(file_.get(), out, static_cast<unsigned>(bytes));
    if (got >= 0 && static_cast<size_t>(got) == bytes) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(path_, " is damaged: expected ",
                                            bytes, " more bytes, got ", got));
  }

  absl::StatusOr<uint32_t> ReadUint32() {
    uint8_t bytes[4];
    COXSWAIN_RETURN_IF_ERROR(Read(bytes, sizeof(bytes)));
    return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 |
           uint32_t{bytes[2]} << 8 | uint32_t{bytes[3]};
  }

  absl::Status Expect(uint32_t wanted, const char* what) {
    COXSWAIN_ASSIGN_OR_RETURN(const uint32_t value, ReadUint32());
    if (value == wanted) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(
        path_, " is not valid: ", what, " is ", value, ", expected ", wanted));
  }

 private:
  std::string path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

absl::StatusOr<uint32_t> ReadCount(GzipReader& reader) {
  COXSWAIN_ASSIGN_OR_RETURN(const uint32_t count, reader.ReadUint32());
  if (count <= kMaxCount) return count;
  return absl::DataLossError(
      absl::StrCat("a count of ", count, " items is beyond ", kMaxCount));
}

absl::StatusOr<std::vector<uint8_t>> ReadLabels(const std::string& path) {
  GzipReader reader(path);
  COXSWAIN_RETURN_IF_ERROR(reader.Opened());
  COXSWAIN_RETURN_IF_ERROR(reader.Expect(kLabelsMagic, "the magic number"));
  COXSWAIN_ASSIGN_OR_RETURN(const uint32_t count, ReadCount(reader));
  std::vector<uint8_t> labels(count);
  COXSWAIN_RETURN_IF_ERROR(reader.Read(labels.data(), labels.size()));
  for (const uint8_t label : labels) {
    if (label >= Dataset::kClasses) {
      return absl::DataLossError(
          absl::StrCat(path, " has the label ", label, ", beyond 9"));
    }
  }
  return labels;
}

absl::StatusOr<std::vector<uint8_t>> ReadImages(const std::string& path) {
  GzipReader reader(path);
  COXSWAIN_RETURN_IF_ERROR(reader.Opened());
  COXSWAIN_RETURN_IF_ERROR(reader.Expect(kImagesMagic, "the magic number"));
  COXSWAIN_ASSIGN_OR_RETURN(const uint32_t count, ReadCount(reader));
  COXSWAIN_RETURN_IF_ERROR(reader.Expect(Dataset::kSide, "the height"));
  COXSWAIN_RETURN_IF_ERROR(reader.Expect(Dataset::kSide, "the width"));
  std::vector<uint8_t> pixels(size_t{count} * Dataset::kPixels);
  COXSWAIN_RETURN_IF_ERROR(reader.Read(pixels.data(), pixels.size()));
  return pixels;
}

}  // namespace

absl::StatusOr<Dataset> ReadDataset(const std::string& folder,
                                    const std::string& prefix) {
  const std::string base = absl::StrCat(folder, "/", prefix);
  Dataset dataset;
  COXSWAIN_ASSIGN_OR_RETURN(
      dataset.pixels, ReadImages(absl::StrCat(base, "-images-idx3-ubyte.gz")));
  COXSWAIN_ASSIGN_OR_RETURN(
      dataset.labels, ReadLabels(absl::StrCat(base, "-labels-idx1-ubyte.gz")));
  const int64_t images =
      static_cast<int64_t>(dataset.pixels.size()) / Dataset::kPixels;
  if (images != dataset.count()) {
    return absl::DataLossError(absl::StrCat(
        base, " has ", images, " images but ", dataset.count(), " labels"));
  }
  return dataset;
}

}  // namespace coxswain::examples
